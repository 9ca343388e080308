"""The desk: where a user's lookup is asked in the middle of a request, in bounded time and few at once.

A lookup calls a provider, which may hang. It must not take a request's time for ever, nor the threads of
everybody else: a thread whose lookup will not end keeps its place here and nothing more.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from ...core.record import Record
from ...evidence import check_finding

Lookup = Callable[[Record], Any]
"""Finds out what became of an operation; see ``samekey.evidence``. It may be async."""

LOOKUP_TIMEOUT = timedelta(seconds=30)
"""The longest that one lookup is waited for, by a reconciler or by a request."""
PLACES = 10
"""Lookups of requests that are under way at a time in one process. Keys that expired and come back are rare;
where they are not, the provider is spared, and the client comes again."""


class LookupFailed(Exception):
    """A lookup that gave no finding; its word counts for nothing, and it is asked again later."""


class Desk:
    """Asks lookups, sync and async, from sync and from async code."""

    def __init__(self, *, timeout: timedelta = LOOKUP_TIMEOUT, places: int = PLACES) -> None:
        self._seconds = timeout.total_seconds()
        self._places = threading.BoundedSemaphore(places)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._late: set[Any] = set()
        """Lookups that nobody waits for any more and that have not ended."""

    def ask(self, lookup: Lookup, record: Record) -> Any:
        """A finding. An async lookup runs in an event loop of its own."""
        answer = self._in_thread(lambda: _to_its_end(lookup(record)))
        try:
            return _checked(answer.result(self._seconds))
        except Exception as error:
            self._left(answer)
            raise self._failed(error, ended=answer.done()) from error

    async def ask_async(self, lookup: Lookup, record: Record) -> Any:
        """A finding. An async lookup runs in this event loop, any other in a thread."""
        if inspect.iscoroutinefunction(lookup):
            asking: asyncio.Future[Any] = self._in_task(lookup(record))
            given: Future[Any] | asyncio.Future[Any] = asking
        else:
            thread = self._in_thread(lambda: lookup(record))
            asking, given = asyncio.ensure_future(_from_thread(thread)), thread
        try:
            # Not cancelled and waited for: a lookup that will not hear of it would keep the request.
            await asyncio.wait({asking}, timeout=self._seconds)
        finally:
            ended = asking.done()
            asking.cancel()
            self._left(given)
        try:
            return _checked(asking.result() if ended else _never())
        except (Exception, asyncio.CancelledError) as error:
            raise self._failed(error, ended=ended) from error

    def _in_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        try:
            self._take()
        except LookupFailed:
            coroutine.close()
            raise
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more

    def _in_thread(self, call: Callable[[], Any]) -> Future[Any]:
        self._take()
        answer: Future[Any] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(call)
            except BaseException as error:
                self._places.release()
                answer.set_exception(error)
            else:
                self._places.release()
                answer.set_result(result)

        try:
            threading.Thread(target=work, name="samekey lookup", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise LookupFailed(f"No thread can be started just now: {error}") from error
        return answer

    def _left(self, asked: Future[Any] | asyncio.Future[Any]) -> None:
        """Nobody waits for it any more."""
        if not asked.done():
            self._late.add(asked)
            asked.add_done_callback(self._late.discard)

    def _take(self) -> None:
        if not self._places.acquire(blocking=False):
            raise LookupFailed(
                "As many lookups as may be are under way; "
                f"{len(self._late)} of them hang: give their calls a time-out of their own."
            )

    def _failed(self, error: BaseException, *, ended: bool) -> LookupFailed:
        if not ended:
            return LookupFailed(f"It did not answer within {self._seconds:g} s.")
        return LookupFailed(f"{type(error).__name__}: {error}")


def _checked(finding: Any) -> Any:
    check_finding(finding)
    return finding


def _never() -> Any:
    raise TimeoutError


async def _from_thread(thread: Future[Any]) -> Any:
    # Shielded: a future of a thread that nobody waits for any more must not be cancelled under it.
    result = await asyncio.shield(asyncio.wrap_future(thread))
    return await result if inspect.isawaitable(result) else result


def _to_its_end(result: Any) -> Any:
    """What a lookup returned in sync code; where that is a coroutine, what comes of it."""
    if not inspect.isawaitable(result):
        return result

    async def awaiting() -> Any:
        return await result

    return asyncio.run(awaiting())
