"""Lookups of one endpoint that hang, on a key store: the others are asked all the same, uncounted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from samekey import Executed, Idempotency
from samekey.drivers.run import run
from samekey.workers.reconciler import Reconciler

SOON = 60_000


def _lost(idempotency: Idempotency, key: str, name: str) -> None:
    def fail() -> None:
        raise RuntimeError("nobody knows")

    with pytest.raises(RuntimeError):
        idempotency.once(tenant="acme", key=key, payload={}, run=fail, name=name)


def lookups_that_hang_hold_up_no_other_endpoint(url: str) -> None:
    idempotency = Idempotency(url)
    idempotency.migrate()
    may_end, asked = threading.Event(), threading.Event()

    def hang(_record: Any) -> Executed:
        may_end.wait(60)
        return Executed({"late": True})

    def answer(_record: Any) -> Executed:
        asked.set()
        return Executed({"ok": True})

    idempotency.lookup("CALL hanging")(hang)
    idempotency.lookup("CALL healthy")(answer)
    for number in range(20):
        _lost(idempotency, f"hanging-{number}", "hanging")
    _lost(idempotency, "healthy", "healthy")

    async def look() -> None:
        reconciler = Reconciler(idempotency.engine, concurrency=10)
        for _ in range(5):
            await reconciler.start()
        try:
            assert await asyncio.to_thread(asked.wait, 30), "nobody has asked about the healthy one"
            assert reconciler.slots.places.held("CALL hanging") < 10
        finally:
            may_end.set()
            await reconciler.slots.drain()
        await idempotency.aclose()

    asyncio.run(look())


def what_is_left_out_is_left_to_others(url: str) -> None:
    """However many of them stand before the others, and however often somebody looks who cannot ask."""
    idempotency = Idempotency(url)
    idempotency.migrate()
    engine = idempotency.engine
    for number in range(30):
        _lost(idempotency, f"full-{number}", "full")
    _lost(idempotency, "other", "other")

    def take(batch: int, without: list[str], after: int) -> list[tuple[int, str]]:
        now = max(record.created_at for record in run(engine.drivers.sync, engine.store.finding.find)) + after
        program = engine.store.finding.take_unknown(batch=batch, lease_ms=1000, without=without, now=now)
        return [(tries, record.endpoint) for tries, record in run(engine.drivers.sync, lambda: program)]

    full = ["CALL full", *(f"CALL {number}" for number in range(150))]
    assert take(2, full, SOON) == [(1, "CALL other")]
    assert take(2, full, SOON) == []
    assert take(50, [], SOON) == [(1, "CALL full")] * 30
    idempotency.close()
