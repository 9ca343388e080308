"""What the crash tests run on Redis. Importable by name, because the processes that are killed import it."""

from __future__ import annotations

import asyncio

from samekey import Idempotency
from samekey.core.claim import scope_of, scope_part
from samekey.core.record import Answer
from samekey.core.states import Mode
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.testing.crash import Points
from tests.redis.subjects import RedisSubject, plain_client
from tests.stores.crash_scenarios import PAID, exchange_of

SCOPE = scope_of(scope_part("tenant"))


def effects(url: str, label: str) -> int:
    return int(plain_client(url).llen(f"effects:{label}"))


def happen(url: str, label: str) -> None:
    """An effect outside of samekey."""
    plain_client(url).rpush(f"effects:{label}", "paid")


def state_of(url: str, label: str) -> str | None:
    subject = RedisSubject(url)
    state = subject.client.hget(subject.name_of(SCOPE, label), "state")
    return None if state is None else str(state.decode())


def end_lease(url: str, label: str) -> None:
    """As if the lease's time had passed: the holder is dead and will not renew it."""
    if state_of(url, label) == "in_progress":
        RedisSubject(url).overwrite(SCOPE, label, locked_until=1)


def guarded_request(points: Points, url: str, mode: Mode, style: str) -> Answer | None:
    """One request through the engine; the answer that would have been sent."""
    return asyncio.run(_async(points, url, mode)) if style == "async" else _sync(points, url, mode)


def _sync(points: Points, url: str, mode: Mode) -> Answer | None:
    idempotency = Idempotency(url)
    points.watch(idempotency)
    try:
        begun = idempotency.engine.begin(
            exchange_of(points.label), rules_from(idempotency.engine.policy, mode, {})
        )
        if not isinstance(begun, Running):
            return begun
        points.reach("before the effect")
        happen(url, points.label)
        points.reach("after the effect")
        finished = idempotency.engine.finish(begun, Handled(PAID))
        points.reach("before the answer is sent")
        return finished.answer
    finally:
        idempotency.close()


async def _async(points: Points, url: str, mode: Mode) -> Answer | None:
    idempotency = Idempotency(url)
    points.watch(idempotency)
    try:
        rules = rules_from(idempotency.engine.policy, mode, {})
        begun = await idempotency.engine.begin_async(exchange_of(points.label), rules)
        if not isinstance(begun, Running):
            return begun
        points.reach("before the effect")
        happen(url, points.label)
        points.reach("after the effect")
        finished = await idempotency.engine.finish_async(begun, Handled(PAID))
        points.reach("before the answer is sent")
        return finished.answer
    finally:
        await idempotency.aclose()
