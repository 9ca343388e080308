"""A job that cannot be stopped and ends well after its time-out: that is heard, and it is its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from samekey import JobContext
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
