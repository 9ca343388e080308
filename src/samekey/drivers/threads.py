"""Sync drivers for async code, run in threads: what SQLite and MySQL share.

A caller that is cancelled never interrupts a statement half-way: its thread finishes it, and the session's
end waits for it. What a thread makes for a caller who has gone is undone in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from ..core.program import Row, Statement
from ..errors import CommitRefused, OperationOver, StoreBusy
from .fork import anew_after_fork, leave_to_parent
from .protocol import Session
from .turn import Turn

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
        after: Callable[[], object] | None = None,
    ) -> T:
        """Does something in a thread. ``StoreBusy`` if none was free in time; then it is never done.

        ``undo``: what becomes of the result if the caller was cancelled meanwhile. ``after``: called in the
        event loop once the thread is done with it, or it is certain that none will begin.
        """
        loop = asyncio.get_running_loop()
        try:
            job, answer = self._submit(loop, work, after)
        except StoreBusy:
            if after is not None:
                after()
            raise
        timer = loop.call_later(self._timeout, self._give_up, job, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            _forget(answer)
            if not job.cancel() and undo is not None:
                self._threads().submit(_undo, job, undo)
            raise
        finally:
            timer.cancel()

    async def finish(self, work: Callable[[], T], *, after: Callable[[], object] | None = None) -> T:
        """The same for what must be done: however long it waits, and whatever becomes of the caller. Here and
        now, if there is no thread for it."""
        try:
            _, answer = self._submit(asyncio.get_running_loop(), work, after)
        except StoreBusy:
            try:
                return work()
            finally:
                if after is not None:
                    after()
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
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], T], after: Callable[[], object] | None
    ) -> tuple[Future[T], asyncio.Future[T]]:
        answer: asyncio.Future[T] = loop.create_future()

        def settle() -> None:
            if after is not None:
                after()
            if not answer.done():
                _copy(job, answer)

        def tell(_: Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:  # the event loop is closed; in another one somebody may wait for the turn
                with suppress(RuntimeError):
                    if after is not None:
                        after()

        called_off = False

        def unless_called_off() -> T:
            if called_off:
                raise StoreBusy("It was given up before it began.")
            return work()

        try:
            job = self._threads().submit(copy_context().run, unless_called_off)
        except RuntimeError as error:
            # It may be in the queue all the same, for a thread that comes later.
            called_off = True
            raise StoreBusy(
                f"No thread can be started just now ({error}). Retry with the same key."
            ) from error
        job.add_done_callback(tell)
        return job, answer

    def _give_up(self, job: Future[T], answer: asyncio.Future[T]) -> None:
        if job.cancel() and not answer.done():
            answer.set_exception(
                StoreBusy(f"No thread was free within {self._timeout:g} s. Retry with the same key.")
            )

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._made is None:
                self._made = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
            return self._made


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


class LendingSession(Session, Protocol):
    """A sync session that can be used from threads."""

    def lend(self, work: Callable[[Any], T]) -> T:
        """Does something with the connection that the handler sees."""

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Rolls back, and calls ``then``, if the handler has not ended by that time."""


S = TypeVar("S", bound=LendingSession)


