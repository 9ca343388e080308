"""What a newer version wrote, and what nobody can answer, keeps the services from nothing else."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from samekey import Executed, Response, StillUnknown
from samekey.core.backoff import Backoff
from samekey.core.record import Record
from samekey.engine.phased.input import Captured, Given, Input
from samekey.stores.protocols import Actor
from samekey.workers.completer import Completer
from samekey.workers.reconciler import LEASE, Reconciler
from samekey.workers.service import Services, WorkerService
from samekey.workers.sweeper import Sweeper
from tests.operator.world import HOUR, World

QUICK = timedelta(milliseconds=50)


def make_strange(world: World, record: Record) -> None:
    """A newer version's mode. Its schema would allow the word."""
    world.sql("alter table {keys} drop constraint if exists keys_mode")
    world.sql("update {keys} set mode = 'telepathic' where id = ?", record.id)


def test_a_row_of_a_newer_mode_stops_neither_sweeper_nor_reconciler(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    if world.engine.engine.drivers.dialect != "postgres":
        pytest.skip("the words that a column may hold are changed by a newer schema; shown on PostgreSQL")
    strange, known = world.claim(at=-HOUR), world.claim(at=-HOUR)
    unknown, other = world.unknown(at=-HOUR), world.unknown(at=-HOUR)
    for record in (strange, unknown):
        make_strange(world, record)
    assert world.serve(Sweeper(world.engine.engine).run_once) == 1
    assert world.read(known).state == "unknown"
    assert world.sql("select state from {keys} where id = ?", strange.id) == [("in_progress",)]
    assert "mode 'telepathic' this version does not know" in caplog.text
    world.engine.lookup()(lambda record: Executed(Response(200, {})))
    looked = world.serve(Reconciler(world.engine.engine).look)
    assert {one.record.id for one in looked} == {known.id, other.id}
    assert world.read(other).state == "completed"
    assert "An unknown outcome was left alone" in caplog.text


def give_input(world: World) -> None:
    """Something that can be decoded, in the place of what the world stores."""
    payload = Captured("acme", Given(Input(), {})).encode(None)
    world.sql("update {inputs} set payload = ?", payload)


async def serving(world: World, story: Any, **options: Any) -> None:
    chosen = Services(
        **{"outbox": False, "completer": False, "sweeper": False, "reaper": False, "grace": QUICK, **options}
    )
    service = WorkerService(world.engine.engine, chosen)
    running = asyncio.create_task(service.run(handle_signals=False))
    try:
        async with asyncio.timeout(60):
            await story(service)
    finally:
        service.stop()
        await running


def test_unanswerable_outcomes_do_not_delay_answerable_ones(world: World) -> None:
    """A hundred whose lookup hangs, and a hundred without one, came first. Looks are an hour apart."""
    hanging: list[str] = []

    for number in range(100):
        world.unknown(at=-3 * HOUR + number, endpoint="POST /hangs")
        world.unknown(at=-2 * HOUR + number, endpoint="POST /nobody")
    answerable = world.unknown(at=-HOUR, endpoint="POST /known")

    @world.engine.lookup("POST /hangs")
    async def hangs(record: Record) -> Any:
        hanging.append(record.id)
        await asyncio.Event().wait()

    world.engine.lookup("POST /known")(lambda record: Executed(Response(200, {})))

    async def story(service: WorkerService) -> None:
        while (await asyncio.to_thread(world.read, answerable)).state != "completed":
            await asyncio.sleep(0.02)
        assert len(hanging) <= 8, "they hold their share of ten, and not one has ended"

    world.serve(lambda: serving(world, story, reconciler_interval=timedelta(hours=1)))


def test_what_a_dead_reconciler_held_is_asked_about_within_seconds(world: World) -> None:
    """One lease for each, renewed while its lookup runs: not one for the batch and all that it may take."""
    record = world.unknown(at=-HOUR)
    began = asyncio.Event()

    @world.engine.lookup()
    async def hangs(_: Record) -> Any:
        began.set()
        await asyncio.Event().wait()

    async def die() -> None:
        asking = asyncio.create_task(Reconciler(world.engine.engine).run_once())
        await asyncio.wait_for(began.wait(), 30)
        asking.cancel()

    world.serve(die)
    (left,) = world.sql("select reconcile_after from {keys} where id = ?", record.id)[0]
    assert left - world.now <= LEASE.total_seconds() * 1000 + 60_000
    assert timedelta(seconds=15) >= LEASE


def test_tries_pauses_and_time_out_of_the_reconciler_are_settings(world: World) -> None:
    asked: list[str] = []
    silent, hung = world.unknown(endpoint="POST /a", at=-HOUR), world.unknown(endpoint="POST /b", at=-HOUR)

    @world.engine.lookup("POST /a")
    def cannot_tell(record: Record) -> Any:
        asked.append(record.id)
        return StillUnknown

    @world.engine.lookup("POST /b")
    async def never(_: Record) -> Any:
        await asyncio.Event().wait()

    async def story(service: WorkerService) -> None:
        while {(await asyncio.to_thread(world.read, one)).state for one in (silent, hung)} != {"dead_letter"}:
            await asyncio.sleep(0.02)

    settings = {
        "reconciler_tries": 2,
        "reconciler_timeout": QUICK,
        "reconciler_interval": QUICK,
        "reconciler_backoff": Backoff(first=QUICK, longest=QUICK),
    }
    world.serve(lambda: serving(world, story, **settings))
    assert asked == [silent.id] * 2


def test_a_dead_phased_operation_is_run_again_though_it_may_be_tried_once(world: World) -> None:
    ran: list[int] = []

    @world.engine.phased("ride", max_attempts=1)
    def ride(op: Any, _: Any) -> Any:
        ran.append(op.attempts)
        return {"done": True}

    record = world.phased(at=-HOUR)
    world.sql("update {keys} set state = 'dead_letter', locked_until = null where id = ?", record.id)
    give_input(world)
    assert world.run(lambda: world.operator.retry_dead_operation(record.id, Actor("ann", "again")))
    world.sql("delete from {phases}")
    world.sql("update {keys} set locked_until = 1 where id = ?", record.id)
    world.serve(Completer(world.engine.engine).run_once)
    assert ran == [1], world.read(record)


def test_hanging_phased_functions_hold_up_no_other_and_no_shared_pool(world: World) -> None:
    """Sync ones in threads of their own; definitions share the places."""
    release = threading.Event()
    began: list[str] = []
    done: list[str] = []

    @world.engine.phased("hangs")
    def hangs(op: Any, _: Any) -> Any:
        began.append(op.id)
        release.wait(60)
        return {}

    @world.engine.phased("healthy")
    def healthy(op: Any, _: Any) -> Any:
        done.append(op.id)
        return {}

    for number in range(40):
        world.phased(at=-3 * HOUR + number)
    last = world.phased(at=-HOUR)
    give_input(world)
    world.sql("update {inputs} set name = 'hangs'")
    world.sql("update {inputs} set name = 'healthy' where operation_id = ?", last.id)
    world.sql("delete from {phases}")

    async def story(service: WorkerService) -> None:
        while last.id not in done:
            await asyncio.sleep(0.02)
        while len(began) < 7:
            await asyncio.sleep(0.02)
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert len(began) == 7

    try:
        world.serve(lambda: serving(world, story, completer=True, reconciler=False, completer_interval=QUICK))
    finally:
        release.set()
