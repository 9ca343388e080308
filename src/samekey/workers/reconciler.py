"""The reconciler: asks about unknown outcomes on a schedule, and gives up after a bounded number of times.

Evidence that a webhook has left is used first; then the user's own lookup is asked. What neither can tell is
asked again later, with a growing pause, and at last becomes a dead letter for an operator.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.policy import milliseconds
from ..core.record import Record
from ..core.states import State
from ..drivers.run import run_async
from ..engine.engine import Engine, Lookup
from ..errors import SamekeyError
from ..evidence import check_finding, is_still_unknown
from ..stores.protocols import Actor
from .apart import Ended, call_apart

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=30)
"""Between looks for outcomes whose date has come."""
BATCH = 20
AT_ONCE = 5
"""Lookups that run side by side: one that hangs does not hold up the rest, and a provider is not flooded."""
LOOKUP_TIMEOUT = timedelta(seconds=30)
MAX_TRIES = 20
"""About a day with the default backoff; providers settle within hours."""
BACKOFF = Backoff(first=timedelta(seconds=30), longest=timedelta(hours=2))
SAFETY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of asking about one outcome."""

    record: Record
    """As it was."""
    became: State
    why: str
    resolved: bool = False
    """Whether this look settled it."""


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
        return sum(one.resolved for one in await self.look())

    async def look(self) -> list[Looked]:
        """One batch; gives what became of each."""
        # As long as the batch can take at most: if this process dies, the others wait that long.
        lease_ms = milliseconds(self._timeout * math.ceil(self._batch / AT_ONCE) + SAFETY)
        taken = await run_async(
            self._engine.drivers.aio,
            lambda: self._resolver.finding.take_unknown(batch=self._batch, lease_ms=lease_ms),
        )
        room = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(self._look_at(record, tries, room) for tries, record in taken))

    async def _look_at(self, record: Record, tries: int, room: asyncio.Semaphore) -> Looked:
        """One that fails must not keep the others from being asked."""
        async with room:
            try:
                return await self._find_out(record, tries)
            except (SamekeyError, LookupFailed, Ended) as error:
                logger.error("The outcome of operation %s could not be looked up: %s", record.id, error)
                why = f"the lookup failed: {error}"
            except Exception as error:
                logger.exception("The outcome of operation %s could not be looked up", record.id)
                why = f"the lookup failed: {type(error).__name__}"
            try:
                return await self._later(record, tries, why)
            except SamekeyError as error:
                # Its date was moved on when it was taken, so it is asked about again in any case.
                logger.error("Operation %s could not be put off: %s", record.id, error)
                return Looked(record, record.state, why)

    async def _find_out(self, record: Record, tries: int) -> Looked:
        driver = self._engine.drivers.aio
        if await run_async(driver, lambda: self._resolver.apply_waiting(record)):
            return await self._settled(record, "a webhook's word that had come early")
        lookup = self._engine.lookup_for(record)
        if lookup is None:
            return await self._later(record, tries, "there is no lookup for this endpoint")
        finding = await self._ask(lookup, record)
        check_finding(finding)
        if is_still_unknown(finding):
            return await self._later(record, tries, "the provider cannot tell yet")
        actor = Actor("reconciler", f"lookup, try {tries}")
        if not await run_async(driver, lambda: self._resolver.apply(record, finding, actor)):
            return Looked(record, record.state, "somebody else settled it meanwhile")
        named = finding if isinstance(finding, type) else type(finding)
        return await self._settled(record, f"the lookup said {named.__name__}")

    async def _settled(self, record: Record, why: str) -> Looked:
        self._tell("reconcile.resolved", record)
        now = await run_async(self._engine.drivers.aio, lambda: self._engine.keys.read_by_id(record.id))
        return Looked(record, record.state if now is None else now[1].state, why, resolved=True)

    async def _ask(self, lookup: Lookup, record: Record) -> Any:
        """The lookup's own word, in bounded time. One that will not end is no longer waited for."""
        task = asyncio.ensure_future(_call(lookup, record))
        done, _ = await asyncio.wait([task], timeout=self._timeout.total_seconds())
        if not done:
            task.cancel()
            raise LookupFailed(f"It did not answer within {self._timeout.total_seconds():g} s.")
        if task.cancelled():
            raise LookupFailed("It cancelled itself.")
        return task.result()

    async def _later(self, record: Record, tries: int, why: str) -> Looked:
        driver, finding = self._engine.drivers.aio, self._resolver.finding
        self._tell("reconcile.failed", record)
        if tries >= self._max_tries:
            actor = Actor("reconciler", f"given up after {tries} tries: {why}")
            if await run_async(driver, lambda: finding.give_up(record.id, actor, attempt=record.attempt)):
                logger.error("The outcome of operation %s is a dead letter: %s", record.id, why)
                self._tell("dead_letter", record)
            return Looked(record, State.DEAD_LETTER, why)
        pause = max(1000, self._backoff.pause_ms(tries, 0.5 + random.random() / 2))  # noqa: S311
        await run_async(driver, lambda: finding.ask_again(record.id, pause_ms=pause, attempt=record.attempt))
        return Looked(record, record.state, why)

    def _tell(self, event: str, record: Record) -> None:
        self._engine.events.emit(event, mode=str(record.mode), endpoint=record.endpoint)


class LookupFailed(Exception):
    """A lookup that gave no finding; its word counts for nothing, and it is asked again later."""


async def _call(lookup: Lookup, record: Record) -> Any:
    """Calls a lookup of any kind."""
    if inspect.iscoroutinefunction(lookup):
        return await lookup(record)
    result = await call_apart("samekey-lookup", lookup, record)
    return await result if inspect.isawaitable(result) else result
