"""A key that had expired on DynamoDB; and one that is kept for longer."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from samekey import Executed, Idempotency, NotExecuted, OutcomeUnknown, StillUnknown
from samekey.drivers.run import run
from samekey.errors import NotExtended
from tests.chosen import whole

pytestmark = whole


DAY = 86_400_000


@pytest.mark.parametrize("ttl_from", ["completion", "creation"])
def test_the_lookup_is_asked_before_an_expired_key_runs_again(dynamodb_url: str, ttl_from: Any) -> None:
    idempotency = Idempotency(dynamodb_url)
    findings: list[Any] = [StillUnknown, Executed(7, provider_id="ch_1"), NotExecuted]
    ran: list[int] = []
    idempotency.lookup()(lambda _: findings.pop(0))

    def book() -> int:
        ran.append(1)
        return len(ran)

    def once() -> Any:
        return idempotency.once(tenant="acme", key="k", run=book, name="book", ttl_from=ttl_from)

    def expire() -> None:
        tending, driver = idempotency.engine.store.tending, idempotency.engine.drivers.sync
        now = run(driver, idempotency.engine.store.finding.overview).now
        assert run(driver, lambda: tending.reap(batch=10, now=now + 2 * DAY)) == 1

    assert once() == 1
    [first] = run(idempotency.engine.drivers.sync, idempotency.engine.store.finding.find)
    expire()
    with pytest.raises(OutcomeUnknown):
        once()
    assert once() == 7 and once() == 7
    [found] = run(idempotency.engine.drivers.sync, idempotency.engine.store.finding.find)
    assert (found.id, found.life, found.state, found.provider_id) == (first.id, 1, "completed", "ch_1")
    assert found.attempt != first.attempt and found.expires_at >= first.expires_at
    assert ran == [1]
    expire()
    assert once() == 2 and ran == [1, 1] and findings == []
    [second] = run(idempotency.engine.drivers.sync, idempotency.engine.store.finding.find)
    assert (second.life, second.provider_id) == (2, None) and second.id != first.id
    idempotency.close()


def test_retention_is_extended(dynamodb_url: str) -> None:
    idempotency = Idempotency(dynamodb_url)
    ran: list[int] = []

    def once() -> Any:
        return idempotency.once(tenant="acme", key="k", run=lambda: ran.append(1))

    once()
    [first] = run(idempotency.engine.drivers.sync, idempotency.engine.store.finding.find)
    idempotency.extend(first.id, by=timedelta(days=30), reason="an audit")
    [found] = run(idempotency.engine.drivers.sync, idempotency.engine.store.finding.find)
    assert found == dataclasses.replace(first, expires_at=first.expires_at + 30 * DAY)
    tending = idempotency.engine.store.tending
    assert (
        run(idempotency.engine.drivers.sync, lambda: tending.reap(batch=10, now=first.expires_at + DAY)) == 0
    )
    once()
    assert ran == [1]
    with pytest.raises(NotExtended):
        idempotency.extend(first.id, by=timedelta(days=4_000_000), reason="for ever")
    idempotency.close()
