"""What came of a job is judged in three parts, and recorded whatever is away meanwhile: the call is never
blamed for its record, nor repeated for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy
from samekey import JobContext
from samekey.drivers.run import run_async
from samekey.errors import EscapedTransaction, LeaseLost, NotSerialisable, StoreUnavailable
from samekey.workers import performing
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.test_fairness import serving
from tests.outbox.world import NO_PAUSE, Outbox

KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


def declare(outbox: Outbox, kind: str, act: Callable[[JobContext], Any], **options: Any) -> None:
    def job(job: JobContext, _: Any) -> Any:
        return act(job)

    async def job_async(job: JobContext, _: Any) -> Any:
        return act(job)

    outbox.idempotency.job("charge", **options)(job if kind == "sync" else job_async)


class Safe:
    """An encryption service that can be away."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = 0

    def encrypt(self, data: bytes) -> bytes:
        self.asked += 1
        if self.away:
            self.away -= 1
            raise ConnectionError("the encryption service is away")
        return data[::-1]

    def decrypt(self, data: bytes) -> bytes:
        return data[::-1]


@KINDS
@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
def test_a_record_that_fails_by_anything_is_made_again_and_the_provider_is_called_once(
    request: pytest.FixtureRequest,
    store: str,
    kind: str,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever encrypts the answer is away for longer than a few tries: no error of the store."""
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01, 0.01))
    safe, calls = Safe(), list[str]()
    outbox = Outbox(request.getfixturevalue(f"{store}_url"), loop, threads, {"encryption": safe})

    def charge(job: JobContext) -> dict[str, int]:
        calls.append(job.key)
        job.provider_id = "ch_1"
        safe.away = 12
        return {"ok": 1}

    try:
        declare(outbox, kind, charge, max_attempts=3, backoff=NO_PAUSE)
        outbox.place("charge")
        outbox.work()
        job = outbox.job()
        assert (len(calls), safe.away, job.state, job.provider_id) == (1, 0, "done", "ch_1")
        assert outbox.states() == [("completed", None)]
    finally:
        outbox.close()


@KINDS
@pytest.mark.parametrize("store", stores("postgres", "mariadb", first=1))
def test_a_store_that_stalls_is_waited_for_and_the_provider_is_called_once(
    request: pytest.FixtureRequest, store: str, kind: str, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    """Two charges are made, one with a write of its own; then the store says nothing for longer than the jobs
    may take. Neither is called again, and neither is a dead letter, though this was the only attempt."""
    url: str = request.getfixturevalue(f"{store}_url")
    with FaultProxy.before(url) as proxy:
        outbox = Outbox(proxy.url_for(url), loop, threads)
        calls: list[str] = []

        def stall() -> None:
            proxy.stall()
            threading.Timer(3.5, proxy.flow).start()

        both, both_async = threading.Barrier(2, stall), asyncio.Barrier(2)

        def charge(job: JobContext, writes: bool) -> None:
            calls.append(job.id)
            if writes:
                job.write(paid)
            both.wait(30)

        async def charge_async(job: JobContext, writes: bool) -> None:
            calls.append(job.id)
            if writes:
                job.write(paid_async)
            if await both_async.wait() == 0:
                stall()

        def paid(connection: Any) -> None:
            connection.execute("insert into orders values ('paid')")

        async def paid_async(connection: Any) -> None:
            await connection.execute("insert into orders values ('paid')")

        try:
            outbox.idempotency.job("charge", max_attempts=1, timeout=2.5)(
                charge if kind == "sync" else charge_async
            )
            outbox.place("charge", payload=True)
            outbox.place("charge", payload=False)
            worker = outbox.work()
            assert [(job.state, job.error) for job in outbox.jobs()] == [("done", None)] * 2
            assert (len(calls), sorted(outbox.orders())) == (2, ["paid", "written", "written"])
            assert not worker.slots.apart.hanging
        finally:
            proxy.flow()
            outbox.close()


@KINDS
def test_a_record_that_cannot_be_made_is_not_told_as_the_functions_failure(
    outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no record today")

    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01,))
    monkeypatch.setattr(outbox.idempotency.engine.outbox, "finish", broken)
    declare(outbox, kind, lambda job: None, max_attempts=1, timeout=3)
    outbox.place("charge")
    outbox.work(outbox.worker(lease=timedelta(seconds=0.2)))
    assert outbox.job().error == (
        "The job was done, but that could not be recorded: ValueError: no record today"
    )


@KINDS
@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("of another operation"),
        NotSerialisable("of another operation"),
        EscapedTransaction("of another operation"),
        StoreUnavailable("another store"),
        TimeoutError(),
        TimeoutError("of its own"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}".strip(),
)
def test_whatever_the_function_raises_is_the_functions_failure(
    outbox: Outbox, kind: str, error: Exception
) -> None:
    """A job may use samekey itself: its errors say nothing of this worker's lease, record or time."""
    calls: list[int] = []

    def charge(job: JobContext) -> None:
        calls.append(job.attempts)
        if job.attempts == 1:
            raise error

    declare(outbox, kind, charge, max_attempts=2, backoff=NO_PAUSE)
    outbox.place("charge")
    outbox.work()
    job = outbox.job()
    assert (job.state, job.attempts, job.attempt) == ("live", 1, None)
    assert job.error == f"{type(error).__name__}: {error}"
    outbox.work()
    assert (calls, outbox.job().state) == ([1, 2], "done")


@KINDS
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("store", stores("postgres", "mariadb", first=1))
def test_a_failure_is_recorded_when_the_store_is_back_with_its_reason_and_the_providers_id(
    request: pytest.FixtureRequest,
    store: str,
    kind: str,
    attempts: int,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is away when the function fails, for longer than a statement is tried."""
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.05,))
    url: str = request.getfixturevalue(f"{store}_url")
    failed, tried = threading.Event(), threading.Semaphore(0)
    with FaultProxy.before(url) as proxy:
        outbox = Outbox(proxy.url_for(url), loop, threads, {"timeout": 2})
        direct = Outbox(url, loop, threads)

        async def counted(*args: Any) -> Any:
            tried.release()
            return await run_async(*args)

        monkeypatch.setattr(performing, "run_async", counted)

        def charge(job: JobContext) -> None:
            if job.attempts > 1:
                return
            job.provider_id = "ch_77"
            proxy.refuse()
            proxy.cut_all()
            failed.set()
            raise RuntimeError("card declined")

        try:
            declare(outbox, kind, charge, max_attempts=attempts, backoff=NO_PAUSE)
            declare(direct, kind, charge)
            direct.place("charge")
            with serving(outbox, lease=timedelta(seconds=20)):
                assert failed.wait(20)
                for _ in range(3):  # more often than once
                    assert tried.acquire(timeout=20)
                proxy.accept()
                wait_until(lambda: direct.job().state != "live", 30)
            job = direct.job()
            made = "samekey.made" if store == "postgres" else "samekey_made"  # by runs before the last
            former = direct.ask(f"select provider_id from {made}")
            assert (job.attempts, job.provider_id, former) == (
                (1, "ch_77", []) if attempts == 1 else (2, None, [("ch_77",)])
            )
            assert job.error == ("RuntimeError: card declined" if attempts == 1 else None)
            assert direct.ask("select silences from {jobs}") == [(0,)]
            if attempts == 1:
                assert direct.ask("select state, provider_id from {keys}") == [("dead_letter", "ch_77")]
        finally:
            proxy.accept()
            direct.close()
            outbox.close()


@KINDS
@pytest.mark.parametrize("store", stores("postgres", "mariadb", first=1))
def test_a_result_outlives_an_outage_of_many_leases(
    request: pytest.FixtureRequest,
    store: str,
    kind: str,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its worker lives and knows it; nobody else can take the job while the store is away."""
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.05,))
    url: str = request.getfixturevalue(f"{store}_url")
    calls: list[float] = []
    with FaultProxy.before(url) as proxy:
        outbox = Outbox(proxy.url_for(url), loop, threads, {"timeout": 2})
        direct = Outbox(url, loop, threads)

        def charge(job: JobContext) -> None:
            calls.append(time.monotonic())
            job.provider_id = "ch_77"
            proxy.refuse()
            proxy.cut_all()

        try:
            declare(outbox, kind, charge, max_attempts=1, timeout=2)
            declare(direct, kind, charge)
            direct.place("charge")
            with serving(outbox, lease=timedelta(seconds=1)):
                # Its time-out, and a lease each for the result and for the failure to record it, are over.
                wait_until(lambda: bool(calls) and time.monotonic() > calls[0] + 5, 30)
                proxy.accept()
                wait_until(lambda: direct.job().state != "live", 30)
            job = direct.job()
            assert (job.state, job.provider_id, len(calls)) == ("done", "ch_77", 1)
            assert direct.ask("select state from {keys}") == [("completed",)]
        finally:
            proxy.accept()
            direct.close()
            outbox.close()


