"""The completer: resumes phased operations whose lease ran out, with no client, request or web app.

It takes what is abandoned, and only that: held and finished operations are left alone, and so are those
whose definition this process does not know. Each runs in a slot of its own, no longer than its ``max_run``;
definitions and tenants share the slots, so one that fails or hangs does not stop the others.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Callable
from datetime import timedelta

from ..core.policy import milliseconds
from ..core.record import Lease, Record
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..engine.modes.mode import Finished
from ..engine.phased.attempt import REFUSED_PAUSE_MS, let_go
from ..engine.phased.phased import Definition, PhasedRun, max_run_ms
from ..errors import CorruptRecord, SamekeyError, StoreError
from ..stores.keys import NOT_BEGUN
from .apart import NotBegun, TooLong
from .places import Room
from .slots import Piece, Slots

logger = logging.getLogger("samekey")

INTERVAL = timedelta(seconds=5)
"""Between looks. An abandoned operation has already waited for its whole lease."""
CONCURRENCY = 10


class Completer:
    """Resumes abandoned phased operations. ``changed`` is called when there may be room again."""

    def __init__(
        self,
        idempotency: Engine,
        *,
        concurrency: int = CONCURRENCY,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = idempotency
        self.slots = Slots(concurrency, changed, self._hangs)
        self._attempts: set[PhasedRun] = set()

    @property
    def busy(self) -> bool:
        """Whether operations are being resumed just now, each for as long as its max_run."""
        return bool(self.slots.running)

    async def run_once(self) -> int:
        """Takes what there is room for and sees each through; gives how many there were."""
        try:
            taken = await self.look()
            await self.slots.drain()
        except asyncio.CancelledError:
            await self.stop(timedelta(0))
            raise
        return taken

    async def look(self) -> int:
        """Takes what there is room for and starts it; gives how many."""
        places = self.slots.places
        definitions = self._engine.phases.definitions.values()
        taken = 0
        for definition in sorted(definitions, key=lambda one: places.held(one.identity)):
            room = places.room(definition.identity)
            if room.places:
                taken += await self._take(definition, room)
        return taken

    async def stop(self, grace: timedelta) -> None:
        """What does not end within the grace time is cancelled, and so given back; or left to its lease."""
        for attempt in self._attempts:
            attempt.is_forgiven = True
        await self.slots.stop(grace)

    async def _take(self, definition: Definition, room: Room) -> int:
        lease_ms = milliseconds(definition.rules.policy.lease)
        token = secrets.token_hex(16)
        records = await run_async(
            self._engine.drivers.aio,
            lambda: self._engine.phases.phases.take_abandoned(
                token,
                [definition.identity],
                lease_ms=lease_ms,
                batch=room.places,
                full_tenants=room.full_tenants,
                tell=_unreadable,
            ),
        )
        for record in records:
            lease = record.lease(lease_ms)
            name = f"operation {definition.identity} {record.id}"
            piece = Piece(name, definition.identity, record.tenant)
            self.slots.start(piece, self._resume_carefully(definition, record, lease, name))
        return len(records)

    async def _resume_carefully(
        self, definition: Definition, record: Record, lease: Lease, name: str
    ) -> None:
        try:
            await self._resume(definition, record, lease, name)
        except NotBegun as error:
            # It was taken and never entered, so that is no attempt of its own.
            logger.error("The %s could not be begun, and waits: %s", name, error)
            ways = self._engine.phases
            await self._engine.drive_async(let_go(ways, lease, REFUSED_PAUSE_MS, NOT_BEGUN, counted=False))
        except SamekeyError as error:
            logger.error("The %s could not be resumed: %s", name, error)
        except Exception:
            logger.exception("The %s could not be resumed", name)
        finally:
            self._engine.keeper.forget(lease)

    async def _resume(self, definition: Definition, record: Record, lease: Lease, name: str) -> None:
        engine = self._engine
        try:
            engine.keeper.watch(lease, max_run_ms(definition.rules))
            attempt = await engine.drive_async(engine.phases.resume(lease, record.id, record.attempts))
        except StoreError as error:
            raise NotBegun(str(error)) from error
        if attempt is None:
            return
        longest = attempt.definition.rules.policy.max_run
        self._attempts.add(attempt)
        try:
            finished = await self.slots.apart.at_most(longest, name, self._see_through(attempt, name))
        except TooLong:
            logger.error("The %s ran longer than its max_run and was left", name)
            return
        finally:
            self._attempts.discard(attempt)
        if finished.error is not None:
            logger.error("The %s failed again: %s: %s", name, type(finished.error).__name__, finished.error)

    async def _see_through(self, attempt: PhasedRun, name: str) -> Finished:
        if inspect.iscoroutinefunction(attempt.definition.function):
            finished = await self._engine.attempt_async(attempt)
        else:
            # In a thread of its own: those that hang must not use up a pool that others share.
            finished = await self.slots.apart.call(name, self._engine.attempt, attempt)
        assert isinstance(finished, Finished)
        if isinstance(finished.error, asyncio.CancelledError):
            raise finished.error  # not a failure of the operation: we are being stopped
        return finished

    def _hangs(self) -> None:
        self._engine.events.emit("worker.hanging", service="completer")


def _unreadable(error: CorruptRecord) -> None:
    logger.error("An operation is left to a worker of the version that wrote it: %s", error)
