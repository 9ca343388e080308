"""Work that its caller's cancellation does not interrupt, and that costs no task while nobody is cancelled.

The caller carries the work out itself. Only once the caller is cancelled does a task take over, in the very
place at which the work waits; the caller leaves, and the work goes on to its end.

That is safe for work that does not look at which task runs it. ``asyncio.timeout`` does, and so do the
clients of some stores: work that may meet such a thing is a task from its beginning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, Generic, TypeVar

from .caller import Caller, caller

T = TypeVar("T")


def moves(driver: object) -> bool:
    """Whether a task may take over what a driver is in the middle of: the driver says so by ``moves``."""
    return bool(getattr(driver, "moves", False))


class Waiting:
    """``await Waiting(future)``: until it is done, however it ends, or until ``leave`` is called.

    It stands for the future before whoever awaits it, and keeps that one's cancellation from the future: what
    ``asyncio.shield`` does, without a future, a callback and a turn of the event loop of its own.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_future", "_loop", "_wake", "disturbed")

    def __init__(self, future: Any) -> None:
        self._asyncio_future_blocking = True
        self._loop: asyncio.AbstractEventLoop = future.get_loop()  # by this name a task asks for it
        self._future = future
        self._wake: Callable[[Any], object] | None = None
        self.disturbed = False
        """Whoever awaits it was cancelled."""

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._future.done():
            try:
                yield self
            except BaseException:
                if self.disturbed or not self._future.done():
                    raise

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return bool(self._future.done())

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._wake, self._context = wake, context
        self._future.add_done_callback(wake, context=context)

    def remove_done_callback(self, wake: Callable[[Any], object]) -> int:
        return int(self._future.remove_done_callback(wake))

    def cancel(self, msg: object = None) -> bool:
        """Wakes whoever awaits it, and leaves the future alone. False: it wakes up by itself now."""
        self.disturbed = True
        if self._wake is None or self._future.done():
            return False
        return self._instead(self._wake).cancel(msg)

    def leave(self) -> None:
        """Wakes whoever awaits it although the future is not done."""
        if self._wake is not None and not self._future.done():
            self._instead(self._wake).set_result(None)

    def _instead(self, wake: Callable[[Any], object]) -> asyncio.Future[None]:
        """A future that wakes whoever awaits this one, which does not any more."""
        self._future.remove_done_callback(wake)
        other: asyncio.Future[None] = self._loop.create_future()
        other.add_done_callback(wake, context=self._context)
        self._wake = None
        return other


async def shielded(future: asyncio.Future[T]) -> T:
    """What the future comes to. Whoever awaits it may be cancelled; the future does not hear of it."""
    await Waiting(future)
    return future.result()


class Errand(Generic[T]):
    """One piece of such work. Its first ``await`` does it; ``result`` is for everybody else.

    ``moves``: the work may be taken over by a task in the middle; else it is one from the beginning. ``who``:
    whom it is for, as far as the work asks.
    """

    __slots__ = ("_ended", "_error", "_moves", "_value", "_who", "_work", "is_over", "loop", "rest")

    def __init__(self, work: Coroutine[Any, Any, T], *, moves: bool, who: Caller | None = None) -> None:
        self._work = work
        self._moves = moves
        self._who = who
        self.loop = asyncio.get_running_loop()
        self.rest: asyncio.Task[T] | None = None
        """Does what is left of it, once the caller was cancelled."""
        self.is_over = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._ended: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._moves:
            task = self.rest = self._in_a_task(self._work)
            yield from Waiting(task).__await__()
            self._forget(task)
            return task.result()
        while True:
            try:
                future = self._step()
            except StopIteration as stop:
                value: T = stop.value
                return value
            waiting = None if future is None else Waiting(future)
            try:
                yield waiting
            except GeneratorExit:
                self._work.close()
                self.is_over = True
                raise
            except BaseException:
                if waiting is None or waiting.disturbed or not future.done():
                    self.rest = self._in_a_task(self._carried_on(future))
                    raise
                # What the future ended with: the work takes it from there.

    def _forget(self, task: asyncio.Task[T]) -> None:
        """A task knows its context, where somebody may know this errand: holding each other, they would wait
        for the garbage collector."""
        if not task.cancelled():
            self._error = task.exception()
            self._value = None if self._error is not None else task.result()
            self.rest = None
            self._end()

    def _in_a_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        token = caller.set(self._who)
        try:
            return self.loop.create_task(work)
        finally:
            caller.reset(token)

    async def result(self) -> T:
        """What it came to, or comes to, whoever does it."""
        if self.rest is not None:
            return await shielded(self.rest)
        if not self.is_over:
            await Waiting(self.ended())
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value] # it is over

    def ended(self) -> asyncio.Future[Any]:
        """Done when it is over."""
        if self.rest is not None:
            return self.rest
        if self._ended is None:
            self._ended = self.loop.create_future()
            if self.is_over:
                self._ended.set_result(None)
        return self._ended

    def _step(self, thrown: BaseException | None = None) -> Any:
        """Goes on to where the work waits next, and gives for what."""
        token = caller.set(self._who)
        try:
            future = self._work.send(None) if thrown is None else self._work.throw(thrown)
        except StopIteration as stop:
            self._value = stop.value
            self._end()
            raise
        except BaseException as error:
            self._error = error
            self._end()
            raise
        finally:
            caller.reset(token)
        return future

    def _end(self) -> None:
        self.is_over = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _carried_on(self, future: Any) -> T:
        return await _CarriedOn(self, future)


class _CarriedOn(Generic[T]):
    """The rest of an errand, as a task awaits it; ``future`` is what the work waits for."""

    __slots__ = ("_errand", "_future")

    def __init__(self, errand: Errand[T], future: Any) -> None:
        self._errand = errand
        self._future = future

    def __await__(self) -> Generator[Any, Any, T]:
        errand, future = self._errand, self._future
        thrown: BaseException | None = None
        waits = future is not None and not future.done()
        if waits:
            future._asyncio_future_blocking = True
        while True:
            if waits:
                try:
                    yield future
                except GeneratorExit:
                    errand._work.close()
                    raise
                except BaseException as error:
                    thrown = error
            waits = True
            try:
                future = errand._step(thrown)
            except StopIteration as stop:
                value: T = stop.value
                return value
            thrown = None


FAREWELL: Final = 15.0
"""Seconds for which an event loop that ends waits for what its cancelled callers have left to tasks."""
_left: dict[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]] = {}


def leave(task: asyncio.Task[Any]) -> None:
    """The task has taken over from somebody who was cancelled, perhaps because the event loop ends. Then it
    is not among those that the loop waits for."""
    if not task.done():
        _left.setdefault(task.get_loop(), set()).add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    loop = task.get_loop()
    tasks = _left.get(loop, set())
    tasks.discard(task)
    if not tasks:
        _left.pop(loop, None)


async def see_off() -> None:
    """The event loop ends, and its connections with it: what was left to tasks comes to its end first."""
    loop, until = asyncio.get_running_loop(), time.monotonic() + FAREWELL
    while (tasks := set(_left.get(loop, ()))) and (seconds := until - time.monotonic()) > 0:
        await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1)
