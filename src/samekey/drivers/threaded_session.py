"""A sync session lent to async code: every statement in a thread, one after the other.

Nobody can call back a statement that a thread has begun. If its caller is cancelled (a deadline of the
handler's own, a task group) it is carried out all the same, and the handler thinks that it was not. So from
then on nothing of the handler's is sent any more, and nothing is committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from ..core.program import Row, Statement
from ..errors import CommitRefused, FailedTransaction, HandlerError, OperationOver
from .caller import is_handlers
from .loan import INTERRUPTED
from .protocol import Session
from .threads import Lane
from .turn import Turn

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any]


class LendingSession(Session, Protocol):
    """A sync session that can be used from threads."""

    def lend(self, work: Callable[[Any], T]) -> T:
        """Does something with the connection that the handler sees."""

    def sent(self) -> int:
        """How many statements were sent so far, by whomever."""

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
        self._ending_turn = threading.Lock()
        self._ended = False
        self._interrupted = False
        self._one_at_a_time = asyncio.Lock()
        self._connection = AsyncConnection(self)

    @property
    def connection(self) -> AsyncConnection:
        return self._connection

    def wrote(self) -> bool | None:
        return self._interrupted or self._session.wrote()

    def sent(self) -> int:
        """How many statements were sent so far, by whomever."""
        return self._session.sent()

    def in_transaction(self) -> bool:
        return self._session.in_transaction()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        if statement.name == TAKES_BACK and not is_handlers():
            # It does not queue behind what was interrupted: it waits for that, a bounded time, and cuts it.
            return await self._lane.run(lambda: self._session.execute(statement))
        return await self._use(lambda: self._session.execute(statement))

    async def lend(self, work: Callable[[Any], T]) -> T:
        """Does something with the connection that the handler sees."""
        return await self._use(lambda: self._session.lend(work))

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Rolls back, and calls ``then``, if the handler has not ended by that time.

        In a thread, since a handler may hang in a way that holds up the event loop, which may have ended.
        """

        def expired() -> None:
            self._ended = True
            self._end_turn()
            then()

        self._session.expire_after(seconds, expired)

    async def commit(self) -> None:
        if self._interrupted:
            await self.rollback()
            raise FailedTransaction(INTERRUPTED)
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
            self._refuse_if_over()
            await self._begin()
        except BaseException:
            self._one_at_a_time.release()
            raise
        # Held until the thread is done, also where the caller is cancelled before that.
        return await self._lane.run(work, missed=self._interrupt, after=self._one_at_a_time.release)

    def _interrupt(self) -> None:
        self._interrupted = True

    async def _begin(self) -> None:
        if self._take_turn is not None and self._turn is None:
            self._turn = await self._take_turn()
            try:
                self._refuse_if_over()  # it may have been ended while this waited
            except HandlerError:
                self._end_turn()
                raise

    def _refuse_if_over(self) -> None:
        if self._ended:
            raise OperationOver
        if self._interrupted:
            raise FailedTransaction(INTERRUPTED)

    async def _end(self, how: Callable[[], None]) -> None:
        """A caller that is cancelled meanwhile does not keep the transaction from being ended."""
        self._ended = True
        if self._take_turn is not None and self._turn is None:
            how()  # it was never begun, so there is nothing to wait for
        else:
            await self._lane.finish(how, after=self._end_turn)

    def _end_turn(self) -> None:
        """Once, whichever thread it is."""
        with self._ending_turn:
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

    async def lend(self, work: Callable[[Any], T]) -> T:
        """Calls ``work`` with the database's own connection, in the thread: for a library that adapts it."""
        return await self._session.lend(work)

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


TAKES_BACK = "close_proof"
"""The statement with which a session that proves its transaction takes its connection back."""
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
