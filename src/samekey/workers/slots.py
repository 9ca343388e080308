"""Slots: pieces of work that run side by side, each in a task of its own. None waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from . import apart
from .places import Places

logger = logging.getLogger("samekey")


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that runs: what logs and its threads are called, and who holds its place."""

    name: str
    kind: str
    tenant: str


class Slots:
    """Runs pieces of work in their places. ``changed`` is called whenever a place may have become free.

    What hangs, in a thread or in a task that does not let itself be cancelled, keeps its place until it ends;
    so does what a function has left in threads of its own. There never is more of it than there are places.
    """

    def __init__(
        self,
        size: int,
        changed: Callable[[], None] = lambda: None,
        hangs: Callable[[], None] = lambda: None,
    ) -> None:
        self.places = Places(size)
        self.apart = apart.Apart(self._free, hangs)
        self._changed = changed
        self._running: dict[asyncio.Task[Any], Piece] = {}
        self._hung: list[Piece] = []

    @property
    def running(self) -> list[Piece]:
        """Also for other threads."""
        return list(self._running.values())

    @property
    def held(self) -> list[Piece]:
        """Whatever holds a place: what runs, and what hangs."""
        return [*self._running.values(), *self._hung]

    @property
    def stuck(self) -> list[str]:
        """Kinds that can do nothing more here: all that they may have is held by what hangs."""
        found = []
        hanging = self.apart.hanging
        held_up = [piece for piece in self._hung if hanging[piece.name]]
        for kind, hung in Counter(piece.kind for piece in held_up).items():
            room = self.places.room(kind)
            tenants = {piece.tenant for piece in held_up if piece.kind == kind}
            if hung == self.places.held(kind) and (not room.places or tenants <= {*room.full_tenants}):
                found.append(kind)
        return found

    def start(self, piece: Piece, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.places.enter(piece.kind, piece.tenant)
        task = asyncio.create_task(work, name=piece.name)
        self._running[task] = piece
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        piece = self._running.pop(task)
        if not task.cancelled() and task.exception() is not None:
            # Its lease runs out and somebody tries again; the others are not touched.
            logger.error("The %s could not be settled: %s", piece.name, task.exception())
        self._hung.append(piece)
        self._free()

    def _free(self) -> None:
        """Gives back the places of what has ended."""
        going_on = self.apart.going_on
        hung, self._hung = self._hung, []
        for piece in hung:
            if going_on[piece.name] > 0:
                going_on[piece.name] -= 1  # one place for each call of that name, and no more
                self._hung.append(piece)
            else:
                self.places.leave(piece.kind, piece.tenant)
        self._changed()

    async def drain(self) -> None:
        """Waits for everything that runs."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def stop(self, grace: timedelta) -> None:
        """Lets everything end for a while, then cancels the rest. What does not even end then is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self.drain()
        rest = list(self._running)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=apart.FAREWELL)
        await self.apart.farewell()
        for name in [*self._running.values(), *self.apart.hanging]:
            told = name.name if isinstance(name, Piece) else name
            logger.error("The %s does not end; it is left to its lease", told)
