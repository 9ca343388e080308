"""One transaction on a psycopg connection, lent to a handler, and its one end.

A session ends once, whichever way out comes first: commit, rollback, the longest run, or being given up. Then
its connection goes back to the pool, once. One that was interrupted is closed instead: nobody can tell what
the server still does on it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from psycopg import waiting
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ...core.program import Row, Statement
from ...errors import (
    CommitUncertain,
    ConnectionLost,
    EscapedTransaction,
    OpenTransaction,
    SamekeyError,
    StoreError,
    StoreUnavailable,
    UnfinishedWork,
)
from ..alarm import ALARM, Appointment
from ..caller import is_handlers
from ..pool import Pool
from ..spelled import Prepared, rows_in, spelled
from .psycopg_face import PsycopgLoan, behind, face_of, our_face
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

Connection = psycopg.Connection[Any]

_BEGIN = "begin isolation level read committed"

_ADAPTERS = AdaptersMap(psycopg.adapters)
"""As they were when this module was loaded: a user's own must not change what we read and write."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits can be bounded: a server that says nothing must not hold a request."""

    usual_threshold: int | None = 5
    """After how many times a statement is prepared; None behind a pooler that cannot keep them."""
    bound: float | None = None
    """Seconds for each wait from now on; None for as long as it takes."""

    def __del__(self, *_: Any) -> None:
        """No warning: one that another thread was using is left to it, and closes with its last user."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        if self.bound is None:
            return super().wait(gen, *args, **kwargs)
        # Not by psycopg's own way, which sends a cancel request when it is interrupted: a COMMIT that waits
        # for a synchronous standby would take that for permission to go on without it.
        return waiting.wait(_until(gen, time.monotonic() + self.bound), self.pgconn.socket, interval=0.1)


def _until(gen: Any, deadline: float) -> Any:
    """The same generator, which gives up when nothing has come by the deadline."""
    try:
        waits_for = next(gen)
        while True:
            ready = yield waits_for
            if not ready and time.monotonic() >= deadline:
                gen.close()
                raise psycopg.OperationalError(_NO_ANSWER)
            waits_for = gen.send(ready)
    except StopIteration as done:
        return done.value


_NO_ANSWER = "the server did not answer in time"


class _Text(Loader):
    """Text is UTF-8, also on a connection that claims to have no encoding and would give bytes."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data).decode()


_ADAPTERS.register_loader("text", _Text)


class _OurCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor that goes by our adapters, on whatever connection."""

    heard: Sequence[str] = ()
    """The server's answers to the statements of the last text, up to the one that failed."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS

    def _check_results(self, results: Any) -> None:
        self.heard = [(one.command_status or b"").decode() for one in results]
        super()._check_results(results)


def usable(connection: Connection) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


