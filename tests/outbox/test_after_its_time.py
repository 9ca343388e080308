"""A job that cannot be stopped and ends well after its time-out: that is heard, and it is its end."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from samekey import JobContext
from samekey.drivers.run import run
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
            while worker._performer._late or outbox.job().state == "live":
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
