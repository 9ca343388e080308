"""Errands: what the engine does with a store for a caller, to its end, whatever becomes of the caller.

A caller that is cancelled (a client that left, a deadline) stops waiting; it never interrupts a statement. A
connection that was torn out of the middle of one is in a state that nobody knows, and a claim whose reply
nobody heard holds its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ..drivers.caller import Caller
from ..drivers.errand import Errand, Waiting, leave

__all__ = ["Errands", "Waiting"]

T = TypeVar("T")


class Errands:
    """The errands that are under way. They belong to the event loop that they were begun in."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()
        self._carried: set[Errand[Any]] = set()
        """Those that their callers carry out."""

    async def finish(self, work: Coroutine[Any, Any, T], *, moves: bool = False) -> T:
        """Done to its end in any case. A caller that is cancelled meanwhile hears of it afterwards.

        It waits, because what comes next may need the same connection. Drivers bound how long that takes.
        ``moves``: see ``Errand``.
        """
        errand = Errand(work, moves=moves)
        return await to_its_end(errand, self.carry(errand))

    async def begin(
        self,
        work: Coroutine[Any, Any, T],
        unwanted: Callable[[T], Coroutine[Any, Any, None]],
        let_go: Callable[[T], None],
        *,
        leaves_at_once: bool = True,
        who: Caller | None = None,
        settled: Callable[[], None] = lambda: None,
        moves: bool = False,
    ) -> T:
        """For what a caller wants to hold. ``who`` it is; ``settled`` is called once somebody has the result.

        Once it is cancelled, what was not sent yet is not sent any more. If the work ends with a result all
        the same, ``unwanted`` gives that back, whatever becomes of the caller. It waits for that only if it
        may not leave at once: then the work uses something of the caller's own.

        The event loop may end with the caller, and take every task along. ``let_go`` does what ``unwanted``
        would have done and needs no loop for it.
        """
        who = who or Caller()
        errand = Errand(work, moves=moves, who=who)
        try:
            result = await self.carry(errand)
        except BaseException:
            # Cancelled, perhaps in the very moment in which the work ended: the result is nobody's.
            who.gone = True
            task = errand.rest
            if errand.is_over if task is None else task.done() and not _has_result(task):
                settled()
            elif task is not None:
                undoing = self._undo(task, unwanted, let_go, settled)
                if not leaves_at_once:
                    await _to_its_end(undoing)
            raise
        settled()
        return result

    async def carry(self, errand: Errand[T]) -> T:
        """Carries an errand out. Whoever is cancelled meanwhile leaves it to a task."""
        self._carried.add(errand)
        try:
            return await errand
        finally:
            self._carried.discard(errand)
            if errand.rest is not None and not errand.rest.done():
                self._left(errand.rest)
            elif errand.rest is not None and not errand.rest.cancelled():
                errand.rest.exception()  # looked at, also where nobody waits for it any more

    async def settle(self, seconds: float) -> None:
        """Waits for what is under way in this event loop."""
        loop = asyncio.get_running_loop()
        mine: set[asyncio.Future[Any]] = {task for task in list(self._under_way) if task.get_loop() is loop}
        mine |= {errand.ended() for errand in list(self._carried) if errand.loop is loop}
        if mine:
            await asyncio.wait(mine, timeout=seconds)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that only the engine can cancel: whoever wants its result awaits it shielded."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _left(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Work that goes on for somebody who was cancelled."""
        leave(task)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _undo(
        self,
        task: asyncio.Task[T],
        unwanted: Callable[[T], Awaitable[None]],
        let_go: Callable[[T], None],
        settled: Callable[[], None],
    ) -> asyncio.Task[None]:
        taken_on = False

        async def undo() -> None:
            nonlocal taken_on
            await asyncio.wait({task})
            try:
                if _has_result(task):
                    taken_on = True
                    await unwanted(task.result())
            finally:
                settled()

        def torn_down(_: object) -> None:
            # Called before the loop ends: asyncio.run waits for what it cancels.
            if not taken_on and _has_result(task):
                let_go(task.result())

        def ended(_: object) -> None:
            if task.done():
                torn_down(task)
            else:
                task.add_done_callback(torn_down)

        undoing = self._left(asyncio.get_running_loop().create_task(undo()))
        undoing.add_done_callback(ended)
        return undoing

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more


async def to_its_end(errand: Errand[T], ending: Awaitable[T]) -> T:
    """Awaits what an errand comes to. Whoever is cancelled meanwhile hears of it once the errand is over."""
    try:
        return await ending
    except BaseException:
        if errand.rest is not None:
            await _to_its_end(errand.rest)
        raise


async def _to_its_end(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Waits, whatever happens to us; gives the first cancellation that came meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return cancelled


def _has_result(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
