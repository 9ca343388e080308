"""The reconciler: asks about unknown outcomes on a schedule, and gives up after a bounded number of times.

Evidence that a webhook has left is used first; then the user's own lookup is asked. What neither can tell is
asked again later, with a growing pause, and at last becomes a dead letter for an operator.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from ..core.backoff import Backoff
from ..core.effects import KnownEffect, asked_about
from ..core.policy import milliseconds
from ..core.record import Record
from ..core.states import State
from ..drivers.run import run_async
from ..engine.about import about
from ..engine.engine import Engine
from ..engine.evidence.asked import told_by_lookup
from ..engine.evidence.desk import LOOKUP_TIMEOUT, Lookup, LookupFailed
from ..engine.evidence.resolving import ROUNDS
from ..engine.evidence.said import Misfit, Resolution
from ..errors import ConfigurationError, Contradicted, CorruptRecord, SamekeyError, StoreBusy
from ..evidence import Declined, Executed, check_finding, fault_of, is_still_unknown
from ..stores.protocols import Actor
from ..stores.sql.overruling import Moved
from .apart import Aborted, TooLong
from .slots import Piece, Slots

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=30)
"""Between looks for outcomes whose date has come."""
CONCURRENCY = 10
"""Lookups that run side by side. Endpoints share them, so one whose provider hangs holds nobody up."""
BATCH = 20
"""Outcomes that one look by hand asks about."""
MAX_TRIES = 20
"""About a day with the default backoff; providers settle within hours."""
BACKOFF = Backoff(first=timedelta(seconds=30), longest=timedelta(hours=2))
KEPT_BATCH = 20
"""Operations in one look for which evidence waits."""
LEASE = timedelta(seconds=15)
"""How long an outcome that is being asked about is kept from others; renewed while the lookup runs, so the
outcomes of a reconciler that died wait no longer than this."""


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
        concurrency: int = CONCURRENCY,
        max_tries: int = MAX_TRIES,
        backoff: Backoff = BACKOFF,
        timeout: timedelta = LOOKUP_TIMEOUT,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._resolver = engine.resolver
        self._max_tries = max_tries
        self._backoff = backoff
        self._timeout = timeout
        self.slots = Slots(concurrency, changed, self._hangs)

    async def run_once(self, *, batch: int = BATCH) -> int:
        """One look by hand; gives how many outcomes were found out."""
        return sum(one.resolved for one in await self.look(batch=batch))

    async def look(self, *, batch: int = BATCH) -> list[Looked]:
        """One look by hand, to its end: gives what became of each."""
        found: list[Looked] = []
        while len(found) < batch and (tasks := await self._start(batch - len(found))):
            await asyncio.wait(tasks)
            found += [task.result() for task in tasks]  # in the order in which they were taken
        return found

    async def start(self) -> int:
        """Takes what there is room for and starts to ask; gives how many."""
        return len(await self._start(self.slots.places.free))

    async def stop(self, grace: timedelta) -> None:
        """Lookups may end for the grace time; what they were asked about is asked again by others."""
        await self.slots.stop(grace)

    async def _start(self, most: int) -> list[asyncio.Task[Looked]]:
        """Those of endpoints that have no place left are left to others and to later."""
        places = self.slots.places
        room = {kind: places.room(kind).places for kind in {piece.kind for piece in self.slots.held}}
        full = [kind for kind, left in room.items() if not left]
        # Whichever endpoints they are of: none gets more than its share.
        batch = min([most, places.room("").places, *(left for left in room.values() if left)])
        if batch <= 0:
            return []
        await self._use_kept()
        taken = await run_async(
            self._engine.drivers.aio,
            lambda: self._resolver.finding.take_unknown(
                batch=batch, lease_ms=milliseconds(LEASE), without=full, tell=_unreadable
            ),
        )
        return [
            self.slots.start(
                Piece(f"lookup of operation {record.id}", record.endpoint, record.tenant),
                self._look_at(record, tries),
            )
            for tries, record in taken
        ]

    async def _use_kept(self) -> None:
        """Evidence that came while its operation was running, which has since failed or been given up."""
        driver = self._engine.drivers.aio
        for operation_id in await run_async(driver, lambda: self._resolver.stranded(batch=KEPT_BATCH)):
            try:
                used = await run_async(driver, partial(self._resolver.apply_waiting, operation_id))
            except (SamekeyError, Moved) as error:
                logger.error("Evidence about operation %s could not be used: %s", operation_id, error)
                # Else the same ones would come first at every look, and keep the others waiting.
                await run_async(driver, partial(self._resolver.looked_at, operation_id))
                continue
            if used:
                self._engine.events.emit("reconcile.resolved")

    async def _look_at(self, record: Record, tries: int) -> Looked:
        """One that fails must not keep the others from being asked."""
        held = asyncio.create_task(self._hold(record))
        try:
            return await self._find_out(record, tries)
        except (SamekeyError, LookupFailed, Aborted) as error:
            logger.error("The outcome of operation %s could not be looked up: %s", record.id, error)
            why = f"the lookup failed: {error}"
        except Exception as error:
            logger.exception("The outcome of operation %s could not be looked up", record.id)
            why = f"the lookup failed: {type(error).__name__}"
        finally:
            held.cancel()
        try:
            return await self._later(record, tries, why)
        except SamekeyError as error:
            # Its date was moved on when it was taken, so it is asked about again in any case.
            logger.error("Operation %s could not be put off: %s", record.id, error)
            return Looked(record, record.state, why)

    async def _hold(self, record: Record) -> None:
        """Keeps other reconcilers away while the lookup runs."""
        finding, lease_ms = self._resolver.finding, milliseconds(LEASE)
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            try:
                await run_async(
                    self._engine.drivers.aio,
                    lambda: finding.ask_again(record.id, pause_ms=lease_ms, attempt=record.attempt),
                )
            except SamekeyError as error:
                logger.warning("Operation %s could not be kept from others: %s", record.id, error)

    async def _find_out(self, record: Record, tries: int) -> Looked:
        driver = self._engine.drivers.aio
        if await run_async(driver, lambda: self._resolver.apply_waiting(record.id)):
            return await self._settled(record, "a webhook's word that had come early")
        lookup = self._engine.lookup_for(record.endpoint)
        if lookup is None:
            return await self._later(record, tries, "there is no lookup for this endpoint")
        effects = await run_async(driver, lambda: self._resolver.finding.effects(record.id))
        record = asked_about(record, effects)
        finding = await self._ask(lookup, record)
        if isinstance(finding, Executed | Declined) and (fault := fault_of(finding, record)) is not None:
            # Asking again does not help, and what it says is not nothing: a person must use it.
            said = type(finding).__name__
            await self._hear(record, effects, finding)
            return await self._give_up(record, f"the lookup said {said}, and that cannot be used: {fault}")
        check_finding(finding)
        if is_still_unknown(finding):
            return await self._later(record, tries, "the provider cannot tell yet")
        actor = Actor("reconciler", f"lookup, try {tries}")
        try:
            applied = await run_async(driver, lambda: self._resolver.apply(record, finding, actor))
        except Contradicted as error:
            # Asking again does not help: one of the two is wrong, and a person must find out which.
            return await self._give_up(record, f"the lookup contradicts the provider's own event. {error}")
        except ConfigurationError as error:
            await self._hear(record, effects, finding, error)
            return await self._give_up(record, f"what the lookup said cannot be used: {error}")
        if not applied:
            # What others have found out meanwhile does not make a yes untrue.
            if await self._hear(record, effects, finding) is Resolution.RESOLVED:
                return await self._settled(record, "the lookup said Executed, and others had moved it")
            return await self._as_it_is(record, "others have moved it meanwhile")
        named = finding if isinstance(finding, type) else type(finding)
        return await self._settled(record, f"the lookup said {named.__name__}")

    async def _hear(
        self, record: Record, effects: Sequence[KnownEffect], finding: Any, fault: SamekeyError | None = None
    ) -> Resolution | Misfit | None:
        """A yes that could not be applied is an event like any other: noted, and used where it can be."""
        if not isinstance(finding, Executed):
            return None
        said = replace(told_by_lookup(finding, record, effects), fault=fault)
        for _ in range(ROUNDS):
            try:
                return await run_async(
                    self._engine.drivers.aio, lambda: self._resolver.receive(said, record.id)
                )
            except Moved:
                continue
        raise StoreBusy("The operation would not hold still.")

    async def _settled(self, record: Record, why: str) -> Looked:
        self._tell("reconcile.resolved", record)
        return replace(await self._as_it_is(record, why), resolved=True)

    async def _as_it_is(self, record: Record, why: str) -> Looked:
        now = await run_async(self._engine.drivers.aio, lambda: self._engine.keys.read_by_id(record.id))
        return Looked(record, record.state if now is None else now[1].state, why)

    async def _ask(self, lookup: Lookup, record: Record) -> Any:
        """The lookup's own word, in bounded time. One that will not end is no longer waited for."""
        name = f"lookup of operation {record.id}"
        try:
            apart = self.slots.apart
            found, _ = await apart.at_most(self._timeout, name, apart.call_any(name, lookup, record))
            return found
        except TooLong:
            raise LookupFailed(f"It did not answer within {self._timeout.total_seconds():g} s.") from None

    def _hangs(self) -> None:
        self._engine.events.emit("worker.hanging", service="reconciler")

    async def _later(self, record: Record, tries: int, why: str) -> Looked:
        driver, finding = self._engine.drivers.aio, self._resolver.finding
        self._tell("reconcile.failed", record)
        if await run_async(driver, lambda: self._resolver.has_unread(record.id)):
            why = f"{why}; {_UNREAD}"
            logger.warning("Operation %s waits: %s", record.id, why)
        elif tries >= self._max_tries:
            return await self._give_up(record, f"given up after {tries} tries: {why}")
        pause = max(1000, self._backoff.pause_ms(tries, 0.5 + random.random() / 2))  # noqa: S311
        await run_async(driver, lambda: finding.ask_again(record.id, pause_ms=pause, attempt=record.attempt))
        return Looked(record, record.state, why)

    async def _give_up(self, record: Record, why: str) -> Looked:
        driver, actor = self._engine.drivers.aio, Actor("reconciler", why)
        finding = self._resolver.finding
        if await run_async(driver, lambda: finding.give_up(record.id, actor, attempt=record.attempt)):
            logger.error(
                "The outcome of operation %s is a dead letter: %s",
                record.id,
                why,
                extra=about(operation=record.id, endpoint=record.endpoint, attempt=record.attempts),
            )
            self._tell("dead_letter", record)
        return await self._as_it_is(record, why)

    def _tell(self, event: str, record: Record) -> None:
        self._engine.events.emit(event, mode=str(record.mode), endpoint=record.endpoint)


_UNREAD: Final = (
    "a provider's word about it cannot be decrypted here: give this process the encryption key that it was "
    "written with, too"
)


def _unreadable(error: CorruptRecord) -> None:
    logger.error("An unknown outcome was left alone: %s", error)
