"""A job that cannot be stopped and ends well after its time-out: that is heard, and it is its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from samekey import JobContext
from samekey.drivers.run import run
from samekey.workers import apart
from samekey.workers.outbox import OutboxWorker
from tests.outbox.world import NO_PAUSE, Outbox


@pytest.mark.parametrize("attempts", [1, 5])
def test_its_result_counts(outbox: Outbox, attempts: int) -> None:
    go_on, calls = threading.Event(), []
    outbox.idempotency.job("receipt")(lambda _job, _payload: None)

    def charge_sync(job: JobContext, _payload: Any) -> dict[str, int]:
        calls.append(1)
        assert go_on.wait(60)
        job.provider_id = "ch_1"
        job.enqueue("receipt", {}, delay=3600)
        return {"ok": 1}

    outbox.idempotency.job("charge", max_attempts=attempts, timeout=0.3, backoff=NO_PAUSE)(charge_sync)
    outbox.place("charge")
    worker = outbox.worker()

    async def story() -> None:
        await worker.run_once()
        await worker.drain()
        go_on.set()
        async with asyncio.timeout(60):
            while {job.name: job.state for job in outbox.jobs()}["charge"] != "done":
                await asyncio.sleep(0.02)

    outbox.run(story())
    found = {job.name: job for job in outbox.jobs()}
    assert (found["charge"].provider_id, found["receipt"].state, len(calls)) == ("ch_1", "live", 1)
    assert [state for state, _ in outbox.states()] == ["completed"]


def test_an_async_job_that_swallows_its_cancellation_is_not_done(outbox: Outbox) -> None:
    """It was interrupted in its call: what it gives then says nothing of it."""

    @outbox.idempotency.job("charge", max_attempts=1, timeout=0.3, backoff=NO_PAUSE)
    async def charge(_job: JobContext, _payload: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    outbox.place("charge")
    outbox.work(outbox.worker())
    assert outbox.job().state == "dead"


def test_one_that_outlives_its_worker_still_holds_the_job(outbox: Outbox) -> None:
    """The worker has stopped and left it its lease: its end is the job's, and nobody calls again."""
    go_on, calls = threading.Event(), []

    def charge_sync(job: JobContext, _payload: Any) -> dict[str, int]:
        calls.append(1)
        assert go_on.wait(60)
        job.provider_id = "ch_1"
        return {"ok": 1}

    outbox.idempotency.job("charge", max_attempts=3, backoff=NO_PAUSE)(charge_sync)
    outbox.place("charge")
    worker = outbox.worker(grace=timedelta(0))

    async def story() -> None:
        await worker.run_once()
        async with asyncio.timeout(60):
            while not calls:
                await asyncio.sleep(0.02)
            await worker.stop()
            go_on.set()
            while worker.slots.running or outbox.job().state == "live":
                await asyncio.sleep(0.02)

    outbox.run(story())
    assert (outbox.job().state, outbox.job().provider_id) == ("done", "ch_1")
    outbox.work()
    assert len(calls) == 1 and [state for state, _ in outbox.states()] == ["completed"]


def test_two_runs_that_have_made_two_objects_are_shown_to_an_operator(outbox: Outbox) -> None:
    """A provider that knows no keys: the second run has ended the job, then the first one comes."""
    go_on = asyncio.Event()

    @outbox.idempotency.job("charge", max_attempts=3, backoff=NO_PAUSE, source="cards")
    async def charge(job: JobContext, _payload: Any) -> dict[str, int]:
        if job.attempts == 1:
            await go_on.wait()
        job.provider_id = f"ch_{job.attempts}"
        return {"ok": 1}

    operation = outbox.place("charge")
    first, second = outbox.worker(), outbox.worker()

    async def story() -> None:
        await first.run_once()
        await asyncio.to_thread(outbox.make_due)
        await second.run_once()
        await second.drain()
        go_on.set()
        await first.drain()

    outbox.run(story())
    assert outbox.job().provider_id == "ch_2"
    tables, engine = outbox.idempotency.engine.store.tables, outbox.idempotency.engine
    shown = run(engine.drivers.sync, lambda: tables.effects.shown(operation))
    assert [(one.provider_id, one.state, one.says) for one in shown] == [("ch_1", "ambiguous", "executed")]


def late_end(
    outbox: Outbox, write: Callable[[Any], None], grace: float = 0.0
) -> tuple[OutboxWorker, threading.Event]:
    """A job whose time is over, whose thread goes on until it is let go, and then has something to write."""
    go_on = threading.Event()

    def charge_sync(job: JobContext, _payload: Any) -> None:
        assert go_on.wait(60)
        job.write(write)

    outbox.idempotency.job("charge", max_attempts=5, timeout=0.1, backoff=NO_PAUSE)(charge_sync)
    outbox.place("charge")
    return outbox.worker(grace=timedelta(seconds=grace)), go_on


async def until(predicate: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not predicate():
            await asyncio.sleep(0.01)


def test_a_late_end_that_is_being_recorded_is_waited_for_at_the_stop(outbox: Outbox) -> None:
    writing, may_write = threading.Event(), threading.Event()

    def write(_connection: Any) -> None:
        writing.set()
        assert may_write.wait(60)

    worker, go_on = late_end(outbox, write, grace=60)

    async def story() -> None:
        await worker.run_once()
        await worker.drain()
        go_on.set()
        await until(writing.is_set)
        threading.Timer(0.3, may_write.set).start()
        await worker.stop()
        assert not worker.slots.running

    outbox.run(story())
    assert outbox.job().state == "done"


def test_a_late_end_that_cannot_be_recorded_is_not_left_in_the_loop(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, may_write = threading.Event(), threading.Event()

    def write(_connection: Any) -> None:
        writing.set()
        assert may_write.wait(60)

    worker, go_on = late_end(outbox, write)

    async def story() -> list[str]:
        await worker.run_once()
        await worker.drain()
        before = asyncio.all_tasks()
        go_on.set()
        await until(writing.is_set)
        monkeypatch.setattr(apart, "FAREWELL", 0.1)
        await worker.stop()
        return [repr(task) for task in asyncio.all_tasks() - before]

    try:
        assert not outbox.run(story())
    finally:
        may_write.set()


def test_what_ends_after_its_worker_has_stopped_is_tried_once(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it, and the loop may end at any time."""
    tries: list[int] = []

    def write(_connection: Any) -> None:
        tries.append(1)
        raise RuntimeError("a lock, say")

    worker, go_on = late_end(outbox, write)

    async def story() -> None:
        await worker.run_once()
        await worker.drain()
        await worker.stop()
        go_on.set()
        await until(lambda: "could not be recorded" in caplog.text)

    outbox.run(story())
    assert len(tries) <= 2  # as who holds the job, and as who comes late
