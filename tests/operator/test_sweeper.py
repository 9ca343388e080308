"""The sweeper: leases that ran out are moved, each by its mode, once, whoever else sweeps at the time."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter

import psycopg
import pytest

from lab.processes import Racers
from samekey import Idempotency
from samekey.core.decide import Execute
from samekey.core.policy import ietf
from samekey.core.states import Mode, State
from samekey.drivers.run import run
from samekey.engine.events import Event
from samekey.errors import CorruptRecord
from samekey.workers.sweeper import Sweeper
from tests.chosen import whole
from tests.operator import nodes
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, World, claim_of


def test_each_by_its_mode(world: World) -> None:
    records = {mode: world.claim(mode=mode, at=-HOUR) for mode in Mode if mode is not Mode.PHASED}
    assert world.serve(Sweeper(world.engine.engine).run_once) == 4
    assert {mode: str(world.read(record).state) for mode, record in records.items()} == {
        Mode.ATOMIC: "failed_retryable",
        Mode.LEASED: "unknown",
        Mode.REPEATABLE: "failed_retryable",
        Mode.DEFERRED: "failed_retryable",
    }
    lost = world.read(records[Mode.LEASED])
    assert lost.reconcile_after is not None, "an unknown outcome has a date"
    assert (lost.error_code, lost.locked_until, lost.attempt) == (
        "lease_ended",
        None,
        records[Mode.LEASED].attempt,
    )


def test_what_is_held_finished_or_begun_in_phases_is_left_alone(world: World) -> None:
    kept = [world.claim(), world.completed(), world.failed(), world.unknown(), world.phased(at=-HOUR)]
    kept.append(world.pending(at=-HOUR)[0])
    before = world.states(kept)
    assert world.serve(Sweeper(world.engine.engine).run_once) == 0
    assert world.states(kept) == before


def test_phased_work_that_died_before_its_input_was_stored(world: World) -> None:
    """The completer cannot call it, and nothing has happened: else it would be stuck for ever."""
    record = world.phased(at=-HOUR, begun=False)
    assert world.serve(Sweeper(world.engine.engine).run_once) == 1
    assert (world.read(record).state, world.read(record).error_code) == ("failed_retryable", "never_begun")
    assert world.claim(record.key, mode=Mode.PHASED).id == record.id


def test_an_input_of_a_former_life_does_not_count(world: World) -> None:
    record = world.phased("again", at=-3 * DAY)
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "code", now=world.now - 3 * DAY))
    again = world.phased("again", at=-HOUR, begun=False)
    assert again.id != record.id  # an operation of its own: the former one is gone, and its input with it
    assert (world.find(record), world.count("inputs")) == (None, 0)
    assert world.serve(Sweeper(world.engine.engine).run_once) == 1
    assert (world.read(again).state, world.read(again).error_code) == ("failed_retryable", "never_begun")


def test_the_holder_who_was_only_slow_still_has_the_last_word(world: World) -> None:
    record = world.claim(at=-HOUR)
    world.serve(Sweeper(world.engine.engine).run_once)
    assert world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER)) is not None
    assert world.read(record).answer == ANSWER


def test_a_batch_is_the_oldest(world: World) -> None:
    records = [world.claim(at=-HOUR - number * MINUTE) for number in range(5)]
    assert world.serve(Sweeper(world.engine.engine, batch=2).run_once) == 2
    assert world.states(records) == ["in_progress"] * 3 + ["unknown"] * 2


def test_it_is_logged_and_counted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    world.engine.events.subscribe(heard.append)
    record = world.claim(at=-HOUR)
    world.claim(mode=Mode.REPEATABLE, at=-HOUR)
    with caplog.at_level(logging.WARNING, "samekey"):
        world.serve(Sweeper(world.engine.engine).run_once)
    assert Counter(event.name for event in heard) == {"zombie_key": 2, "reconcile.scheduled": 1}
    assert f"The lease of operation {record.id} ran out" in caplog.text
    assert record.key not in caplog.text


@whole
def test_two_sweepers_in_two_processes_move_each_record_once(world: World) -> None:
    records = [world.claim(at=-HOUR) for _ in range(120)]
    with Racers(2) as racers:
        moved = racers.race(nodes.sweep, world.url, 7)
        racers.race(nodes.leave)
    assert Counter(moved[0] + moved[1]) == {record.id: 1 for record in records}
    assert world.count("audit", "actor = 'sweeper'") == 120
    assert world.count("keys", "state = 'unknown'") == 120


def test_a_sweeper_passes_by_what_another_holds(pg: World) -> None:
    """A row that is locked is skipped, and a claim on another key goes through meanwhile."""
    held, free = pg.claim(at=-HOUR), pg.claim(at=-HOUR)
    with psycopg.connect(pg.url) as other:
        other.execute("select from samekey.keys where id = %s for update", [held.id])
        assert pg.serve(Sweeper(pg.engine.engine).run_once) == 1
        assert pg.states([held, free]) == ["in_progress", "unknown"]
    assert pg.serve(Sweeper(pg.engine.engine).run_once) == 1


def test_no_claim_waits_for_an_open_sweep(pg: World) -> None:
    """The transaction of a sweep is open, its rows changed but not committed: other keys do not notice."""
    for _ in range(20):
        pg.claim(at=-HOUR)
    session = pg.engine.engine.drivers.sync.open()
    from samekey.drivers.run import run_in

    assert len(run_in(session, pg.upkeep.sweep(batch=100))) == 20
    engine, done = Idempotency(pg.url, timeout=30), threading.Event()
    claim = claim_of("another", Mode.LEASED, MINUTE, DAY, "acme", "POST /")

    def request() -> None:
        if isinstance(
            run(engine.engine.drivers.sync, lambda: engine.engine.keys.claim(claim, ietf())), Execute
        ):
            done.set()

    thread = threading.Thread(target=request)
    thread.start()
    thread.join(30)
    assert done.is_set()
    session.rollback()
    engine.close()


def test_phased_work_without_an_input_that_a_provider_speaks_of_holds_nobody_up(world: World) -> None:
    """It is not free; and the leases of others are swept."""
    strange = world.claim(mode=Mode.PHASED, at=-DAY)
    other = world.claim(at=-DAY)
    world.sql("update {keys} set disputed = 1 where id = ?", strange.id)
    world.run(lambda: world.upkeep.sweep(batch=10, now=world.now))
    assert world.read(strange).state is State.UNKNOWN
    assert world.read(other).state is State.UNKNOWN


@pytest.mark.parametrize("column", ["after_expiry", "ttl_from"])
def test_one_record_of_a_newer_version_keeps_nobody_from_the_others(lite: World, column: str) -> None:
    """It is written as this version never would, so the table's own checks are set aside."""
    newer, record = lite.claim(at=-HOUR), lite.claim(at=-HOUR)
    connection = sqlite3.connect(lite.url.removeprefix("sqlite:///"))
    connection.execute("pragma ignore_check_constraints = on")
    with connection:
        connection.execute(f"update samekey_keys set {column} = 'archive' where id = ?", (newer.id,))
    connection.close()
    assert lite.serve(Sweeper(lite.engine.engine).run_once) == 1
    assert lite.read(record).state == "unknown"


@pytest.mark.parametrize("column", ["after_expiry", "ttl_from"])
def test_the_completer_passes_by_what_a_newer_version_wrote(lite: World, column: str) -> None:
    newer, record = lite.phased(at=-HOUR), lite.phased(at=-HOUR)
    connection = sqlite3.connect(lite.url.removeprefix("sqlite:///"))
    connection.execute("pragma ignore_check_constraints = on")
    with connection:
        connection.execute(f"update samekey_keys set {column} = 'archive' where id = ?", (newer.id,))
    connection.close()
    told: list[CorruptRecord] = []
    taken = lite.run(
        lambda: lite.phases.take_abandoned("token", ["ride/1"], lease_ms=MINUTE, batch=10, tell=told.append)
    )
    assert [one.id for one in taken] == [record.id] and len(told) == 1