@KINDS
def test_a_write_that_is_refused_at_commit_ends_its_attempt_at_once(
    postgres_outbox: Outbox, kind: str
) -> None:
    """A constraint that is checked at COMMIT, as Django's foreign keys are, will last, and is the write's."""
    outbox, writes = postgres_outbox, list[int]()
    outbox.ask("create table parents (id int primary key)")
    outbox.ask("create table children (parent int references parents deferrable initially deferred)")

    def write(connection: Any) -> Any:
        writes.append(1)
        return connection.execute("insert into children values (99)")

    def charge(job: JobContext) -> None:
        job.write(write)

    declare(outbox, kind, charge, max_attempts=1)
    outbox.place("charge")
    outbox.work()
    job = outbox.job()
    assert len(writes) == 1, "it is not tried for as long as the job can be kept"
    assert job.state == "dead" and job.error is not None
    assert "a write of its own failed" in job.error and "children_parent_fkey" in job.error


@KINDS
def test_a_write_that_meets_a_lock_is_made_again_and_the_call_is_not(
    outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01,) * 4)
    calls, locked = list[int](), [RuntimeError("canceling statement due to lock timeout")] * 3

    def write(_: Any) -> None:
        if locked:
            raise locked.pop()

    def charge(job: JobContext) -> None:
        calls.append(job.attempts)
        job.write(write)

    declare(outbox, kind, charge, max_attempts=2)
    outbox.place("charge")
    outbox.work()
    assert (calls, outbox.job().state) == ([1], "done")


@pytest.mark.usefixtures("unhurried")
def test_a_job_that_is_given_back_at_the_stop_keeps_what_the_provider_made(outbox: Outbox) -> None:
    begun = asyncio.Event()

    @outbox.idempotency.job("charge")
    async def charge(job: JobContext, _: Any) -> None:
        job.provider_id = "ch_5"
        begun.set()
        await asyncio.Event().wait()

    outbox.place("charge")

    async def story() -> None:
        worker = outbox.worker(grace=timedelta(0))
        await worker.run_once()
        await begun.wait()
        await worker.stop()

    outbox.run(asyncio.wait_for(story(), 30))
    job = outbox.job()
    assert (job.state, job.attempts, job.attempt, job.provider_id) == ("live", 0, None, "ch_5")
