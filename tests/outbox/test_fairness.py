"""Nothing that hangs, and nobody's backlog, keeps the others waiting: kinds and tenants share the places."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy
from samekey import Backoff, JobContext
from samekey.core.claim import scope_part
from samekey.core.program import Program
from samekey.drivers.run import run
from samekey.errors import StoreUnavailable
from samekey.workers import outbox as outbox_module
from samekey.workers.outbox import OutboxWorker
from samekey.workers.places import Places
from samekey.workers.service import Services, WorkerService
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.world import NO_PAUSE, Outbox

COLUMNS = "operation_id, scope, key, payload, answers, state, attempts, created_at"


@contextlib.contextmanager
def serving(outbox: Outbox, **options: Any) -> Iterator[WorkerService]:
    """A worker service in the test's own loop, with nothing but the outbox in it."""
    chosen = Services(
        completer=False, sweeper=False, reaper=False, reconciler=False, grace=timedelta(0), **options
    )
    service = WorkerService(outbox.idempotency.engine, chosen)
    running = outbox.loop.start(service.run(handle_signals=False))
    try:
        yield service
    finally:
        outbox.loop.loop.call_soon_threadsafe(service.stop)
        running.result(20)


def crowd(outbox: Outbox, name: str, count: int, *, tenants: int = 1, due: int = 0) -> None:
    """Jobs like the one that is there, due before any other."""
    outbox.place(name)
    for number in range(count - 1):
        tenant = scope_part("ann") if tenants == 1 else scope_part(f"t{number % tenants}")
        outbox.ask(
            f"insert into {{jobs}} (id, name, tenant, due_at, {COLUMNS}) select ?, name, ?, ?, {COLUMNS} "
            "from {jobs} where name = ? limit 1",
            *(f"{name}{number}", tenant, due, name),
        )
    outbox.ask("update {jobs} set due_at = ? where name = ?", due, name)


class Hung:
    """A job that hangs until it is let go."""

    def __init__(self, outbox: Outbox, name: str, kind: str, **options: Any) -> None:
        self.begun: list[str] = []
        self._outbox = outbox
        self._gates: list[asyncio.Event] = []
        self._gate = threading.Event()

        async def hang(job: JobContext, _: Any) -> None:
            self.begun.append(job.id)
            gate = asyncio.Event()
            self._gates.append(gate)
            await gate.wait()

        def hang_sync(job: JobContext, _: Any) -> None:
            self.begun.append(job.id)
            self._gate.wait(60)

        outbox.idempotency.job(name, **options)(hang if kind == "async" else hang_sync)

    def release(self) -> None:
        self._gate.set()
        for gate in self._gates:
            self._outbox.loop.loop.call_soon_threadsafe(gate.set)


def is_done(outbox: Outbox, name: str) -> Callable[[], bool]:
    return lambda: outbox.ask("select state from {jobs} where name = ?", name) == [("done",)]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_hundred_hanging_jobs_and_a_suspect_leave_a_place_to_an_ordinary_one(
    outbox: Outbox, kind: str
) -> None:
    """It is done while every one of them still hangs, in a worker with ten places, and begun within a second:
    by the store's clock, and but for this machine's own pauses, which is why there are a few of them."""
    hung, suspect = Hung(outbox, "hung", kind), Hung(outbox, "suspect", "async")
    outbox.idempotency.job("ordinary")(lambda job, payload: payload)
    outbox.place("suspect")
    for _ in range(2):
        outbox.make_due()
        assert len(outbox.take()) == 1  # by workers that died while they ran it
    crowd(outbox, "hung", 100)
    outbox.make_due()
    try:
        with serving(outbox, concurrency=10):
            wait_until(lambda: len(hung.begun) == 7 and suspect.begun)
            for _ in range(5):
                outbox.place("ordinary")
                wait_until(lambda: {job.state for job in outbox.jobs() if job.name == "ordinary"} == {"done"})
            waited = outbox.ask("select run_at - created_at from {jobs} where name = 'ordinary'")
            assert min(waited)[0] < 1000, waited
            assert (len(hung.begun), len(suspect.begun)) == (7, 1)
            hung.release()
    finally:
        hung.release()
        suspect.release()


