"""The reaper: forgets what is past retention, in small batches that block no traffic.

Only settled records go. What is in flight or unknown stays, however old it is. A pending operation that
nobody started in time is first closed with a stored 408, and its job is cancelled with it.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from ..core.policy import milliseconds
from ..core.problem import Refusal, refuse
from ..core.replayable import replayable
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..stores.sql.upkeep import JobHeld, Upkeep

logger = logging.getLogger("samekey")

INTERVAL = timedelta(hours=1)
"""Between passes. Retention is counted in hours, so a finer grain buys nothing."""
BATCH = 500
"""Rows in one transaction: a few milliseconds of locks on rows that nobody wants."""
PENDING_TIMEOUT = timedelta(hours=24)
"""How long an accepted operation may wait for a worker before its client is told that it will not happen."""
TOMBSTONES = timedelta(days=30)
"""How long a tombstone is kept, where the policy keeps any (``after_expiry="gone"``)."""


class Reaper:
    """Deletes, or turns into tombstones, records past retention. Safe on many nodes at once."""

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int = BATCH,
        pending_timeout: timedelta = PENDING_TIMEOUT,
        tombstones: timedelta = TOMBSTONES,
    ) -> None:
        self._engine = engine
        self._upkeep = Upkeep(engine.keys)
        self._batch = batch
        self._pending_ms = milliseconds(pending_timeout)
        self._tombstones_ms = milliseconds(tombstones)

    async def run_once(self) -> int:
        """One pass, batch after batch until nothing is left; gives how many records went."""
        await self.time_out_pending()
        total = 0
        while True:
            reaped = await self._batch_of_old()
            total += reaped
            if reaped < self._batch:
                break
        if total:
            logger.info("%d records past retention were reaped", total)
            self._engine.events.emit("ttl_pruned", value=total)
        return total

    async def _batch_of_old(self) -> int:
        upkeep, batch = self._upkeep, self._batch
        if self._engine.policy.after_expiry == "gone":
            return await run_async(
                self._engine.drivers.aio, lambda: upkeep.bury(batch=batch, keep_ms=self._tombstones_ms)
            )
        return await run_async(self._engine.drivers.aio, lambda: upkeep.reap(batch=batch))

    async def time_out_pending(self) -> int:
        """Closes pending operations that nobody started in time; gives how many."""
        driver = self._engine.drivers.aio
        waiting = await run_async(
            driver, lambda: self._upkeep.abandoned(timeout_ms=self._pending_ms, batch=self._batch)
        )
        detail = "The operation was accepted but not carried out in time. It will not be: use a new key."
        answer = replayable(refuse(Refusal(408, detail), self._engine.policy))
        closed = 0
        for scope, key, operation_id in waiting:
            try:
                closed += await run_async(
                    driver,
                    lambda scope=scope, key=key, operation_id=operation_id: self._upkeep.time_out(  # type: ignore[misc]
                        scope, key, operation_id, answer
                    ),
                )
            except JobHeld:
                logger.info("The job of operation %s is being worked on; it is not timed out", operation_id)
        return closed
