"""MySQL and MariaDB through PyMySQL, for sync code; ``driver_async`` runs it for event loops.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pymysql.connections import Connection as PlainConnection  # type: ignore[import-untyped]
from pymysql.err import MySQLError  # type: ignore[import-untyped]

from ...core.program import Row, Statement
from ...errors import (
    CommitUncertain,
    ConfigurationError,
    ConnectionLost,
    EscapedTransaction,
    OperationOver,
    ReadOnlyStore,
    SamekeyError,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
)
from ..caller import is_handlers
from ..loan import Loan
from ..pool import Pool
from ..protocol import SHORT, Ready
from ..threaded_session import TAKES_BACK
from .errors import unreachable
from .lent import DemandingConnection, OurConnection, PyMySQLFace, sever
from .url import FOUND_ROWS, IN_TRANSACTION, MULTI_STATEMENTS, as_found, target_of
from .watched import Ended, Watched, leave_alone, unwrapped, watch
from .wire import Connection, check_own, close, code, cut, execute, message, reset, run, set_up, usable

T = TypeVar("T")


class PyMySQLDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(
        self, url: str, *, pool_size: int = 10, timeout: float = 5.0, ready: Ready | None = None
    ) -> None:
        self._ready = ready
        self._target = target_of(url)
        self.pool_size = pool_size
        self.timeout = timeout
        self._statements = self._pool(pool_size, short=True)
        self._operations = self._pool(pool_size, short=False)

    def execute(self, statement: Statement) -> Sequence[Row]:
        connection = self._statements.take()
        try:
            return execute(connection, statement, self.timeout, alone=True)
        except (ConnectionLost, ReadOnlyStore) as error:
            # Its siblings died of the same cause, or are connected to the same replica.
            self._statements.drop_idle()
            if isinstance(error, ReadOnlyStore):
                close(connection)
            raise
        finally:
            self._statements.give_back(connection)

    def open(self, connection: Any = None) -> PyMySQLSession:
        if connection is not None and connection is not SHORT:
            if not isinstance(connection, PlainConnection):
                raise ConfigurationError(
                    "On MySQL, atomic work takes a connection of PyMySQL's; in async code samekey runs it in "
                    f"threads. This one is a {type(connection).__name__}. Nothing was run."
                )
            return PyMySQLSession(unwrapped(connection), self, pool=None)
        try:
            return self._open()
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            self._operations.drop_idle()
            return self._open()

    def _open(self) -> PyMySQLSession:
        held = self._operations.take()
        try:
            if self._ready is not None:
                self._ready.ready(held)
            return PyMySQLSession(held, self, pool=self._operations)
        except BaseException:
            cut(held)  # whatever it was doing, nobody shall read the answer
            self._operations.give_back(held)
            raise

    def close(self) -> None:
        self._statements.close()
        self._operations.close()

    @property
    def database(self) -> str:
        return self._target.database

    def _pool(self, size: int, *, short: bool) -> Pool[Connection]:
        return Pool(
            lambda: self._connect(short=short),
            close,
            size=size,
            keep=size,
            timeout=self.timeout,
            usable=usable,
        )

    def _connect(self, *, short: bool) -> Connection:
        # Only where no handler's SQL is ever sent: elsewhere a hole in it would be a larger one.
        lent = FOUND_ROWS if self._ready is not None and self._ready.counts_found_rows else 0
        flag = MULTI_STATEMENTS if short else lent
        kind = DemandingConnection if self._target.demands_tls else OurConnection
        try:
            connection = kind(
                **self._target.arguments(),
                client_flag=flag,
                connect_timeout=max(1, self.timeout),
                read_timeout=self.timeout,
                write_timeout=self.timeout,
            )
        except (MySQLError, OSError) as error:
            # Not a lost connection: there was none, and trying again at once would only take longer.
            raise unreachable(code(error), message(error)) from error
        try:
            set_up(connection, short=short)
        except BaseException:
            close(connection)
            raise
        return connection


class PyMySQLSession:
    """One transaction on a connection of ours, or on the user's.

    A handler speaks through an object of its own (``PyMySQLFace``) until the loan ends. That is before the
    last statements of ours, so that nothing comes between the proof and COMMIT.
    """

    def __init__(
        self, connection: Connection, driver: PyMySQLDriver, *, pool: Pool[Connection] | None
    ) -> None:
        self._owner = connection
        self._pool = pool
        self._bound = driver.timeout
        self._loan = Loan()
        self._one_at_a_time = threading.RLock()
        self._lent = False
        self._touched = False
        """A handler has had it since our last statement."""
        self._traces = False
        self._certain = True
        self._gone: Ended | None = None
        self._condemned = False
        self._ended = False
        self._left = False
        if not connection.open:
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if pool is None:
            check_own(connection, driver.database, self._bound)
        run(connection, "start transaction", self._bound)
        self._before = getattr(connection, "written", 0)
        self._face = PyMySQLFace(connection, self._loan) if pool is not None else None
        self._watched: Watched | None = self._face or watch(connection, self._bound)

    @property
    def connection(self) -> Connection:
        with self._loan.use():
            self._lent = self._touched = True
            if self._face is not None:
                self._face.in_hands = True
            return self._wire

    def lend(self, work: Callable[[Connection], T]) -> T:
        """Does something with the connection; the transaction is not ended in the middle of it."""
        with self._loan.use():
            return work(self.connection)

    @property
    def _wire(self) -> Connection:
        return self._owner if self._face is None else self._face

    def wrote(self) -> bool | None:
        if not isinstance(self._owner, OurConnection):
            return None
        return bool(self._wire.written != self._before)

    def sent(self) -> int:
        return self._loan.sent

    def in_transaction(self) -> bool:
        wire = self._wire
        if self._watched is not None and self._watched.ended is Ended.ROLLED_BACK:
            return True  # it has not escaped; the next statement says what became of it
        return bool(wire.open) and bool(wire.server_status & IN_TRANSACTION)

    def execute(self, statement: Statement) -> Sequence[Row]:
        if is_handlers():
            with self._loan.use():
                return self._within(statement)
        if statement.name != TAKES_BACK:
            return self._within(statement)
        try:
            self._end_loan()
            return self._within(statement)
        except (StoreUnavailable, OperationOver) as error:
            if self._certain:
                raise  # it was cut off, so the server has rolled back or will
            raise EscapedTransaction(_NOT_PROVEN) from error

    def _within(self, statement: Statement) -> Sequence[Row]:
        with self._one_at_a_time:
            self._check()
            if self._face is None:
                self._put_back(self._owner)
                return self._execute(self._owner, statement)
            with self._face.ours():
                self._put_back(self._face)
                return self._execute(self._face, statement)

    def _put_back(self, wire: Connection) -> None:
        """What a handler, or a function that it called, may have set, and what our statements depend on."""
        if not self._touched or is_handlers():
            return
        try:
            run(wire, as_found(str(wire.server_version), own=self._pool is None), self._bound)
        except (StoreError, ConfigurationError) as error:
            # Who keeps a setting from us, a proxy say, has kept it from the handler, too.
            if type(error) not in (StoreError, ConfigurationError):
                raise
        self._touched = False

    def _check(self) -> None:
        if self._ended:
            raise OperationOver
        match self._gone if self._watched is None else self._watched.ended:
            case None:
                return
            case Ended.ROLLED_BACK:
                raise TransactionConflict("MySQL itself has rolled back this transaction, in a deadlock say.")
            case Ended.SOMEHOW:
                raise EscapedTransaction(_NOT_PROVEN)

    def _execute(self, wire: Connection, statement: Statement) -> Sequence[Row]:
        before = getattr(wire, "written", 0)
        try:
            return execute(wire, statement, self._bound, alone=False)
        except ReadOnlyStore:
            self._condemned = True  # the server is no longer the primary, if it ever was
            raise
        finally:
            # What we write does not count as the handler's; what we write for it does.
            if not is_handlers():
                self._before += getattr(wire, "written", 0) - before

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Rolls back, and calls ``then``, if the handler has not ended by that time."""

        def expire() -> None:
            self.rollback()
            then()

        self._loan.expire_after(seconds, expire)

    def commit(self) -> None:
        self._end_loan()
        with self._one_at_a_time:
            self._check()
            self._ended = True
            try:
                run(self._owner, "commit", self._bound)
            except StoreUnavailable as error:
                cut(self._owner)
                raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
            except SamekeyError:
                # The server answered, and the answer was no: a conflict that a cluster found at the end, say.
                self._undo()
                raise
            finally:
                self._leave()

    def rollback(self) -> None:
        try:
            self._end_loan()
        except StoreUnavailable:
            pass  # cut off in the middle of a statement: the server rolls back
        with self._one_at_a_time:
            if self._ended:
                return
            self._ended = True
            try:
                self._undo()
            finally:
                self._leave()

    def _end_loan(self) -> None:
        """Takes the wire back. ``StoreUnavailable`` if a statement of the handler's would not end."""
        try:
            wire = self._wire
            free = self._loan.end(self._bound, lambda: sever(wire), wire._force_close)
        except OperationOver:
            return  # it was taken back before
        watched, self._watched = self._watched, None
        assert watched is not None
        if free:
            watched.look_whether_it_stands()
        self._certain, self._gone = watched.certain, watched.ended
        if self._face is not None:
            self._traces = self._face.traces
        else:
            leave_alone(self._owner)
            self._touched = True
        if free:
            if self._face is not None:
                self._owner, self._face = self._face.hand_back(self._bound), None
            return
        # Its user closes the wire, which is as good as dead, when it comes back. The owner lets go of it.
        self._ended, self._face = True, None
        if self._pool is not None:
            self._owner._sock = self._owner._rfile = None
        self._leave()
        raise StoreUnavailable(
            "A statement of this operation was still running at its end, so nothing was committed. Retry "
            "with the same key."
        )

    def _undo(self) -> None:
        try:
            run(self._owner, "rollback", self._bound)
            # Who acts is a variable of the session, and so is a migrator's lock: no rollback takes them back.
            self._lent = True
            if self._pool is None:
                run(self._owner, "set @samekey_actor = null, @samekey_reason = null", self._bound)
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            cut(self._owner)

    def _leave(self) -> None:
        """Gives the connection and its place back: once, and on every way out."""
        connection, pool = self._owner, self._pool
        if pool is None or self._left:
            return
        self._left = True
        try:
            if self._condemned:
                pool.drop_idle()
            if self._condemned or self._traces:
                close(connection)
            elif self._lent and usable(connection):
                # What a handler set must not meet the next caller, who may be another tenant.
                reset(connection, self._bound)
        except Exception:
            cut(connection)
        except BaseException:
            cut(connection)
            raise
        finally:
            pool.give_back(connection)


_NOT_PROVEN: Final = (
    "The transaction was ended before samekey ended it, or may have been by a procedure, so its writes may "
    "stand without their record. Leave COMMIT and ROLLBACK to samekey."
)
