"""What no attempt can record is not tried again: each attempt would call the provider once more."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import Response
from samekey.engine.jobs import LARGEST_PAYLOAD, JobContext
from tests.outbox.world import NO_PAUSE, Act, Outbox, order


@pytest.fixture
def calls(outbox: Outbox) -> list[str]:
    made: list[str] = []

    @outbox.idempotency.job("charge", max_attempts=4, backoff=NO_PAUSE)
    async def charge(job: JobContext, payload: Any) -> Response:
        made.append(job.key)
        job.provider_id = "ch_1"
        job.enqueue("report", {"pdf": "x" * payload["size"]})
        return Response(201, {})

    @outbox.idempotency.job("report")
    async def report(job: JobContext, payload: Any) -> None:
        pass

    return made


def test_a_job_after_it_that_is_too_large_does_not_have_the_provider_called_again(
    outbox: Outbox, calls: list[str]
) -> None:
    outbox.place("charge", {"size": LARGEST_PAYLOAD})
    outbox.work(rounds=5)
    assert len(calls) == 1
    (job,) = outbox.jobs()
    assert job.state == "dead" and "Keep what is large elsewhere" in (job.error or "")


def test_one_that_fits_is_stored(outbox: Outbox, calls: list[str]) -> None:
    outbox.place("charge", {"size": LARGEST_PAYLOAD - 1000})
    outbox.work(rounds=3)
    assert len(calls) == 1 and {job.state for job in outbox.jobs()} == {"done"}


def test_a_handler_is_told_at_once(outbox: Outbox, calls: list[str]) -> None:
    large = Act(jobs=(("charge", {"pdf": "x" * LARGEST_PAYLOAD}),))
    got = outbox.client("async", large).send(order("k"))
    assert got.status != 202 and "at most can be stored" in str(got.error)
    assert outbox.jobs() == []
