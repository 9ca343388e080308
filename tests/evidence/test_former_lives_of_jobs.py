"""A deferred key that is used again after its retention: the provider's word about what its first life made
is not about the second one's job, whose downstream key is the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey import Executed, JobContext, Resolution, Response, ietf
from tests.chosen import stores
from tests.evidence.conftest import SQL
from tests.outbox.conftest import loop, threads
from tests.outbox.world import NO_PAUSE, Outbox

__all__ = ["loop", "threads"]

pytestmark = pytest.mark.filterwarnings("ignore:ttl=.* is under an hour")


@pytest.fixture(params=stores(*SQL))
def outbox(request: pytest.FixtureRequest, loop: Any, threads: Any) -> Iterator[Outbox]:
    url = request.getfixturevalue(f"{request.param}_url")
    made = Outbox(url, loop, threads, {"policy": ietf(ttl=timedelta(seconds=1))})
    yield made
    made.close()


def test_a_late_word_about_a_former_lifes_charge_does_not_pay_for_this_one(outbox: Outbox) -> None:
    charges: list[str] = []

    async def charge(job: JobContext, _payload: Any) -> Response:
        charges.append(job.key)
        if len(charges) > 1:
            raise ConnectionError("the provider is away")
        job.provider_id = "ch_1"
        return Response(201, {"charge": "ch_1"})

    outbox.idempotency.job("charge", max_attempts=1, backoff=NO_PAUSE, source="cards")(charge)
    first = outbox.place("charge", {}, key="k")
    outbox.work()
    [(expires_at,)] = outbox.ask("select expires_at from {keys}")
    while time.time() * 1000 <= expires_at:
        time.sleep(0.02)
    assert outbox.place("charge", {}, key="k") != first
    outbox.work(outbox.worker())
    assert len(set(charges)) == 1 and len(charges) == 2
    word = outbox.idempotency.resolve_async(
        Executed(Response(201, {"charge": "ch_1"}), "ch_1"),
        source="cards",
        event_id="updated-1",
        tenant="ann",
        occurred_at=datetime.now(UTC) + timedelta(seconds=1),
        verify=lambda: True,
        downstream_key=charges[0],
    )
    assert outbox.run(word) is Resolution.KEPT  # one object may serve two lives: an operator sees it
    assert outbox.ask("select state, answer_status from {keys}") == [("dead_letter", None)]
