"""One transaction on an asyncpg connection, lent to a handler, and its one end.

A session ends once, whichever way out comes first: commit, rollback, the longest run, or being given up. Then
its connection goes back to the pool, once. One that was interrupted is closed instead: nobody can tell what
the server still does on it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import asyncpg
from asyncpg.transaction import TransactionState

from ...core.program import Row, Statement
from ...errors import (
    CommitUncertain,
    ConnectionLost,
    EscapedTransaction,
    FailedTransaction,
    OpenTransaction,
    SamekeyError,
    StoreError,
    StoreUnavailable,
    UnfinishedWork,
)
from ..alarm import ALARM, Appointment
from ..caller import is_handlers
from ..errand import Errand
from ..homes import end_elsewhere
from ..loan import INTERRUPTED
from ..pool import AsyncPool
from ..spelled import Prepared, rows_in, spelled
from .asyncpg_bounds import bounded, hang_up, is_over
from .asyncpg_face import AsyncpgFace, AsyncpgLoan
from .sqlstate import (
    COMMIT_ROLLED_BACK,
    ESCAPED,
    LEFT_NOTHING,
    RAN_TOO_LONG,
    RESET,
    RESET_ROLE,
    SESSION_ENDED,
    at_commit,
    ends_if_silent,
    from_sqlstate,
)

T = TypeVar("T")

_TAKEN_AWAY = "The connection that was given for atomic work was closed or given back to its pool."

CONNECTION_ERRORS = (
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    OSError,
    asyncio.IncompleteReadError,
)


class AsyncpgSession:
    """One transaction, opened through asyncpg's own object, so that the handler can nest savepoints."""

    def __init__(
        self,
        connection: Any,
        *,
        bound: float,
        pool: AsyncPool[Any] | None,
        prepared: Prepared | None = None,
        another: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self._bound = bound
        self._another = another
        """For a session that begins late: takes a connection, where the first one has died unseen."""
        self._prepared = prepared
        """None where nothing may be prepared by name: a pooler is in between."""
        self._pool = pool
        self._begun = False
        self._connection = connection
        self._sound = False
        """A statement of ours was carried out after the handler had ended: nothing has failed before."""
        self._lent = AsyncpgLoan()
        self._face: AsyncpgFace | None = None
        self._loop = asyncio.get_running_loop()
        self._longest: Appointment | None = None
        self._ending = threading.Lock()
        self._ended: str | None = None
        """Why there is no transaction any more."""

    @classmethod
    async def begin(
        cls, connection: Any, *, bound: float, pool: AsyncPool[Any] | None, short: bool = False
    ) -> AsyncpgSession:
        if is_over(connection):
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if connection.is_in_transaction() or connection._top_xact is not None:
            raise OpenTransaction
        session = cls(connection, bound=bound, pool=pool)
        await session._start(ends_if_silent(bound) if short else "")
        return session

    async def _start(self, along: str = "") -> str:
        """BEGIN, and what is sent ``along`` with it in the same text; gives the answer to the last of it."""
        # On our own connection the level is ours to say; on the user's it is checked, not overruled.
        begin = "BEGIN;" if self._pool is None else "BEGIN ISOLATION LEVEL READ COMMITTED;"
        try:
            # asyncpg's own object is there so that the handler's transactions are savepoints in this one. It
            # says its BEGIN and COMMIT by itself only, and drops the answers: COMMIT's may be ROLLBACK.
            transaction = self._connection.transaction()
            self._bare = transaction._connection
            self._bare._top_xact, transaction._state = transaction, TransactionState.STARTED
            self._begun = True
            with bounded(self._connection, self._bound):
                answer: str = await self._bare.execute(begin + along)
        except Exception as error:
            hang_up(self._connection)  # asyncpg takes it for begun, and the next one for nested
            raise translate(error) from error
        return answer

    async def _start_with(self, statement: Statement) -> Sequence[Row]:
        """BEGIN and the first statement in one round trip: its rows have no columns."""
        try:
            answer = await self._start(self._text_of(statement))
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            await self._take_another()
            answer = await self._start(self._text_of(statement))
        if self._prepared is not None:
            self._prepared.done(self._connection)
        return [()] * rows_in(answer)

    def _text_of(self, statement: Statement) -> str:
        return self._prepared.text(self._connection, statement) if self._prepared else spelled(statement)

    def _reset(self) -> str:
        return self._prepared.reset(self._connection) if self._prepared else RESET

    async def _take_another(self) -> None:
        assert self._pool is not None and self._another is not None
        self._pool.give_back(self._connection)
        self._pool.drop_idle()
        try:
            self._connection = await self._another()
        except BaseException:
            self._ended = SESSION_ENDED
            raise

    @property
    def connection(self) -> Any:
        if self._face is None:
            self._face = AsyncpgFace(self._connection, self._lent)
        return self._face

    def wrote(self) -> None:
        return None

    def sent(self) -> int:
        return self._lent.sent

    def in_transaction(self) -> bool:
        return (
            self._ended is None
            and not is_over(self._connection)
            and bool(self._connection.is_in_transaction())
        )

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Gives the connection up if the handler has not ended by then. By a thread, since the event loop
        may be held up, or have stopped."""

        def expire() -> None:
            if self._ended is None:
                try:
                    self._end(RAN_TOO_LONG, keep=False)
                finally:
                    then()

        self._longest = ALARM.after(seconds, expire)

    def cut(self) -> None:
        """The handler has ended: from now on nobody but us uses the connection."""
        if self._longest is not None:
            self._longest.call_off()
        self._lent.cut = True
        if self._ended is not None or not (self._lent.under_way or self._lent.doubt is not None):
            return
        refused = UnfinishedWork() if self._lent.under_way else FailedTransaction(INTERRUPTED)
        self._end(str(refused), keep=False)
        raise refused

    async def execute(self, statement: Statement) -> Sequence[Row]:
        if not self._begun:
            self._check()
            return await self._start_with(statement)
        sql, parameters = statement.render("numeric")
        self._lent.sent += 1
        self._sound = False
        try:
            lending: AbstractContextManager[None] = self._lent.use() if is_handlers() else nullcontext()
            with lending:
                self._check()
                with bounded(self._connection, self._bound):
                    if self._pool is not None and self._lent.cut and self._lent.role:
                        self._lent.role = False
                        await self._connection.execute(RESET_ROLE)
                    rows: Sequence[Row] = await self._connection.fetch(
                        sql, *parameters, record_class=asyncpg.Record
                    )
            self._sound = self._lent.cut
            return rows
        except Exception as error:
            if self._lent.escaped:
                raise EscapedTransaction(ESCAPED) from error
            raise translate(error) from error

    async def commit(self) -> None:
        self.cut()
        self._check()
        # The reset goes in the same text where nothing can have failed before: COMMIT's answer is not seen.
        resets = self._pool is not None and self._lent.reusable and self._sound
        commit = f"COMMIT;{self._reset()}" if resets else "COMMIT"
        self._bare._top_xact = None
        try:
            with bounded(self._connection, self._bound):
                answer = await _uncancelled(self._bare.execute(commit), partial(hang_up, self._connection))
        except (TimeoutError, *CONNECTION_ERRORS) as error:
            self._end(SESSION_ENDED, keep=False)
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
        except asyncpg.PostgresError as error:
            # The server answered, and the answer was no (a deferred constraint, say).
            await self._leave()
            translated = translate(error)
            unprepared = resets and isinstance(error, asyncpg.InvalidSQLStatementNameError)
            if unprepared or isinstance(
                translated, StoreUnavailable
            ):  # the reset's own errors are of these kinds
                raise CommitUncertain(f"COMMIT was cut short: {error}") from error
            raise at_commit(translated, error) from error
        except BaseException:
            self._end(SESSION_ENDED, keep=False)
            raise
        if resets:
            self._end(SESSION_ENDED, keep=answer == LEFT_NOTHING)
            return
        await self._leave()
        if answer != "COMMIT":
            raise StoreError(COMMIT_ROLLED_BACK)

    async def rollback(self) -> None:
        """Also after an end that came before: then there is nothing left to do."""
        self._stop_lending()
        if self._ended is not None:
            return
        interrupted = self._pool is not None and self._lent.interrupted
        if self._lent.under_way or interrupted or is_over(self._connection):
            # Closing the connection makes the server roll back for certain.
            self._end(SESSION_ENDED, keep=False)
            return
        if not self._begun:
            self._end(SESSION_ENDED, keep=True)  # nothing was begun
            return
        try:
            self._bare._top_xact = None
            with bounded(self._connection, self._bound):
                await self._bare.execute("ROLLBACK")
        except Exception:
            self._end(SESSION_ENDED, keep=False)  # ended already or broken
        except BaseException:
            self._end(SESSION_ENDED, keep=False)
            raise
        else:
            await self._leave()

    def give_up(self) -> None:
        """Ends it without a word to the server, which rolls back. For a way out that cannot wait."""
        self._stop_lending()
        self._end(SESSION_ENDED, keep=False)

    def _stop_lending(self) -> None:
        self._lent.cut = True
        if self._longest is not None:
            self._longest.call_off()

    def _check(self) -> None:
        if self._ended is not None:
            raise ConnectionLost(self._ended)
        if self._pool is None and is_over(self._connection):
            raise ConnectionLost(_TAKEN_AWAY)

    async def _leave(self) -> None:
        """After the transaction: what a handler set must not meet the next, who may be another tenant."""
        keep = self._pool is None or self._lent.reusable
        try:
            if keep and self._pool is not None:
                with bounded(self._connection, self._bound):
                    keep = await self._connection.execute(self._reset()) == LEFT_NOTHING
        except Exception:
            keep = False
        except BaseException:
            self._end(SESSION_ENDED, keep=False)
            raise
        self._end(SESSION_ENDED, keep=keep)

    def _end(self, why: str, *, keep: bool) -> None:
        """Once, and in any thread: gives the connection back, or closes it."""
        with self._ending:
            if self._ended is not None:
                return
            self._ended = why
        self._stop_lending()
        if _is_running_here(self._loop):
            self._give_back(keep)
        else:
            # Its event loop is held up, or has stopped; the server rolls back in any case.
            with suppress(AttributeError, asyncpg.InterfaceError):  # one that is over has no line to shut
                end_elsewhere(self._connection, self._loop, lambda: self._give_back(keep=False))

    def _give_back(self, keep: bool) -> None:
        try:
            if not keep:
                hang_up(self._connection)
        finally:
            if self._pool is not None:
                self._pool.give_back(self._connection)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _uncancelled(work: Coroutine[Any, Any, T], give_up: Callable[[], None]) -> T:
    """Awaits something that must not hear of our own cancellation as a cancel request to the server."""
    errand = Errand(work, moves=True)
    try:
        return await errand
    except asyncio.CancelledError:
        if errand.rest is not None:
            give_up()
            await asyncio.wait({errand.rest})
            if not errand.rest.cancelled():
                errand.rest.exception()  # looked at, so that nobody is told that it was not
        raise


def words_of(error: asyncpg.PostgresError) -> str:
    """The message without detail and hint: those quote values, and advise on asyncpg instead of on us."""
    return str(error.args[0]) if error.args else type(error).__name__


def translate(error: Exception) -> Exception:
    """A driver's error as one of ours; anything that is not about the database stays what it is."""
    if isinstance(error, SamekeyError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return from_sqlstate(error.sqlstate, words_of(error))
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL did not answer in time.")
    if isinstance(error, CONNECTION_ERRORS):
        return from_sqlstate(None, str(error) or type(error).__name__)
    return error
