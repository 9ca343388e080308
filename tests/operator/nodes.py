"""Functions that run in processes of their own, as other nodes would. Each keeps its engine."""

from __future__ import annotations

import asyncio
from typing import Any

from lab.processes import Turn
from samekey import Idempotency, ietf
from samekey.drivers.run import run, run_async
from samekey.stores.sql.upkeep import Upkeep
from samekey.workers.reaper import Reaper
from samekey.workers.sweeper import Sweeper
from tests.taking import begin

_kept: dict[str, Any] = {}


def engine(url: str) -> Idempotency:
    if url not in _kept:
        _kept[url] = Idempotency(url, policy=ietf())
    found: Idempotency = _kept[url]
    return found


def loop() -> asyncio.AbstractEventLoop:
    """One for the life of the process: connections belong to their loop."""
    if "loop" not in _kept:
        _kept["loop"] = asyncio.new_event_loop()
    found: asyncio.AbstractEventLoop = _kept["loop"]
    return found


def leave(_turn: Turn) -> None:
    """Gives back what the process kept."""
    turning = _kept.pop("loop", None)
    for kept in _kept.values():
        if turning is not None:
            turning.run_until_complete(kept.aclose())
        kept.close()
    if turning is not None:
        turning.close()
    _kept.clear()


def sweep(_turn: Turn, url: str, batch: int) -> list[str]:
    """Sweeps until nothing is left; the ids of what this node moved."""
    idempotency, moved = engine(url), []
    upkeep = Upkeep(idempotency.engine.store.tables.keys)
    while True:
        some = run(idempotency.engine.drivers.sync, lambda: upkeep.sweep(batch=batch))
        moved += [record.id for record in some]
        if len(some) < batch:
            return moved


def reap(_turn: Turn, url: str, batch: int) -> int:
    """Reaps until nothing is left; how many this node deleted."""
    return loop().run_until_complete(Reaper(engine(url).engine, batch=batch).run_once())


def sweep_with_the_worker(_turn: Turn, url: str) -> int:
    return loop().run_until_complete(Sweeper(engine(url).engine, batch=1000).run_once())


def take_or_time_out(turn: Turn, url: str, scope: str, key: str, operation_id: str) -> str:
    """One node is a worker that takes the job, the other a reaper that times its operation out."""
    from samekey.core.record import Answer
    from samekey.stores.sql.upkeep import JobHeld

    idempotency = engine(url)
    if turn.racer == 0:
        taken = run(
            idempotency.engine.drivers.sync,
            lambda: begin(idempotency.engine.outbox, batch=10),
        )
        return "taken" if any(job.operation_id == operation_id for job in taken) else "nothing"
    upkeep = Upkeep(idempotency.engine.store.tables.keys)
    driver = idempotency.engine.drivers.aio
    try:
        closed = loop().run_until_complete(
            run_async(driver, lambda: upkeep.time_out(scope, key, operation_id, Answer(408)))
        )
    except JobHeld:
        return "held"
    return "closed" if closed else "nothing"