class ThreadedSession(Generic[S]):
    """A sync session for async code. One statement after the other, and none after the end.

    ``turn``: has to be had before the first use, and is given back at the end.
    """

    def __init__(self, session: S, lane: Lane, turn: Callable[[], Awaitable[Turn]] | None = None) -> None:
        self._session = session
        self._lane = lane
        self._take_turn = turn
        self._turn: Turn | None = None
        self._ended = False
        self._one_at_a_time = asyncio.Lock()
        self._connection = AsyncConnection(self)

    @property
    def connection(self) -> AsyncConnection:
        return self._connection

    def wrote(self) -> bool | None:
        return self._session.wrote()

    def in_transaction(self) -> bool:
        return self._session.in_transaction()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return await self._use(lambda: self._session.execute(statement))

    async def lend(self, work: Callable[[Any], T]) -> T:
        """Does something with the connection that the handler sees."""
        return await self._use(lambda: self._session.lend(work))

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Rolls back, and calls ``then``, if the handler has not ended by that time.

        In a thread, since a handler may hang in a way that holds up the event loop.
        """
        loop = asyncio.get_running_loop()

        def expired() -> None:
            then()
            try:
                loop.call_soon_threadsafe(self._expired)
            except RuntimeError:  # the event loop is closed
                self._expired()

        self._session.expire_after(seconds, expired)

    def _expired(self) -> None:
        self._ended = True
        self._end_turn()

    async def commit(self) -> None:
        await self._end(self._session.commit)

    async def rollback(self) -> None:
        await self._end(self._session.rollback)

    def give_up(self) -> None:
        """Rolls back; nobody waits for it, and the event loop may end."""
        self._ended = True
        if self._take_turn is not None and self._turn is None:
            self._session.rollback()
        else:
            self._lane.leave(self._session.rollback, after=self._end_turn)

    async def _use(self, work: Callable[[], T]) -> T:
        self._refuse_if_over()
        await self._one_at_a_time.acquire()
        try:
            await self._begin()
        except BaseException:
            self._one_at_a_time.release()
            raise
        # Held until the thread is done, also where the caller is cancelled before that.
        return await self._lane.run(work, after=self._one_at_a_time.release)

    async def _begin(self) -> None:
        self._refuse_if_over()
        if self._take_turn is not None and self._turn is None:
            self._turn = await self._take_turn()
            try:
                self._refuse_if_over()  # it may have been ended while this waited
            except OperationOver:
                self._end_turn()
                raise

    def _refuse_if_over(self) -> None:
        if self._ended:
            raise OperationOver

    async def _end(self, how: Callable[[], None]) -> None:
        """A caller that is cancelled meanwhile does not keep the transaction from being ended."""
        self._ended = True
        if self._take_turn is not None and self._turn is None:
            how()  # it was never begun, so there is nothing to wait for
        else:
            await self._lane.finish(how, after=self._end_turn)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.give_back()


class AsyncConnection:
    """What an async handler writes through: ``await connection.execute(sql, parameters)``.

    Parameters are spelled as the database's own driver spells them: ``?`` on SQLite, ``%s`` on MySQL. Rows
    are fetched in the thread, so what comes back is plain data.
    """

    def __init__(self, session: ThreadedSession[Any]) -> None:
        self._session = session

    async def execute(self, sql: str, parameters: Parameters | None = None) -> Result:
        """Runs one statement and gives its rows."""
        given = () if parameters is None else (parameters,)
        return await self._session.lend(lambda connection: _run(connection, "execute", sql, *given))

    async def executemany(self, sql: str, parameters: Iterable[Parameters]) -> Result:
        """Runs one statement for each set of parameters."""
        given = list(parameters)
        return await self._session.lend(lambda connection: _run(connection, "executemany", sql, given))

    async def begin(self) -> None:
        """Always refused: the transaction is there already."""
        _refuse()

    async def commit(self) -> None:
        """Always refused: samekey commits, together with the answer."""
        _refuse()

    async def rollback(self) -> None:
        """Always refused: raise an error to undo everything."""
        _refuse()

    async def close(self) -> None:
        """Always refused: samekey needs it to commit."""
        _refuse()


COMMIT_REFUSED = (
    "samekey commits this transaction together with the answer, so the handler must not end it, nor close "
    "its connection. Remove the commit, rollback or close; to undo everything, raise an error."
)


def _refuse() -> NoReturn:
    raise CommitRefused(COMMIT_REFUSED)


class Result:
    """The rows of a statement, with ``lastrowid`` and ``rowcount``."""

    def __init__(self, rows: list[Any], lastrowid: int | None, rowcount: int) -> None:
        self.rows = rows
        self.lastrowid = lastrowid
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        return self.rows[0] if self.rows else None

    def fetchall(self) -> list[Any]:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def _run(connection: Any, method: str, sql: str, *parameters: Any) -> Result:
    cursor = connection.cursor()
    try:
        getattr(cursor, method)(sql, *parameters)
        rows = [] if cursor.description is None else list(cursor.fetchall())
        return Result(rows, cursor.lastrowid or None, cursor.rowcount)
    finally:
        cursor.close()