class PsycopgSession:
    """One transaction. On the user's own connection it is psycopg's, so that the user's commit is refused."""

    def __init__(
        self,
        connection: Connection,
        *,
        pool: Pool[Connection] | None,
        bound: float,
        late: Prepared | None = None,
        short: bool = False,
        another: Callable[[], Connection] | None = None,
    ) -> None:
        self._bound = bound
        if connection.closed:
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise OpenTransaction
        self._connection = connection
        self._pool = pool
        self._lent = PsycopgLoan()
        self._face: Connection | None = None
        self._longest: Appointment | None = None
        self._turn = threading.RLock()
        """Whether it ends by its handler or by the alarm is decided one at a time."""
        self._ended: str | None = None
        """Why there is no transaction any more."""
        self._transaction: AbstractContextManager[Any] | None = None
        self._begun = late is None
        self._another = another
        """For a session that begins late: takes a connection, where the first one has died unseen."""
        self._prepared = late
        self._sound = False
        """A statement of ours was carried out after the handler had ended: nothing has failed before."""
        if late is not None:
            return
        if pool is None:
            self._transaction = connection.transaction()
            with _translated():
                self._transaction.__enter__()
        else:
            send(connection, f"{_BEGIN};{ends_if_silent(bound)}" if short else _BEGIN, bound)

    def _start_with(self, statement: Statement) -> Sequence[Row]:
        """BEGIN and the first statement in one round trip: its rows have no columns."""
        self._begun = True
        try:
            answers = self._send_first(statement)
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            self._take_another()
            answers = self._send_first(statement)
        return [()] * rows_in(answers[-1])

    def _send_first(self, statement: Statement) -> list[str | None]:
        if getattr(self._connection, "usual_threshold", None) is None:
            self._prepared = None  # a pooler is in between: nothing may be prepared by name
        prepared, connection = self._prepared, self._connection
        text = prepared.text(connection, statement) if prepared else spelled(statement)
        answers = send(connection, f"{_BEGIN};{text}", self._bound)
        if prepared:
            prepared.done(connection)
        return answers

    def _reset(self) -> str:
        return self._prepared.reset(self._connection) if self._prepared else RESET

    def _take_another(self) -> None:
        assert self._pool is not None and self._another is not None
        self._pool.give_back(self._connection)
        self._pool.drop_idle()
        try:
            self._connection = self._another()
        except BaseException:
            self._ended = SESSION_ENDED
            raise

    @property
    def connection(self) -> Connection:
        if self._face is None:
            self._face = face_of(self._connection, self._lent)
        return self._face

    def wrote(self) -> None:
        return None

    def sent(self) -> int:
        return self._lent.sent

    def in_transaction(self) -> bool:
        return self._ended is None and self._status() == TransactionStatus.INTRANS

    def _status(self) -> TransactionStatus:
        return self._connection.info.transaction_status

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Gives the connection up if the handler has not ended by then."""

        def expire() -> None:
            with self._turn:
                if self._ended is not None or self._lent.cut:
                    return
                self._take_away()
                self._end(RAN_TOO_LONG, keep=False)
            then()

        self._longest = ALARM.after(seconds, expire)

    def cut(self) -> None:
        """The handler has ended: from now on nobody but us uses the connection."""
        with self._turn:
            if self._ended is None and self._take_away():
                unfinished = UnfinishedWork()
                self._end(str(unfinished), keep=False)
                raise unfinished

    def _take_away(self) -> bool:
        """Cuts the face. True if somebody was using it: then the connection is past use."""
        if self._longest is not None:
            self._longest.call_off()
        was_cut, self._lent.cut = self._lent.cut, True
        if was_cut or self._face is None:
            return self._lent.interrupted
        # Whoever sends holds the lock; whoever waits for it will find the face cut.
        if not self._connection.lock.acquire(blocking=False):
            self._lent.interrupted = True
            _hang_up(self._connection)
            return True
        try:
            busy = (
                self._status() == TransactionStatus.ACTIVE
                or self._connection.pgconn.pipeline_status != PipelineStatus.OFF
            )
        finally:
            self._connection.lock.release()
        self._lent.interrupted = self._lent.interrupted or busy
        return busy

    def execute(self, statement: Statement) -> Sequence[Row]:
        self._lent.sent += 1
        try:
            if is_handlers():
                # Through the face: whoever waits for the lock while the operation ends finds it cut.
                return execute(our_face(self.connection), statement, self._bound)
            self._check()
            if not self._begun:
                return self._start_with(statement)
            self._sound = False
            if self._pool is not None and self._lent.cut and self._lent.role:
                self._lent.role = False
                send(self._connection, RESET_ROLE, self._bound)
            rows = execute(self._connection, statement, self._bound)
            self._sound = self._lent.cut
            return rows
        except SamekeyError as error:
            if self._lent.escaped:
                raise EscapedTransaction(ESCAPED) from error
            raise

    def commit(self) -> None:
        self.cut()
        self._check()
        # The reset goes in the same text where nothing can have failed before.
        resets = self._transaction is None and self._sound and not self._lent.traces
        heard: list[str] = []
        try:
            answers = self._send_commit(resets, heard)
        except SamekeyError as error:
            if heard[:1] == ["COMMIT"]:
                # It was the reset that failed, and says nothing about the COMMIT before it: psycopg, for one,
                # deallocates what is prepared after a ROLLBACK TO.
                self._end(SESSION_ENDED, keep=False)
                return
            # The reset's own errors are of this kind too.
            if self._connection.closed or isinstance(error, StoreUnavailable):
                self._end(SESSION_ENDED, keep=False)
                raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
            self._leave()
            raise at_commit(error, error.__cause__) from error.__cause__
        except BaseException:
            self._end(SESSION_ENDED, keep=False)
            raise
        self._leave(answers[-1] if resets else None)
        if answers[0] != "COMMIT":
            raise StoreError(COMMIT_ROLLED_BACK)

    def _send_commit(self, resets: bool, heard: list[str]) -> list[str | None]:
        """The server's answers. It may say that it rolled back, because a statement had failed before."""
        if self._transaction is None:
            text = f"commit;{self._reset()}" if resets else "commit"
            return send(self._connection, text, self._bound, heard)
        failed = self._status() == TransactionStatus.INERROR  # psycopg does not show the answer
        with _translated():
            self._transaction.__exit__(None, None, None)
        return ["ROLLBACK" if failed else "COMMIT"]

    def rollback(self) -> None:
        """Also after an end that came before: then there is nothing left to do."""
        with self._turn:
            if self._ended is not None:
                return
            self._take_away()
            if self._lent.interrupted or self._connection.closed:
                # Closing the connection makes the server roll back for certain.
                self._end(SESSION_ENDED, keep=False)
                return
        if not self._begun:
            self._end(SESSION_ENDED, keep=True)  # nothing was begun
            return
        try:
            if self._transaction is None:
                send(self._connection, "rollback", self._bound)
            else:
                self._transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        except Exception:
            self._end(SESSION_ENDED, keep=False)  # ended already or broken
        except BaseException:
            self._end(SESSION_ENDED, keep=False)
            raise
        else:
            self._leave()

    def give_up(self) -> None:
        """Ends it without a word to the server, which rolls back. For a way out that cannot wait."""
        with self._turn:
            if self._ended is None:
                self._take_away()
                self._end(SESSION_ENDED, keep=False)

    def _check(self) -> None:
        if self._ended is not None:
            raise ConnectionLost(self._ended)

    def _leave(self, answer: str | None = None) -> None:
        """After the transaction: what a handler set must not meet the next, who may be another tenant.

        ``answer``: the one to the reset, where that was sent already."""
        connection = self._connection
        keep = self._pool is None or (usable(connection) and not self._lent.traces)
        try:
            if keep and self._pool is not None:
                keep = (answer or send(connection, self._reset(), self._bound)[-1]) == LEFT_NOTHING
                connection.prepare_threshold = getattr(connection, "usual_threshold", 5)
                connection.prepared_max = 100
        except SamekeyError:
            keep = False
        except BaseException:
            self._end(SESSION_ENDED, keep=False)
            raise
        self._end(SESSION_ENDED, keep=keep)

    def _end(self, why: str, *, keep: bool) -> None:
        """Once: gives the connection back, or closes it."""
        with self._turn:
            if self._ended is not None:
                return
            self._ended = why
            if self._longest is not None:
                self._longest.call_off()
            self._lent.cut = True
            connection, pool = self._connection, self._pool
            try:
                if not keep:
                    _close(connection)
            finally:
                if pool is not None and keep:
                    pool.give_back(connection)
                elif pool is not None:
                    pool.forget(connection)


