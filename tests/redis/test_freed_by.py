"""A provider's "no" frees one attempt on a key store, however often the event comes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from lab.servers.dynamodb import CREDENTIALS
from lab.servers.dynamodb import find_server as find_dynamodb
from lab.servers.redis_server import find_server as find_redis
from samekey import Idempotency, NotExecuted, current_operation
from samekey.core import placing
from samekey.engine.evidence.said import Resolution
from samekey.errors import SamekeyError
from tests.dynamodb.conftest import migrated


@pytest.fixture(params=["redis", "dynamodb"])
def idempotency(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Idempotency]:
    if request.param == "redis":
        with find_redis() as redis:
            node = Idempotency(redis.url)
            yield node
            node.close()
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with find_dynamodb() as dynamodb:
        node = Idempotency(migrated(dynamodb.url()))
        yield node
        node.close()


def test_an_event_that_comes_again_frees_no_second_attempt(
    idempotency: Idempotency, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "CLOCK_TOLERANCE_MS", 0)  # else the test would have to wait for as long
    keys: list[str] = []

    def lose() -> None:
        operation = current_operation()
        keys.append(operation.downstream_key())
        operation.source, operation.provider_id = "psp", f"ch_{len(keys)}"
        raise TimeoutError("nobody knows")

    def attempt() -> None:
        with pytest.raises((TimeoutError, SamekeyError)):
            idempotency.once(tenant="acme", key="k", payload={}, run=lose, name="pay")

    ahead = datetime.now(UTC) + timedelta(hours=1)  # by a provider's clock that is wrong

    def told(event_id: str) -> Resolution:
        return idempotency.resolve(
            NotExecuted,
            source="psp",
            event_id=event_id,
            tenant="acme",
            occurred_at=ahead,
            verify=lambda: True,
            provider_id=f"ch_{len(keys)}",
        )

    attempt()
    assert told("e1") is Resolution.RESOLVED
    attempt()
    assert told("e1") is Resolution.DUPLICATE
    attempt()
    assert len(keys) == 2
    assert told("e2") is Resolution.RESOLVED
    attempt()
    assert told("e1") is told("e2") is Resolution.DUPLICATE
    assert len(keys) == 3
