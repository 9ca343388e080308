"""Threads that users' async functions use (``asyncio.to_thread``) are those of their own call.

A function that is cancelled has ended; what it has given to a thread goes on. In the event loop's one pool,
some calls that hang would keep everybody else's from beginning, and nobody would know whose they are.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

WIDEST = min(32, (os.cpu_count() or 1) + 4)
"""Threads of one call at a time, as many as asyncio has for all: one that wants more waits for itself."""


class UsersCall:
    """What works for one call of a user's function in threads. ``ended`` is called, in a thread, when
    nothing does any more."""

    def __init__(self, name: str, until: float, ended: Callable[[UsersCall], None]) -> None:
        self.name = name
        self._until = until
        self._ended = ended
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._others = 0

    @property
    def at_work(self) -> bool:
        return self._threads + self._others > 0

    @property
    def overdue(self) -> bool:
        """Whether its time is over, or it was cut short."""
        return time.monotonic() >= self._until

    def cut_short(self) -> None:
        self._until = 0.0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future = Future[T]()

        def carry_out() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

        with self._lock:
            self._waiting.append(carry_out)
            if self._threads < WIDEST:
                try:
                    threading.Thread(target=self._run, name=self.name, daemon=True).start()
                    self._threads += 1
                except RuntimeError:  # a container's limit of threads, say: those that are there do it
                    if not self._threads:
                        self._waiting.pop()
                        raise
        return future

    def goes_on(self, future: Future[Any]) -> None:
        """Something of its own goes on in a thread of somebody else's."""
        with self._lock:
            self._others += 1
        future.add_done_callback(self._other_ended)

    def _run(self) -> None:
        while (carry_out := self._next()) is not None:
            carry_out()
            del carry_out  # what it holds is not kept
        self._tell()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _other_ended(self, _: Future[Any]) -> None:
        with self._lock:
            self._others -= 1
        self._tell()

    def _tell(self) -> None:
        if not self.at_work:
            self._ended(self)


current_call: ContextVar[UsersCall | None] = ContextVar("current_call", default=None)


class OwnThreads(ThreadPoolExecutor):
    """An event loop's default executor, in which each call of a worker's has threads of its own. Everybody
    else in the process has the former executor, or what asyncio would have made."""

    def __init__(self, former: Any) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._former = former

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = current_call.get()
        if call is not None:
            return call.submit(lambda: work(*args, **kwargs))
        if self._former is not None:
            given: Future[T] = self._former.submit(work, *args, **kwargs)
            return given
        return super().submit(work, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nobody waits for what the calls have left: it may hang."""
        if self._former is not None:
            self._former.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


def use_own_threads(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, in this loop. It stays so: what it is for may outlive the worker."""
    former = getattr(loop, "_default_executor", None)  # a loop of another make does not show it
    if not isinstance(former, OwnThreads):
        loop.set_default_executor(OwnThreads(former))
