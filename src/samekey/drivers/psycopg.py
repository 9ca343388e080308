"""PostgreSQL for sync code, through psycopg 3.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import psycopg.conninfo
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from ..core.program import Row, Statement
from ..errors import (
    CommitUncertain,
    ConnectionLost,
    OpenTransaction,
    ReadOnlyStore,
    SamekeyError,
    StoreError,
    StoreUnavailable,
)
from .pool import Pool
from .sqlstate import OLDEST_SERVER, from_sqlstate, is_standby, servers_of, too_old, unreachable

Connection = psycopg.Connection[Any]

_RESET = (
    "reset all; reset role; reset session authorization; unlisten *; discard temp; "
    "select pg_advisory_unlock_all()"
)
_ADAPTERS = AdaptersMap(psycopg.adapters)
"""As they were when this module was loaded: a user's own must not change what we read and write."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits can be bounded: a server that says nothing must not hold a request."""

    usual_threshold: int | None = 5
    """After how many times a statement is prepared; None behind a pooler that cannot keep them."""
    bound: float | None = None
    """Seconds for each wait from now on; None for as long as it takes."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        if self.bound is not None:
            gen = _until(gen, time.monotonic() + self.bound)
        return super().wait(gen, *args, **kwargs)


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

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class PsycopgDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(
        self, url: str, *, pool_size: int = 10, timeout: float = 5.0, prepared_statements: bool = True
    ) -> None:
        self._url = url
        self._servers = servers_of(url)
        self._prepare = 5 if prepared_statements else None
        self._timeout = timeout
        self._statements = self._pool(pool_size)
        self._operations = self._pool(pool_size)

    def execute(self, statement: Statement) -> Sequence[Row]:
        connection = self._statements.take()
        try:
            return _execute(connection, statement, self._timeout)
        except (ConnectionLost, ReadOnlyStore) as error:
            # Its siblings died of the same cause, or are connected to the same standby.
            self._statements.drop_idle()
            if isinstance(error, ReadOnlyStore):
                connection.close()
            raise
        finally:
            self._statements.give_back(connection)

    def open(self, connection: Any = None) -> PsycopgSession:
        if connection is not None:
            return PsycopgSession(connection, pool=None, bound=self._timeout)
        try:
            return self._open()
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            self._operations.drop_idle()
            return self._open()

    def _open(self) -> PsycopgSession:
        held = self._operations.take()
        try:
            return PsycopgSession(held, pool=self._operations, bound=self._timeout)
        except BaseException:
            self._operations.give_back(held)
            raise

    def close(self) -> None:
        self._statements.drop_idle()
        self._operations.drop_idle()

    def _pool(self, size: int) -> Pool[Connection]:
        return Pool(
            self._connect,
            psycopg.Connection.close,
            size=size,
            keep=size,
            timeout=self._timeout,
            usable=_usable,
        )

    def _connect(self) -> Connection:
        """A connection to the first server that can be written to; who was that last is asked first."""
        failed: StoreUnavailable | None = None
        for server in list(self._servers):
            settings: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self._url, **server)
            settings.setdefault("connect_timeout", max(2, round(self._timeout)))
            # A peer that vanished without a word is noticed by the kernel.
            settings.setdefault("tcp_user_timeout", round(self._timeout * 1000))
            try:
                connection = BoundedConnection.connect(
                    psycopg.conninfo.make_conninfo(**settings), autocommit=True
                )
                self._set_up(connection)
            except psycopg.Error as error:
                # Not a lost connection: there was none, and trying again at once would only take longer.
                failed = unreachable(error.sqlstate, str(error))
                failed.__cause__ = error
            except StoreUnavailable as error:
                failed = error
            else:
                self._servers = sorted(self._servers, key=lambda other: other is not server)
                return connection
        assert failed is not None
        raise failed

    def _set_up(self, connection: BoundedConnection) -> None:
        """Refuses a server that cannot carry us, and finds out whether statements may be prepared on it."""
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

    def _check(self, connection: BoundedConnection) -> None:
        version = connection.info.server_version
        if version < OLDEST_SERVER * 10_000:
            raise too_old(f"{version // 10_000}.{version % 10_000}")
        connection.prepare_threshold = connection.usual_threshold = None
        with _bounded(connection, self._timeout):
            if connection.info.parameter_status("in_hot_standby") == "on":
                # A pooler may remember this from before the standby was promoted.
                row = connection.execute("select pg_is_in_recovery()").fetchone()
                if row is not None and row[0]:
                    raise is_standby()
            if self._prepare is not None:
                # Prepared statements belong to a server's session, and a pooler may change that under us:
                # then the name of one of ours may stand for a statement of somebody else's.
                row = connection.execute("select pg_backend_pid()").fetchone()
                if row is not None and row[0] == connection.info.backend_pid:
                    connection.prepare_threshold = connection.usual_threshold = self._prepare


def _usable(connection: Connection) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


class PsycopgSession:
    """One transaction, opened through psycopg's own object, so that it refuses the handler's commit."""

    def __init__(self, connection: Connection, *, pool: Pool[Connection] | None, bound: float) -> None:
        self._bound = bound
        if connection.closed:
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise OpenTransaction
        self._connection = connection
        self._pool = pool
        self._transaction: AbstractContextManager[Any] = connection.transaction()
        try:
            with _bounded(connection, bound):
                self._transaction.__enter__()
        except psycopg.Error as error:
            raise _translate(error) from error

    @property
    def connection(self) -> Connection:
        return self._connection

    def wrote(self) -> None:
        return None

    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status == TransactionStatus.INTRANS

    def execute(self, statement: Statement) -> Sequence[Row]:
        return _execute(self._connection, statement, self._bound)

    def commit(self) -> None:
        try:
            with _bounded(self._connection, self._bound):
                self._transaction.__exit__(None, None, None)
        except psycopg.Error as error:
            translated = _translate(error)
            if self._connection.closed or isinstance(translated, StoreUnavailable):
                self._leave()
                raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
            self._leave()
            raise translated from error
        self._leave()

    def rollback(self) -> None:
        try:
            with _bounded(self._connection, self._bound):
                self._transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            self._connection.close()
        self._leave()

    def _leave(self) -> None:
        if self._pool is None:
            return
        connection = self._connection
        # A handler may have registered adapters of its own; without this map the global ones count again.
        connection._adapters = None
        try:
            if _usable(connection):
                # What a handler set must not meet the next caller, who may be another tenant.
                with _bounded(connection, self._bound):
                    connection.execute(_RESET)
                connection.row_factory = tuple_row
                connection.cursor_factory = psycopg.Cursor
                connection.prepare_threshold = getattr(connection, "usual_threshold", 5)
                connection.autocommit = True
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                connection.read_only = connection.deferrable = None
        except psycopg.Error:
            connection.close()
        self._pool.give_back(connection)


def _execute(connection: Connection, statement: Statement, bound: float) -> Sequence[Row]:
    sql, parameters = statement.render("format")
    try:
        with _bounded(connection, bound), _OurCursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(sql.encode(), parameters, binary=True)
            return cursor.fetchall() if cursor.description else ()
    except UnicodeError as error:
        raise StoreError(f"The connection's encoding cannot carry this: {error}") from error
    except psycopg.Error as error:
        raise _translate(error) from error


@contextmanager
def _bounded(connection: Connection, bound: float) -> Iterator[None]:
    """Bounds the waits of our own connections. On a user's own its settings count."""
    if not isinstance(connection, BoundedConnection):
        yield
        return
    connection.bound = bound
    try:
        yield
    except psycopg.OperationalError as error:
        if str(error) == _NO_ANSWER:
            connection.close()  # whatever comes later belongs to nobody
        raise
    finally:
        connection.bound = None


def _translate(error: psycopg.Error) -> SamekeyError:
    # The message without detail and context: those quote values of the user's.
    message = error.diag.message_primary or str(error).strip() or type(error).__name__
    if message == _NO_ANSWER:
        return StoreUnavailable("PostgreSQL did not answer in time.")
    if error.sqlstate is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError):
        return StoreError(f"PostgreSQL cannot take this: {message}")  # refused before it was sent
    return from_sqlstate(error.sqlstate, message)
