"""What the crash tests run on DynamoDB. Importable by name, because the processes that are killed import it.

An effect outside of samekey is a line in a file; a directory has a file for each label.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from samekey import Idempotency
from samekey.core.claim import scope_of, scope_part
from samekey.core.record import Answer
from samekey.core.states import Mode
from samekey.drivers.dynamodb.driver import _LOADER
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.testing.crash import Points
from tests.dynamodb.subjects import DynamoSubject
from tests.stores.crash_scenarios import PAID, exchange_of

_LOADER.load_service_model("dynamodb", "service-2")  # so that not every forked process reads it again

SCOPE = scope_of(scope_part("tenant"))


def effects(directory: Path, label: str) -> int:
    file = directory / label
    return len(file.read_text().splitlines()) if file.exists() else 0


def happen(directory: Path, label: str) -> None:
    with (directory / label).open("a") as file:
        file.write("paid\n")


def state_of(subject: DynamoSubject, label: str) -> str | None:
    item = subject.item(SCOPE, label)
    return None if item is None else str(item["state"]["S"])


def end_lease(subject: DynamoSubject, label: str) -> None:
    """As if the lease's time had passed: the holder is dead and will not renew it."""
    if state_of(subject, label) == "in_progress":
        subject.overwrite(SCOPE, label, locked_until=1)


def guarded_request(points: Points, url: str, directory: Path, mode: Mode, style: str) -> Answer | None:
    """One request through the engine; the answer that would have been sent."""
    if style == "async":
        return asyncio.run(_async(points, url, directory, mode))
    return _sync(points, url, directory, mode)


def _sync(points: Points, url: str, directory: Path, mode: Mode) -> Answer | None:
    idempotency = Idempotency(url)
    points.watch(idempotency)
    try:
        begun = idempotency.engine.begin(
            exchange_of(points.label), rules_from(idempotency.engine.policy, mode, {})
        )
        if not isinstance(begun, Running):
            return begun
        points.reach("before the effect")
        happen(directory, points.label)
        points.reach("after the effect")
        finished = idempotency.engine.finish(begun, Handled(PAID))
        points.reach("before the answer is sent")
        return finished.answer
    finally:
        idempotency.close()


async def _async(points: Points, url: str, directory: Path, mode: Mode) -> Answer | None:
    idempotency = Idempotency(url)
    points.watch(idempotency)
    try:
        rules = rules_from(idempotency.engine.policy, mode, {})
        begun = await idempotency.engine.begin_async(exchange_of(points.label), rules)
        if not isinstance(begun, Running):
            return begun
        points.reach("before the effect")
        happen(directory, points.label)
        points.reach("after the effect")
        finished = await idempotency.engine.finish_async(begun, Handled(PAID))
        points.reach("before the answer is sent")
        return finished.answer
    finally:
        await idempotency.aclose()
