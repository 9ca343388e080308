"""Users' functions, called so that none can hold a worker: in bounded time, sync ones in threads.

A pool that others share could be used up by those that hang, and the process would wait for them at its end.
A thread cannot be stopped: one that goes on after its time is counted as hanging until it ends. So is what an
async function has given to threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from .own_threads import UsersCall, current_call

logger = logging.getLogger("samekey")

T = TypeVar("T")

FAREWELL = 1.0
"""Seconds that what was cancelled has for its clean-up."""


class Aborted(Exception):
    """It raised what is no ordinary error: SystemExit, KeyboardInterrupt, a cancellation of its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"It raised {told(error)}")


def told(error: BaseException) -> str:
    """An error in words. Its own text is a user's code too, and may raise."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (which cannot be told: its __str__ raises)"


class TooLong(Exception):
    """It had not ended when its time was over. Of our own, because a function may raise TimeoutError too."""


class NotBegun(Exception):
    """No thread could be started for it, so it was not called."""


class Surroundings(Protocol):
    """What a framework has around each request, and users' functions need in a worker too: connections that
    are theirs alone, and are given back."""

    def thread(self) -> AbstractContextManager[None]:
        """Around a sync function, in its thread."""

    def task(self) -> AbstractAsyncContextManager[None]:
        """Around whatever is awaited, in its task. ``NotBegun`` if it has no thread for it; what goes on in
        its threads afterwards it says to the ``current_call``."""


class _Bare:
    thread = task = staticmethod(nullcontext)


_surroundings: list[Surroundings] = [_Bare()]


def surround(surroundings: Surroundings) -> None:
    """From now on every call of a user's function in this process is made in these surroundings."""
    _surroundings[:] = [surroundings]


class Apart:
    """Calls of users' functions, and those of them that hang.

    ``hangs`` is called when one is found to hang, ``changed`` when one that hung has ended after all.
    """

    def __init__(
        self, changed: Callable[[], None] = lambda: None, hangs: Callable[[], None] = lambda: None
    ) -> None:
        self._changed = changed
        self._hangs = hangs
        self._hanging: dict[threading.Thread, str] = {}
        self._let_go: dict[asyncio.Task[Any], str] = {}
        self._left: set[UsersCall] = set()
        """Those whose function has ended, and which have threads at work."""

    @property
    def hanging(self) -> Counter[str]:
        """What nobody waits for any more and has not ended in its time, by its name. Threads and tasks."""
        return self._going_on(lambda call: call.overdue)

    @property
    def going_on(self) -> Counter[str]:
        """The same, with what has still time to end."""
        return self._going_on(lambda _: True)

    def _going_on(self, counts: Callable[[UsersCall], bool]) -> Counter[str]:
        threads = [name for thread, name in list(self._hanging.items()) if thread.is_alive()]
        # One that is done is forgotten in the loop's next turn.
        tasks = [name for task, name in list(self._let_go.items()) if not task.done()]
        calls = [call.name for call in list(self._left) if call.at_work and counts(call)]
        return Counter([*threads, *tasks, *calls])

    async def call(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        late: Callable[[Any], None] = lambda _result: None,
    ) -> Any:
        """A sync function in a thread: its result or error; ``Ended`` for what no future can carry;
        ``NotBegun``. ``late`` hears of a result that comes when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if self._hanging.pop(thread, None) is not None:
                self._changed()
            if future.done():
                if error is None:
                    late(result)
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result: Any = None
            raised: Exception | None = None
            try:
                with _surroundings[0].thread():
                    result = function(*arguments)
            except StopIteration as error:
                raised = Aborted(error)
            except Exception as error:
                raised = error
            except BaseException as error:
                raised = Aborted(error)
            try:
                loop.call_soon_threadsafe(settle, result, raised)
            except RuntimeError:
                pass  # the loop is gone: nobody waits any more

        # With the context of its caller, as a task would have it: what it sends is the job's.
        target = partial(contextvars.copy_context().run, work)
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a container's limit of threads, say
            raise NotBegun(f"It was not called: {error}.") from error
        try:
            return await future
        except asyncio.CancelledError:
            self._hanging[thread] = name
            raise

    async def call_any(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        late: Callable[[Any], None] = lambda _result: None,
    ) -> tuple[Any, bool]:
        """A user's function of whatever kind: its result, and whether it was an async one.

        A decorator or an object may hide that it is async, so what it gives decides: whatever can be awaited
        is awaited, and never taken for a result. Only for what ``at_most`` waits for.
        """
        hidden = not inspect.iscoroutinefunction(function)
        called = self.call(name, function, *arguments, late=late) if hidden else function(*arguments)
        result = await called
        awaited = not hidden
        while inspect.isawaitable(result):
            given, awaited = result, True
            result = await given
            if result is given:  # a pool, say, which gives itself
                break
        return result, awaited

    async def at_most(self, longest: timedelta, name: str, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, or what it raised; ``Ended`` where that would end the loop, ``TooLong``.

        What neither ends in time nor lets itself be cancelled is let go of.
        """
        loop = asyncio.get_running_loop()
        call = UsersCall(name, time.monotonic() + longest.total_seconds(), partial(self._tell, loop))
        task = asyncio.ensure_future(_contained(work, call))
        task.add_done_callback(lambda _: work.close())  # where it was cancelled before it began
        task.add_done_callback(lambda _: self._left.add(call) if call.at_work else None)
        try:
            await asyncio.wait({task}, timeout=longest.total_seconds())
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                call.cut_short()
                self._let_go[task] = name
                task.add_done_callback(self._forget)
        await asyncio.wait({task}, timeout=FAREWELL)
        hang = self.hanging
        if hang[name]:
            self._hangs()
            names = ", ".join(f"{what} ({count})" for what, count in sorted(hang.items()))
            logger.error("%d of this worker's calls hang and cannot be stopped: %s", hang.total(), names)
        raise TooLong

    async def farewell(self) -> None:
        """A little time for the clean-up of what was let go of, and for what it has left in threads. What
        does not end even then is forsaken: whoever closes the loop (``asyncio.run``, a server) would wait for
        it for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                if self._let_go:
                    await asyncio.wait(list(self._let_go))
                while any(call.at_work for call in self._left):  # noqa: ASYNC110 - threads say nothing
                    await asyncio.sleep(0.01)
        for task in list(self._let_go):
            asyncio._unregister_task(task)

    def _tell(self, loop: asyncio.AbstractEventLoop, call: UsersCall) -> None:
        """In a thread: the call's last one has ended."""
        with suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(self._end, call)

    def _end(self, call: UsersCall) -> None:
        if call in self._left and not call.at_work:
            self._left.discard(call)
            self._changed()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._let_go.pop(task, None)
        if not task.cancelled():
            task.exception()  # seen, so that it is not reported as lost
        self._changed()


async def _contained(work: Coroutine[Any, Any, T], call: UsersCall) -> T:
    """A task that raises SystemExit ends its loop; one that raises a cancellation looks like our own stop."""
    current_call.set(call)  # in the task's own context
    try:
        async with _surroundings[0].task():
            return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Aborted(error) from error  # nobody cancelled it: it raised that by itself
    except Exception:
        raise
    except BaseException as error:
        raise Aborted(error) from error