def test_two_kinds_that_hang_leave_a_place_to_a_third(outbox: Outbox) -> None:
    first, second = Hung(outbox, "first", "async"), Hung(outbox, "second", "async")
    outbox.idempotency.job("ordinary")(lambda job, payload: payload)
    crowd(outbox, "first", 30, tenants=30)
    with serving(outbox, concurrency=10):
        wait_until(lambda: len(first.begun) == 8)
        crowd(outbox, "second", 30, tenants=30)
        wait_until(lambda: len(second.begun) == 1)
        outbox.place("ordinary")
        wait_until(is_done(outbox, "ordinary"))
        assert (len(first.begun), len(second.begun)) == (8, 1)


def test_a_tenant_whose_jobs_hang_leaves_a_place_to_another_of_the_same_kind(outbox: Outbox) -> None:
    begun: list[str] = []

    @outbox.idempotency.job("job")
    async def job(job: JobContext, _: Any) -> None:
        begun.append(job.tenant)
        if job.id != "other":
            await asyncio.Event().wait()

    crowd(outbox, "job", 30)
    with serving(outbox, concurrency=10):
        wait_until(lambda: len(begun) == 7)
        outbox.ask(
            f"insert into {{jobs}} (id, name, tenant, due_at, {COLUMNS}) "
            f"select 'other', name, ?, 1, {COLUMNS} from {{jobs}} where name = 'job' limit 1",
            scope_part("bob"),
        )
        wait_until(lambda: outbox.ask("select state from {jobs} where id = 'other'") == [("done",)])
        assert len(begun) == 8


def test_sync_jobs_that_hang_never_hold_more_threads_than_there_are_places(outbox: Outbox) -> None:
    """Each is let go of after its time, and its thread keeps its place. That is said, and to be seen."""
    hung = Hung(outbox, "hung", "sync", timeout=0.05, backoff=NO_PAUSE, max_attempts=100)
    told: list[Any] = []
    outbox.idempotency.events.subscribe(told.append)
    crowd(outbox, "hung", 30)
    try:
        with serving(outbox, concurrency=4) as service:
            wait_until(lambda: not service.healthy and "hang" in str(service.troubles))
            # A thread may be let go of before it has come to its first line.
            wait_until(lambda: sum(service.hanging.values()) == len(hung.begun))
            assert sum(t.name.startswith("job hung") for t in threading.enumerate()) == len(hung.begun) <= 4
            assert {event.facts["service"] for event in told if event.name == "worker.hanging"} == {"outbox"}
            outbox.idempotency.job("ordinary")(lambda job, payload: payload)
            outbox.place("ordinary")
            wait_until(is_done(outbox, "ordinary"))
            hung.release()
            wait_until(lambda: service.healthy, 30)
    finally:
        hung.release()


