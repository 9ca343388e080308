"""The cancellation enumerator: it cancels an operation at every point where it waits, one after the other.

No list of points is kept by hand. Every task that the operation starts is watched, and each of their
suspensions is a point: there the caller is cancelled, as by a server whose client has left, or by a deadline.
At each point it is done twice: while the task waits, and in the moment in which it would have gone on, when
what it waited for is there and nobody takes it.

    async def operation(cancellation: Cancellation) -> object:
        return await idempotency.once_async(tenant="t", key=cancellation.label, run=pay)

    async for cancelled in enumerate_cancellations(operation):
        # The caller is gone. Now look at the store, retry with the same key, and whatever must hold.
        assert effects(cancelled.label) <= 1, cancelled

Each run gets a fresh ``label`` to make its keys of. By default the operation's own task is cancelled. To
cancel something inside it, say how with ``cancellation.aim``:

    async with asyncio.timeout(None) as deadline:
        cancellation.aim(lambda: deadline.reschedule(0))
        return await handler(request)

What others do at the same time, in tasks that the operation has not started, is not counted.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Cancellation", "Cancelled", "Moment", "enumerate_cancellations"]

Moment: TypeAlias = Literal["waiting", "waking"]
Operation: TypeAlias = Callable[["Cancellation"], Awaitable[Any]]
Others: TypeAlias = Callable[[str], Awaitable[object]]

MOST = 1_000
"""Points of one operation. One that has more of them does not come to an end."""

_current: contextvars.ContextVar[Cancellation | None] = contextvars.ContextVar("cancellation", default=None)


class Cancellation:
    """One run of an operation: counts its points, and cancels at one of them."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.label = secrets.token_hex(8)
        """New for every run: make the run's keys of it."""
        self.number = number
        self.moment: Moment = moment
        self.passed = 0
        self.struck = False
        self._cancel: Callable[[], object] | None = None
        self._over = False

    def aim(self, cancel: Callable[[], object] | None) -> None:
        """From here on this is how to cancel. None: nothing is cancelled and no point counts, until told."""
        self._cancel = cancel

    def _suspended(self, waits_for: Any) -> None:
        if self._over or self.struck or self._cancel is None:
            return
        self.passed += 1
        if self.passed < self.number:
            return
        self.struck = True
        if self.moment == "waking" and asyncio.isfuture(waits_for):
            # Ours is called before the task's own, which would let it go on.
            waits_for.add_done_callback(lambda _: self._strike())
        else:
            asyncio.get_running_loop().call_soon(self._strike)

    def _strike(self) -> None:
        if not self._over and self._cancel is not None:
            self._cancel()


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A run that was cancelled: where, the label that its keys were made of, and how it ended."""

    number: int
    moment: Moment
    label: str
    result: Any = None
    error: BaseException | None = None

    def __str__(self) -> str:
        ended = f"gave {self.result!r}" if self.error is None else f"raised {self.error!r}"
        return f"cancelled {self.moment} at point {self.number}, {ended}"


async def enumerate_cancellations(
    operation: Operation,
    *,
    among: Others | None = None,
    moments: tuple[Moment, ...] = ("waiting", "waking"),
) -> AsyncIterator[Cancelled]:
    """Runs the operation again and again, cancelled at its first point, its second …; yields after each.

    ``among``: what others do at the same time, given the run's label; it must come to its end. The
    enumeration ends when a run has come to its end before it could be cancelled.
    """
    for moment in moments:
        for number in range(1, MOST + 1):
            cancellation = Cancellation(number, moment)
            others = None if among is None else asyncio.ensure_future(among(cancellation.label))
            cancelled = await _run(operation, cancellation)
            if others is not None:
                await others
            if not cancellation.struck:
                if cancelled.error is not None:
                    raise cancelled.error  # it fails without any help
                break
            yield cancelled
        else:
            raise AssertionError(f"The operation still went on after {MOST} suspensions.")


async def _run(operation: Operation, cancellation: Cancellation) -> Cancelled:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_watching(before))
    token = _current.set(cancellation)
    try:
        task = loop.create_task(_whole(operation, cancellation))
    finally:
        _current.reset(token)
    cancellation.aim(task.cancel)
    try:
        await asyncio.wait({task})
    finally:
        cancellation._over = True
        loop.set_task_factory(before)
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    result = None if error is not None else task.result()
    return Cancelled(cancellation.number, cancellation.moment, cancellation.label, result, error)


async def _whole(operation: Operation, cancellation: Cancellation) -> Any:
    return await operation(cancellation)


def _watching(before: Any) -> Any:
    """A task factory whose tasks count their suspensions, if they belong to an operation."""

    def create(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        context = options.get("context")
        cancellation = _current.get() if context is None else context.get(_current)
        if cancellation is None:
            return _made(before, loop, work, options)
        task = _made(before, loop, _counted(work, cancellation), options)
        task.add_done_callback(lambda _: work.close())  # of one that was cancelled before its first step
        return task

    return create


def _made(before: Any, loop: asyncio.AbstractEventLoop, work: Any, options: dict[str, Any]) -> Any:
    return asyncio.Task(work, loop=loop, **options) if before is None else before(loop, work, **options)


async def _counted(work: Coroutine[Any, Any, Any], cancellation: Cancellation) -> Any:
    return await _each_step(work, cancellation)


@types.coroutine
def _each_step(work: Coroutine[Any, Any, Any], cancellation: Cancellation) -> Generator[Any, Any, Any]:
    """The same as ``await work``, and tells of every suspension."""
    try:
        waits_for = work.send(None)
        while True:
            cancellation._suspended(waits_for)
            try:
                answer = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(answer)
    except StopIteration as stop:
        return stop.value
