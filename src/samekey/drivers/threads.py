"""Sync work for async code, done in threads: what the drivers of SQLite and MySQL share.

A caller that is cancelled never interrupts a statement half-way: its thread finishes it, and the session's
end waits for it. What a thread makes for a caller who has gone is undone in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from ..errors import StoreBusy
from .alarm import ALARM
from .attendant import start
from .fork import anew_after_fork, leave_to_parent
from .places import NoPlace

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any]


async def in_a_thread(work: Callable[..., T], *args: Any) -> T:
    """Does something rare in a thread of its own: starting, stopping. The event loop's default executor is
    the application's, and may be full of what hangs."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    job: Future[T] = Future()

    def settle() -> None:
        if not answer.done():
            _copy(job, answer)

    def run() -> None:
        try:
            job.set_result(work(*args))
        except BaseException as error:
            job.set_exception(error)
        with suppress(RuntimeError):  # the event loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="samekey", daemon=True)
    thread.start()
    try:
        result = await answer
    except asyncio.CancelledError:
        _forget(answer)
        raise
    thread.join()  # it has said its last word
    return result


_COMES_BACK = 2.0
"""Seconds in which an event loop that has stopped comes for what it had asked for, if ever."""


class Lane:
    """Threads for one kind of work: ``size`` at most, made when they are needed, and anew after a fork.

    Nobody waits for a thread longer than ``timeout`` seconds. It belongs to no event loop.
    """

    def __init__(self, name: str, size: int, timeout: float) -> None:
        self._name = name
        self._size = size
        self._timeout = timeout
        self._made: ThreadPoolExecutor | None = None
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        leave_to_parent(self._made)
        self._lock = threading.Lock()
        self._made = None

    async def run(
        self,
        work: Callable[[], T],
        *,
        undo: Callable[[T], object] | None = None,
        missed: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> T:
        """Does something in a thread. ``StoreBusy`` if none was free in time; then it is never done.

        ``undo``: what becomes of the result if the caller was cancelled meanwhile. ``missed``: called if the
        caller was cancelled and it is done all the same. ``after``: called in the event loop once the thread
        is done with it, or it is certain that none will begin.

        A loop may stop for ever before it has the result: what it does not come for in time is undone.
        """
        loop = asyncio.get_running_loop()
        try:
            job, answer = self._submit(loop, work, after, undo)
        except StoreBusy:
            if after is not None:
                after()
            raise
        timer = loop.call_later(self._timeout, self._give_up, job, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            _forget(answer)
            if not job.cancel():
                if missed is not None:
                    missed()
                if undo is not None:
                    self._threads().submit(_undo, job, undo)
            raise
        finally:
            timer.cancel()

    async def finish(self, work: Callable[[], T], *, after: Callable[[], object] | None = None) -> T:
        """The same for what must be done: however long it waits, and whatever becomes of the caller. Here and
        now, if there is no thread for it. ``after`` is called in the thread: the event loop may have ended.
        """

        def both() -> T:
            try:
                return work()
            finally:
                if after is not None:
                    after()

        try:
            _, answer = self._submit(asyncio.get_running_loop(), both)
        except StoreBusy:
            return both()
        try:
            return await answer
        except asyncio.CancelledError:
            _forget(answer)
            raise

    def leave(self, work: Callable[[], object], *, after: Callable[[], object]) -> None:
        """The same without an event loop: nobody waits for it."""

        def both() -> None:
            try:
                work()
            finally:
                after()

        try:
            self._threads().submit(both)
        except RuntimeError:  # no thread can be started: here and now
            both()

    async def close(self) -> None:
        """Waits for what the threads are doing, as long as one may wait for them, without holding up the
        event loop."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout + 1):
                    await in_a_thread(made.shutdown)

    def _submit(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], T],
        after: Callable[[], object] | None = None,
        undo: Callable[[T], object] | None = None,
    ) -> tuple[Future[T], asyncio.Future[T]]:
        answer: asyncio.Future[T] = loop.create_future()
        result = _Result(undo)

        # Neither of them knows ``job`` but as an argument: it keeps them, and holding each other they would
        # wait for the garbage collector.
        def settle(job: Future[T]) -> None:
            if after is not None:
                after()
            if not answer.done():
                if result.is_taken():
                    _copy(job, answer)
                else:
                    answer.set_exception(NoPlace("Its event loop had stopped. Retry with the same key."))

        def tell(job: Future[T]) -> None:
            if not loop.is_running():
                result.expire_after(_COMES_BACK, loop, job)
            with suppress(RuntimeError):  # the event loop is closed, and nobody waits
                loop.call_soon_threadsafe(settle, job)

        called_off = False

        def unless_called_off() -> T:
            if called_off:
                raise NoPlace("It was given up before it began.")
            return work()

        try:
            job = self._threads().submit(copy_context().run, unless_called_off)
        except RuntimeError as error:
            # It may be in the queue all the same, for a thread that comes later.
            called_off = True
            raise NoPlace(f"No thread can be started just now ({error}). Retry with the same key.") from error
        job.add_done_callback(tell)
        return job, answer

    def _give_up(self, job: Future[T], answer: asyncio.Future[T]) -> None:
        if job.cancel() and not answer.done():
            answer.set_exception(
                NoPlace(f"No thread was free within {self._timeout:g} s. Retry with the same key.")
            )

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._made is None:
                self._made = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
            return self._made


class _Result(Generic[T]):
    """What a thread has made: its event loop has it, or it is undone. One of them."""

    def __init__(self, undo: Callable[[T], object] | None) -> None:
        self._undo = undo
        self._free = threading.Lock()

    def is_taken(self) -> bool:
        return self._undo is None or self._free.acquire(blocking=False)

    def expire_after(self, seconds: float, loop: asyncio.AbstractEventLoop, job: Future[T]) -> None:
        """In a thread of its own. A loop that runs again has time to come for it."""
        undo = self._undo
        if undo is None or job.cancelled() or job.exception() is not None:
            return

        def expire() -> None:
            if loop.is_running():
                ALARM.after(seconds, expire)
            elif self._free.acquire(blocking=False):
                start(threading.Thread(target=undo, args=(job.result(),), name="samekey", daemon=True))

        with suppress(StoreBusy):
            ALARM.after(seconds, expire)


def _copy(job: Future[T], answer: asyncio.Future[T]) -> None:
    if job.cancelled():
        answer.cancel()
        return
    error = job.exception()
    if error is None:
        answer.set_result(job.result())
    elif isinstance(error, StopIteration):
        # No future takes it, and whoever waits would wait for ever; a coroutine that raises it does the same.
        wrapped = RuntimeError("StopIteration was raised in a thread")
        wrapped.__cause__ = error
        answer.set_exception(wrapped)
    else:
        answer.set_exception(error)


def _forget(answer: asyncio.Future[Any]) -> None:
    """It came in the moment in which its caller was cancelled: nobody will look at it."""
    if answer.done() and not answer.cancelled():
        answer.exception()


def _undo(job: Future[T], undo: Callable[[T], object]) -> None:
    if job.exception() is None:
        undo(job.result())
