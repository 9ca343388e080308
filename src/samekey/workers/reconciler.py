"""The reconciler: asks about unknown outcomes on a schedule, and gives up after a bounded number of times.

Evidence that a webhook has left is used first; then the user's own lookup is asked. What neither can tell is
asked again later, with a growing pause, and at last becomes a dead letter for an operator.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from datetime import timedelta

from ..core.backoff import Backoff
from ..core.policy import milliseconds
from ..core.record import Record
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..evidence import check_finding, is_still_unknown
from ..stores.sql.operator import Actor

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=30)
"""Between looks for outcomes whose date has come."""
BATCH = 20
LOOKUP_TIMEOUT = timedelta(seconds=30)
MAX_TRIES = 20
"""About a day with the default backoff; providers settle within hours."""
BACKOFF = Backoff(first=timedelta(seconds=30), longest=timedelta(hours=2))
SAFETY = timedelta(seconds=30)


class Reconciler:
    """Finds out unknown outcomes. Safe on many nodes at once."""

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int = BATCH,
        max_tries: int = MAX_TRIES,
        backoff: Backoff = BACKOFF,
        timeout: timedelta = LOOKUP_TIMEOUT,
    ) -> None:
        self._engine = engine
        self._resolver = engine.resolver
        self._batch = batch
        self._max_tries = max_tries
        self._backoff = backoff
        self._timeout = timeout

    async def run_once(self) -> int:
        """One batch; gives how many outcomes were found out."""
        lease_ms = milliseconds(self._timeout * self._batch + SAFETY)
        taken = await run_async(
            self._engine.drivers.aio,
            lambda: self._resolver.operator.take_unknown(batch=self._batch, lease_ms=lease_ms),
        )
        resolved = 0
        for tries, record in taken:
            try:
                resolved += await self._find_out(record, tries)
            except Exception:
                # One that fails must not keep the others from being asked.
                logger.exception("The outcome of operation %s could not be looked up", record.id)
                await self._later(record, tries, "the lookup failed")
        return resolved

    async def _find_out(self, record: Record, tries: int) -> bool:
        driver = self._engine.drivers.aio
        if await run_async(driver, lambda: self._resolver.apply_waiting(record)):
            self._tell("reconcile.resolved", record)
            return True
        lookup = self._engine.lookup_for(record)
        if lookup is None:
            await self._later(record, tries, "there is no lookup for this endpoint")
            return False
        async with asyncio.timeout(self._timeout.total_seconds()):
            finding = (
                await lookup(record)
                if inspect.iscoroutinefunction(lookup)
                else await asyncio.to_thread(lookup, record)
            )
        check_finding(finding)
        if is_still_unknown(finding):
            await self._later(record, tries, "the provider cannot tell yet")
            return False
        actor = Actor("reconciler", f"lookup, try {tries}")
        settled = await run_async(driver, lambda: self._resolver.apply(record, finding, actor))
        if settled:
            self._tell("reconcile.resolved", record)
        return settled

    async def _later(self, record: Record, tries: int, why: str) -> None:
        driver, operator = self._engine.drivers.aio, self._resolver.operator
        self._tell("reconcile.failed", record)
        if tries >= self._max_tries:
            actor = Actor("reconciler", f"given up after {tries} tries: {why}")
            if await run_async(driver, lambda: operator.give_up(record.id, actor)):
                logger.error("The outcome of operation %s is a dead letter: %s", record.id, why)
                self._tell("dead_letter", record)
            return
        pause = max(1000, self._backoff.pause_ms(tries, 0.5 + random.random() / 2))  # noqa: S311
        await run_async(driver, lambda: operator.ask_again(record.id, pause_ms=pause))

    def _tell(self, event: str, record: Record) -> None:
        self._engine.events.emit(event, mode=str(record.mode), endpoint=record.endpoint)
