"""The reaper: forgets what is past retention, in small batches that block no traffic.

Only settled records go. What is in flight or unknown stays, however old it is. A pending operation that
nobody started in time is first closed with a stored 408, and its job is cancelled with it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

from ..core.policy import milliseconds
from ..core.problem import Refusal, refuse
from ..core.record import Answer
from ..core.replayable import replayable
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..stores.protocols import KEEP_MS, Actor
from ..stores.sql.upkeep import JobHeld, Upkeep

logger = logging.getLogger("samekey")

INTERVAL = timedelta(hours=1)
"""Between passes. Retention is counted in hours, so a finer grain buys nothing."""
BATCH = 500
"""Rows in one transaction: a few milliseconds of locks on rows that nobody wants."""
AUDIT_BATCH = 5000
"""Lines of the audit in one transaction. They are small, and nobody waits for them."""
PENDING_TIMEOUT = timedelta(hours=24)
"""How long an accepted operation may wait for a worker before its client is told that it will not happen."""
TOMBSTONES = timedelta(milliseconds=KEEP_MS)
"""How long the tombstone of a key is kept that may run again. One that is ``gone`` stays for good: no reaper
turns a 410 into a second run."""


class Reaper:
    """Deletes or buries records past retention, each as it says itself. Safe on many nodes at once.

    ``soft``: keep the fact of all of them for a while. ``audit``: how long lines of the audit are kept; None:
    for good.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int = BATCH,
        pending_timeout: timedelta = PENDING_TIMEOUT,
        tombstones: timedelta = TOMBSTONES,
        soft: bool = False,
        audit: timedelta | None = None,
    ) -> None:
        self._engine = engine
        self._upkeep = engine.store.tending
        self._batch = batch
        self._pending_ms = milliseconds(pending_timeout)
        self._tombstones_ms = milliseconds(tombstones)
        self._soft = soft
        self._audit = audit

    async def run_once(self) -> int:
        """One pass, batch after batch until nothing is left; gives how many records went."""
        await self.time_out_pending()
        total = 0
        async for gone in self.batches():
            total += gone
        if total:
            logger.info("%d records past retention were reaped", total)
            self._engine.events.emit("ttl_pruned", value=total)
        await self.prune_audit()
        return total

    async def prune_audit(self) -> int:
        """Drops lines of the audit past their time, slice by slice; gives how many."""
        if self._audit is None or not isinstance(self._upkeep, Upkeep):
            return 0
        upkeep, older, driver = self._upkeep, milliseconds(self._audit), self._engine.drivers.aio
        total, after = 0, -1
        while after:
            prune = functools.partial(upkeep.prune_audit, older_ms=older, after=after, batch=AUDIT_BATCH)
            gone, after = await run_async(driver, prune)
            total += gone
        if total:
            who = Actor("reaper", f"{total} lines older than {self._audit} pruned")
            await run_async(driver, lambda: upkeep.note_pruning(who))
            logger.info("%d lines of the audit were pruned", total)
        return total

    async def batches(self) -> AsyncIterator[int]:
        """Reaps batch after batch, each in a transaction of its own; gives how many records each had."""
        while True:
            reaped = await run_async(
                self._engine.drivers.aio,
                lambda: self._upkeep.reap(batch=self._batch, keep_ms=self._tombstones_ms, soft=self._soft),
            )
            yield reaped
            if reaped < self._batch:
                break

    async def time_out_pending(self) -> int:
        """Closes pending operations that nobody started in time; gives how many."""
        detail = "The operation was accepted but not carried out in time. It will not be: use a new key."
        answer = replayable(refuse(Refusal(408, detail), self._engine.policy))
        total = 0
        while True:
            found, closed = await self._time_out_batch(answer)
            total += closed
            if found < self._batch or not closed:
                return total

    async def _time_out_batch(self, answer: Answer) -> tuple[int, int]:
        driver = self._engine.drivers.aio
        waiting = await run_async(
            driver, lambda: self._upkeep.abandoned(timeout_ms=self._pending_ms, batch=self._batch)
        )
        closed = 0
        for operation in waiting:
            try:
                closed += await run_async(
                    driver, functools.partial(self._upkeep.time_out, *operation, answer)
                )
            except JobHeld:
                logger.info("The job of operation %s is being worked on; it is not timed out", operation[2])
        return len(waiting), closed