def test_a_retry_is_not_slept_through(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker looks when a job has ended, so it knows when to try again; polling is as good as off."""
    from samekey.workers import wake

    monkeypatch.setattr(wake.Polling, "listening", True)
    monkeypatch.setattr(wake, "SAFETY_POLL", 3600.0)
    monkeypatch.setattr("random.random", lambda: 0.99)
    backoff = Backoff(first=timedelta(seconds=0.3), longest=timedelta(seconds=0.3))

    @outbox.idempotency.job("flaky", backoff=backoff, max_attempts=3)
    async def flaky(job: JobContext, _: Any) -> None:
        await asyncio.sleep(0.1)  # a look comes and goes while it runs
        if job.attempts < 3:
            raise ConnectionError

    outbox.place("flaky")
    with serving(outbox, lease=timedelta(hours=1)):
        wait_until(is_done(outbox, "flaky"), 30)


def test_a_worker_does_not_take_what_it_is_running(outbox: Outbox) -> None:
    """Its lease ran out unseen: it is still at it, and renews the lease as soon as it can."""
    begun: list[str] = []
    gate = asyncio.Event()

    @outbox.idempotency.job("slow")
    async def slow(job: JobContext, _: Any) -> None:
        begun.append(job.id)
        await gate.wait()

    outbox.place("slow")

    async def story() -> None:
        worker = outbox.worker()
        assert await worker.run_once() == 1
        for _ in range(3):
            await asyncio.to_thread(outbox.make_due)
            assert await worker.run_once() == 0
        gate.set()
        await worker.drain()

    outbox.run(asyncio.wait_for(story(), 30))
    assert (len(begun), outbox.job().state, outbox.job().attempts) == (1, "done", 1)


def test_after_an_outage_lapsed_leases_are_left_to_those_who_live(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could renew one meanwhile, so a lease that ran out is no sign of death. New jobs are taken."""
    outbox.idempotency.job("job")(lambda job, _: None)
    outbox.place("job")
    [held] = outbox.take()
    worker = outbox.worker(lease=timedelta(seconds=60))
    store = Clock(outbox)

    def away() -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(outbox.idempotency.engine.outbox, "due", away)
        with pytest.raises(StoreUnavailable):
            outbox.run(worker.run_once())
    outbox.place("job")
    store.lapse(held.id, ago_ms=1)
    outbox.run(worker_round(worker))
    assert sorted(job.state for job in outbox.jobs()) == ["done", "live"]
    store.lapse(held.id, ago_ms=200_000)
    outbox.run(worker_round(worker))
    assert {job.state for job in outbox.jobs()} == {"done"}, "long before the outage: nobody lives there"


def test_a_worker_without_room_hears_of_an_outage_by_its_own_leases(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not look while it is full, and is the first to look when the outage is over."""
    go_on, away = threading.Event(), threading.Event()

    @outbox.idempotency.job("busy")
    async def busy(_job: JobContext, _payload: Any) -> None:
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    outbox.idempotency.job("job")(lambda job, _: None)
    outbox.place("job")
    [held] = outbox.take()
    outbox.place("busy")
    worker = outbox.worker(lease=timedelta(seconds=60), concurrency=1)
    outbox.run(worker.run_once())
    assert not worker.has_room
    renew, asked = worker._keeper._renew, threading.Event()

    def refuse(leases: Any) -> Any:
        asked.set()
        if away.is_set():
            raise StoreUnavailable("away")
        return renew(leases)

    monkeypatch.setattr(worker._keeper, "_renew", refuse)
    away.set()
    for watch in worker._keeper._watched.values():  # its next renewal is due
        watch.due = 0
    with worker._keeper._wake:
        worker._keeper._wake.notify()
    assert asked.wait(20)
    away.clear()
    Clock(outbox).lapse(held.id, ago_ms=1)
    go_on.set()
    outbox.run(worker_round(worker))
    outbox.run(worker_round(worker))
    assert {job.name: job.state for job in outbox.jobs()} == {"busy": "done", "job": "live"}


def test_a_worker_that_has_just_begun_leaves_what_others_hold(outbox: Outbox) -> None:
    outbox.idempotency.job("job")(lambda job, _: None)
    outbox.place("job")
    [held] = outbox.take()
    outbox.place("job")
    Clock(outbox).lapse(held.id, ago_ms=500_000)
    worker = outbox.worker(lease=timedelta(seconds=60), new=True)
    outbox.run(worker_round(worker))
    assert sorted(job.state for job in outbox.jobs()) == ["done", "live"], "the store may have been away"
    Clock(outbox).lapse(held.id, ago_ms=601_000)
    outbox.run(worker_round(worker))
    assert {job.state for job in outbox.jobs()} == {"done"}, "nobody has renewed it for ten leases"


class Clock:
    """The store's own, and this process's, which a test moves."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def lapse(self, job_id: str, *, ago_ms: int) -> None:
        engine = self._outbox.idempotency.engine

        def clock() -> Program[int]:
            rows = yield engine.queries.statement("clock", None)
            assert isinstance(rows[0][0], int)
            return rows[0][0]

        now = run(engine.drivers.sync, clock)
        self._outbox.ask("update {jobs} set due_at = ? where id = ?", now - ago_ms, job_id)


async def worker_round(worker: OutboxWorker) -> None:
    await worker.run_once()
    await worker.drain()


def test_outages_that_come_again_and_again_do_not_put_a_dead_workers_job_off_for_good(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than once for each lease. A lease of good weather in sum tells the living from the dead."""
    outbox.idempotency.job("job")(lambda job, _: None)
    outbox.place("job")
    [held] = outbox.take()
    clock = Clock(outbox)
    monkeypatch.setattr(outbox_module, "time", clock)
    worker = outbox.worker(lease=timedelta(seconds=30))
    due, began = outbox.idempotency.engine.outbox.due, clock.seconds

    def away() -> Any:
        raise StoreUnavailable("away")

    def look(answer: Any = due) -> None:
        clock.lapse(held.id, ago_ms=int((clock.seconds - began) * 1000) + 1)
        monkeypatch.setattr(outbox.idempotency.engine.outbox, "due", answer)
        outbox.run(worker_round(worker))

    calm = 0
    while outbox.job().state == "live" and calm < 200:
        with pytest.raises(StoreUnavailable):
            look(away)
        for _ in range(20):
            clock.seconds += 1
            look()
            calm += 1
            if outbox.job().state != "live":
                break
    assert outbox.job().state == "done"
    assert calm >= 30, "whoever lives had a lease of good weather to say so"


@pytest.mark.parametrize("store", stores("postgres", "mariadb", first=1))
def test_a_blip_of_the_database_makes_no_suspects(
    request: pytest.FixtureRequest, store: str, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    """Every lease runs out while nobody can renew one. Nothing is run twice: who lives renews it again."""
    url: str = request.getfixturevalue(f"{store}_url")
    with FaultProxy.before(url) as proxy:
        outbox = Outbox(proxy.url_for(url), loop, threads, {"timeout": 2})
        direct = Outbox(url, loop, threads)
        try:
            hung = Hung(outbox, "hung", "async")
            direct.idempotency.job("hung")(lambda job, _: None)
            crowd(direct, "hung", 16, tenants=16)
            with serving(outbox, concurrency=20, lease=timedelta(seconds=1)):
                wait_until(lambda: len(hung.begun) == 16)
                proxy.refuse()
                proxy.cut_all()
                wait_until(lambda: all(ms <= 0 for ms in due_of(direct)))
                proxy.accept()
                wait_until(lambda: all(ms > 0 for ms in due_of(direct)))
                hung.release()
                wait_until(lambda: {job.state for job in direct.jobs()} == {"done"})
            assert len(hung.begun) == 16
            assert {job.attempts for job in direct.jobs()} == {1}
        finally:
            direct.close()
            outbox.close()


def test_what_ran_out_in_a_stall_of_the_database_is_left_to_its_holder(
    postgres_url: str, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    """A stall is no error: the look is asked in it and answered at its end, before the holder can renew."""
    with FaultProxy.before(postgres_url) as proxy:
        outbox = Outbox(proxy.url_for(postgres_url), loop, threads)
        direct = Outbox(postgres_url, loop, threads)
        try:
            for each in (outbox, direct):
                each.idempotency.job("hung")(lambda job, _: None)
            direct.place("hung")
            worker = outbox.worker(lease=timedelta(seconds=1))
            outbox.run(worker.run_once())  # which sees that all is well
            outbox.run(worker.drain())
            direct.place("hung")
            (held,) = direct.take(lease_ms=1000)
            proxy.stall()
            look = loop.start(worker.run_once())
            wait_until(lambda: due_of(direct)[-1] < -600)
            proxy.flow()
            assert look.result(30) == 0 and worker.took == 0
            assert [job.attempt for job in direct.jobs() if job.state == "live"] == [held.attempt]
        finally:
            direct.close()
            outbox.close()


def due_of(outbox: Outbox) -> list[int]:
    """For how long each job is still held."""
    clock = {
        "postgres": "(extract(epoch from clock_timestamp()) * 1000)::bigint",
        "mysql": "timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(3)) div 1000",
    }[outbox.dialect]
    return [row[0] for row in outbox.ask(f"select due_at - {clock} from {{jobs}} order by created_at")]


# ------------------------------------------------------------------ the places themselves


def fill(places: Places, kind: str, tenant: str | None = None) -> int:
    """Takes all that it gets; each of a new tenant unless one is named."""
    count = 0
    while (room := places.room(kind)).places and tenant not in room.full_tenants:
        places.enter(kind, tenant or f"tenant {count}")
        count += 1
    return count


@pytest.mark.parametrize("size", [2, 3, 5, 10, 37, 100])
def test_no_kind_takes_the_last_place_and_none_is_ever_exceeded(size: int) -> None:
    places = Places(size)
    assert 1 <= fill(places, "first") <= size - 1
    assert places.room("other").places >= 1
    for number in range(size + 5):
        fill(places, f"kind {number}")
    assert places.free == 0


@pytest.mark.parametrize("size", [5, 10, 37, 100])
def test_no_tenant_takes_the_last_place_of_its_kind(size: int) -> None:
    places = Places(size)
    held = fill(places, "job", "ann")
    assert held >= size // 2
    assert places.room("job").places >= 1 and places.room("job").full_tenants == ("ann",)
    for _ in range(held):
        places.leave("job", "ann")
    assert places.free == size and places.room("job").full_tenants == ()


def test_one_place_is_one_place() -> None:
    places = Places(1)
    assert places.room("a").places == 1
    places.enter("a", "t")
    assert places.room("a").places == places.room("b").places == 0
