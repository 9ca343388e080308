"""Jobs, lookups and phased views that a worker calls have Django's connections as a view has: each its own.

Django opens a connection for each thread, and closes what is old or broken when a request begins and ends. In
a worker no request ever does; and its async ORM would use one thread, so one connection, for all calls.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections

from ..workers.apart import NotBegun
from ..workers.own_threads import current_call

logger = logging.getLogger("samekey")

KEPT = 64
"""Threads of async calls that are kept for the next ones, with the connections that Django keeps."""

T = TypeVar("T")
P = ParamSpec("P")


class _OneThread(Executor):
    """Runs what it is given, in turn. No process waits for it at its end: a statement may hang."""

    def __init__(self) -> None:
        self._given: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._last = Future[Any]()
        Thread(target=self._run, name="samekey-django", daemon=True).start()

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = Future[T]()

        def carry_out() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._given.put(carry_out)
        self._last = future
        return future

    @property
    def at_work(self) -> bool:
        return not self._last.done()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._given.put(None)

    def _run(self) -> None:
        while (carry_out := self._given.get()) is not None:
            carry_out()
            del carry_out  # what it holds is not kept until the next one comes


_idle: list[_OneThread] = []
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_idle.clear)


class DjangosSurroundings:
    """What ``samekey.workers.apart`` puts around each call."""

    @contextmanager
    def thread(self) -> Iterator[None]:
        """The thread ends with the call, so its connections end too."""
        try:
            yield
        finally:
            _close(connections.close_all)

    @asynccontextmanager
    async def task(self) -> AsyncIterator[None]:
        """A thread for the ORM of this call alone, as each request of Django's has one."""
        try:
            executor = _idle.pop() if _idle else _OneThread()
        except RuntimeError as error:  # a container's limit of threads, say
            raise NotBegun(f"It was not called: {error}.") from error
        executor.submit(_close, close_old_connections)
        context = ThreadSensitiveContext()
        async with context:
            SyncToAsync.context_to_thread_executor[context] = executor
            try:
                yield
            finally:
                # Nobody waits for it: a call that was cancelled may have left a statement that hangs.
                SyncToAsync.context_to_thread_executor.pop(context, None)
                hangs, tidy = executor.at_work, executor.submit(_is_tidy)
                tidy.add_done_callback(partial(_keep, executor))
                call = current_call.get()
                if hangs and call is not None:
                    call.goes_on(tidy)


def _is_tidy() -> bool:
    """Whether a thread may be given to the next call. Django leaves a connection alone that is in a block of
    ``atomic()``; one that a call has left open would be the next call's, and is nobody's to end."""
    _close(close_old_connections)
    left = [one for one in connections.all(initialized_only=True) if one.in_atomic_block]
    for wrapper in left:
        _close(wrapper._close)  # the connection itself: the block, and the thread, are at their end
    if left:
        _close(connections.close_all)
    return not left


def _keep(executor: _OneThread, tidy: Future[bool]) -> None:
    if tidy.exception() is None and tidy.result() and len(_idle) < KEPT:
        _idle.append(executor)
    else:
        executor.shutdown()


def _close(close: Any) -> None:
    try:
        close()
    except Exception:  # what came of the call counts, and not whether its connection could be closed
        logger.warning("A connection of Django's could not be closed", exc_info=True)
