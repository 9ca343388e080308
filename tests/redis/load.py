"""What processes do in the Cluster's tests. Importable by name, because they are spawned."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from examples.provider import ProviderClient
from lab.processes import Turn
from lab.servers.redis import connect
from samekey import (
    Executed,
    Idempotency,
    NotExecuted,
    OutcomeUnknown,
    StillRunning,
    StoreUnavailable,
    current_operation,
)
from samekey.core.claim import call_part, downstream_key, scope_of
from samekey.errors import StoreError

SCOPE = scope_of(call_part("t"))
LEASE = 1.0
"""Seconds. Short, so that what a dead master took along is found out soon."""
PATIENCE = 180.0

_engines: dict[str, Idempotency] = {}
"""In a racing process: what it keeps from round to round."""


def engine(url: str) -> Idempotency:
    if url not in _engines:
        _engines[url] = Idempotency(url, timeout=2)
    return _engines[url]


def race_once(turn: Turn, url: str, journal: str, key: str) -> str:
    """One of many who send the same request at the same moment."""

    def work() -> str:
        with connect(journal) as client:
            client.rpush(f"runs:{key}", turn.racer)
        return f"racer {turn.racer}"

    try:
        return str(engine(url).once(tenant="t", key=key, run=work))
    except StillRunning:
        return "outstanding"


@dataclass(slots=True)
class Story:
    """What one process saw of its keys."""

    answers: dict[str, str] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    """How often its handler ran, by key."""
    refused: int = 0
    """Requests that the store could not serve, and that were sent again."""


def pay(idempotency: Idempotency, provider: ProviderClient, key: str, story: Story) -> str:
    """One request, sent again until there is an answer: the id of the charge."""

    def charge() -> str:
        story.runs[key] = story.runs.get(key, 0) + 1
        return provider.charge(100, key=current_operation().downstream_key(), reference=key).id

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            return str(idempotency.once(tenant="t", key=key, run=charge, lease=LEASE))
        except StillRunning:
            pass
        except StoreUnavailable:
            story.refused += 1
        except OutcomeUnknown:
            find_out(idempotency, provider, key)
        time.sleep(0.02)  # between requests, as a client's own pause; nothing is synchronised by it
    raise TimeoutError(f"{key} had no answer after {PATIENCE:g} s")


def find_out(idempotency: Idempotency, provider: ProviderClient, key: str) -> None:
    """What a reconciler does: asks the provider, by the downstream key, and tells the store."""
    sent = downstream_key(SCOPE, key, "")
    found = provider.find(sent)
    evidence = NotExecuted if found is None else Executed(found.id)
    try:
        idempotency.resolve(
            evidence,
            source="provider",
            event_id=f"asked about {key}",
            tenant=None,
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            downstream_key=sent,
        )
    except StoreError:
        pass  # the next one finds out


def send_all(url: str, provider_url: str, keys: list[str]) -> Story:
    """Every key once, one after the other."""
    idempotency, provider, story = Idempotency(url, timeout=2), ProviderClient(provider_url), Story()
    try:
        for key in keys:
            story.answers[key] = pay(idempotency, provider, key, story)
    finally:
        idempotency.close()
    return story