def _close(connection: Connection) -> None:
    """Closes it, unless another thread is in the middle of using it: then only its line is cut."""
    connection = behind(connection)
    if connection.lock.acquire(blocking=False):
        try:
            # Not by psycopg's own close, which gives a connection of the user's pool back to it.
            connection._closed = True
            connection.pgconn.finish()
        finally:
            connection.lock.release()
    else:
        _hang_up(connection)


def _hang_up(connection: Connection) -> None:
    """Ends the line under a thread that waits on it. Freeing the connection would crash that thread."""
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it is gone already


def execute(connection: Connection, statement: Statement, bound: float) -> Sequence[Row]:
    """A statement of ours."""
    sql, parameters = statement.render("format")
    try:
        with (
            _translated(),
            bounded(connection, bound),
            _OurCursor(connection, row_factory=tuple_row) as cursor,
        ):
            cursor.execute(sql.encode(), parameters, binary=True)
            return cursor.fetchall() if cursor.description else ()
    except UnicodeError as error:
        raise StoreError(f"The connection's encoding cannot carry this: {error}") from error


def send(connection: Connection, text: str, bound: float, heard: list[str] | None = None) -> list[str | None]:
    """A text of ours; gives the server's answer to each of its statements. ``heard``: also if one fails."""
    with (
        _translated(),
        bounded(connection, bound),
        _OurCursor(connection, row_factory=tuple_row) as cursor,
    ):
        try:
            cursor.execute(text.encode(), prepare=False)
        finally:
            if heard is not None:
                heard[:] = cursor.heard
        answers = [cursor.statusmessage]
        while cursor.nextset():
            answers.append(cursor.statusmessage)
        return answers


@contextmanager
def bounded(connection: Connection, bound: float) -> Iterator[None]:
    """Bounds the waits of our own connections; closes what was interrupted. A user's own has its settings."""
    ours = isinstance(connection, BoundedConnection)
    if isinstance(connection, BoundedConnection):
        connection.bound = bound
    try:
        yield
    except Exception as error:
        if ours and str(error) == _NO_ANSWER:
            _close(connection)  # whatever comes later belongs to nobody
        raise
    except BaseException:
        _close(connection)
        raise
    finally:
        if isinstance(connection, BoundedConnection):
            connection.bound = None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise _translate(error) from error


def _translate(error: psycopg.Error) -> SamekeyError:
    # The message without detail and context: those quote values of the user's.
    message = error.diag.message_primary or str(error).strip() or type(error).__name__
    if message == _NO_ANSWER:
        return StoreUnavailable("PostgreSQL did not answer in time.")
    if error.sqlstate is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
        return StoreError(f"PostgreSQL cannot take this: {message}")  # refused before it was sent
    return from_sqlstate(error.sqlstate, message)
