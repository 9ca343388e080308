"""MySQL and MariaDB for sync code, through PyMySQL.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import pymysql  # type: ignore[import-untyped]
from pymysql.connections import Connection as PlainConnection  # type: ignore[import-untyped]
from pymysql.constants import FIELD_TYPE  # type: ignore[import-untyped]
from pymysql.cursors import Cursor  # type: ignore[import-untyped]

from ..core.program import Row, Statement
from ..errors import (
    CommitRefused,
    CommitUncertain,
    ConfigurationError,
    ConnectionLost,
    EscapedTransaction,
    OpenTransaction,
    ReadOnlyStore,
    SamekeyError,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
)
from .mysql import (
    COMMIT_REFUSED,
    IN_TRANSACTION,
    MULTI_STATEMENTS,
    RESET_CONNECTION,
    decode_text,
    ends_transaction,
    packets,
    setup,
    target_of,
    unverified_tls,
)
from .mysql_errors import DEADLOCK, from_code, unreachable
from .pool import Pool

Connection: TypeAlias = Any
"""PyMySQL has no types of its own."""

_DECODERS: Final = {
    **dict.fromkeys((FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.STRING), decode_text),
    **dict.fromkeys(
        (
            FIELD_TYPE.TINY,
            FIELD_TYPE.SHORT,
            FIELD_TYPE.LONG,
            FIELD_TYPE.INT24,
            FIELD_TYPE.LONGLONG,
            FIELD_TYPE.NEWDECIMAL,
        ),
        int,
    ),
}
"""Ours, on whatever connection: a user's own must not change what we read."""


class HandlerConnection(PlainConnection):  # type: ignore[misc]
    """A connection that refuses to end its transaction while a handler holds it, and counts its writes."""

    guarded = False
    written = 0
    gave_way: int | None = None
    """How much was written when the server rolled back everything to resolve a deadlock."""

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        # PyMySQL's own reads all of the machine's certificates for every connection, and then checks none.
        return sslp or unverified_tls()

    def execute(self, sql: str, parameters: Any = None) -> Cursor:
        """A cursor that has run one statement; ``%s`` stands for a parameter."""
        cursor = self.cursor()
        cursor.execute(sql, parameters)
        return cursor

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        if self.guarded and ends_transaction(sql):
            raise CommitRefused(COMMIT_REFUSED)
        return super().query(sql, unbuffered)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        try:
            affected = super()._read_query_result(unbuffered)
        except pymysql.err.MySQLError as error:
            if _code(error) == DEADLOCK:
                self.gave_way = self.written
            raise
        if self._result.description is None and affected:
            self.written += 1
        return affected

    def begin(self) -> None:
        self._refuse_if_guarded()
        super().begin()

    def commit(self) -> None:
        self._refuse_if_guarded()
        super().commit()

    def rollback(self) -> None:
        self._refuse_if_guarded()
        super().rollback()

    def autocommit(self, value: bool) -> None:
        self._refuse_if_guarded()
        super().autocommit(value)

    def _refuse_if_guarded(self) -> None:
        if self.guarded:
            raise CommitRefused(COMMIT_REFUSED)


class PyMySQLDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(self, url: str, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self._target = target_of(url)
        self.timeout = timeout
        self._statements = self._pool(pool_size, short=True)
        self._operations = self._pool(pool_size, short=False)

    def execute(self, statement: Statement) -> Sequence[Row]:
        connection = self._statements.take()
        try:
            return _execute(connection, statement, self.timeout, alone=True)
        except (ConnectionLost, ReadOnlyStore) as error:
            # Its siblings died of the same cause, or are connected to the same replica.
            self._statements.drop_idle()
            if isinstance(error, ReadOnlyStore):
                _close(connection)
            raise
        finally:
            self._statements.give_back(connection)

    def open(self, connection: Any = None) -> PyMySQLSession:
        if connection is not None:
            return PyMySQLSession(connection, self, pool=None)
        try:
            return self._open()
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            self._operations.drop_idle()
            return self._open()

    def _open(self) -> PyMySQLSession:
        held = self._operations.take()
        try:
            return PyMySQLSession(held, self, pool=self._operations)
        except BaseException:
            self._operations.give_back(held)
            raise

    def close(self) -> None:
        self._statements.drop_idle()
        self._operations.drop_idle()

    @property
    def database(self) -> str:
        return self._target.database

    def _pool(self, size: int, *, short: bool) -> Pool[Connection]:
        return Pool(
            lambda: self._connect(short=short),
            _close,
            size=size,
            keep=size,
            timeout=self.timeout,
            usable=_usable,
        )

    def _connect(self, *, short: bool) -> Connection:
        # Only where no handler's SQL is ever sent: elsewhere a hole in it would be a larger one.
        flag = MULTI_STATEMENTS if short else 0
        try:
            connection = HandlerConnection(
                **self._target.arguments(),
                client_flag=flag,
                connect_timeout=max(1, self.timeout),
                read_timeout=self.timeout,
                write_timeout=self.timeout,
            )
        except (pymysql.err.MySQLError, OSError) as error:
            # Not a lost connection: there was none, and trying again at once would only take longer.
            raise unreachable(_code(error), _message(error)) from error
        try:
            _set_up(connection, short=short)
        except BaseException:
            _close(connection)
            raise
        return connection


class PyMySQLSession:
    """One transaction on a connection of ours, or on the user's."""

    def __init__(
        self, connection: Connection, driver: PyMySQLDriver, *, pool: Pool[Connection] | None
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._bound = driver.timeout
        self._lent = False
        self._condemned = False
        if not connection.open:
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if pool is None:
            _check_own(connection, driver.database, self._bound)
        _run(connection, "start transaction", self._bound)
        self._before = getattr(connection, "written", 0)
        if pool is not None:
            connection.gave_way = None

    @property
    def connection(self) -> Connection:
        self._lent = True
        if self._pool is not None:
            self._connection.guarded = True
            # A handler's own statements may take as long as they take.
            self._connection._read_timeout = None
        return self._connection

    def wrote(self) -> bool | None:
        if not isinstance(self._connection, HandlerConnection):
            return None
        return bool(self._connection.written != self._before)

    def in_transaction(self) -> bool:
        return bool(self._connection.open) and bool(self._connection.server_status & IN_TRANSACTION)

    def execute(self, statement: Statement) -> Sequence[Row]:
        before = getattr(self._connection, "written", 0)
        try:
            return _execute(self._connection, statement, self._bound, alone=False)
        except ReadOnlyStore:
            self._condemned = True  # the server is no longer the primary, if it ever was
            raise
        except EscapedTransaction as error:
            if getattr(self._connection, "gave_way", None) == before:
                # Not the handler but the server has ended it, and nothing was written since.
                raise TransactionConflict("MySQL gave up this transaction in a deadlock.") from error
            raise
        finally:
            # What we write does not count as the handler's.
            self._before += getattr(self._connection, "written", 0) - before

    def commit(self) -> None:
        try:
            _run(self._connection, "commit", self._bound)
        except StoreUnavailable as error:
            self._leave()
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
        except SamekeyError:
            # The server answered, and the answer was no: a conflict that a cluster found at the end, say.
            self._undo()
            raise
        self._leave()

    def rollback(self) -> None:
        self._undo()

    def _undo(self) -> None:
        try:
            _run(self._connection, "rollback", self._bound)
            # Who acts is a variable of the session, and so is a migrator's lock: no rollback takes them back.
            self._lent = True
            if self._pool is None:
                _run(self._connection, "set @samekey_actor = null, @samekey_reason = null", self._bound)
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            _close(self._connection)
        self._leave()

    def _leave(self) -> None:
        connection, pool = self._connection, self._pool
        if pool is None:
            return
        connection.guarded = False
        if self._condemned:
            _close(connection)
            pool.drop_idle()
        if self._lent and _usable(connection):
            # What a handler set must not meet the next caller, who may be another tenant.
            try:
                with _ours(connection, self._bound):
                    connection._execute_command(RESET_CONNECTION, b"")
                    connection._read_ok_packet()
                connection.cursorclass = Cursor
                _set_up(connection, short=False)
            except Exception:
                _close(connection)
        pool.give_back(connection)


def _check_own(connection: Connection, database: str, bound: float) -> None:
    """A user's own connection: fresh, and on the database that has our tables."""
    _run(connection, "do 0", bound)  # brings the server's status; a transaction shows in it
    if connection.server_status & IN_TRANSACTION:
        raise OpenTransaction
    rows = _run(connection, "select database()", bound) or ()
    found = rows[0][0] if rows else None
    if found != database:
        raise ConfigurationError(
            f"Atomic work was given a connection to the database {found!r}, but samekey's tables are in "
            f"{database!r}. Nothing was run. Give it a connection to that database."
        )


def _set_up(connection: Connection, *, short: bool) -> None:
    _run(connection, setup(str(connection.server_version), short=short), connection._read_timeout)


def _execute(connection: Connection, statement: Statement, bound: float, *, alone: bool) -> Sequence[Row]:
    # Asked of the connection: a user's own may or may not take several statements at once.
    joined = bool(connection.client_flag & MULTI_STATEMENTS)
    try:
        exchange = packets(statement, joined=joined, alone=alone)
        text = next(exchange)
        while True:
            text = exchange.send(_run(connection, text, bound))
    except StopIteration as stop:
        rows: Sequence[Row] = stop.value
        return rows
    except UnicodeError as error:
        raise StoreError(f"MySQL cannot take this text: {error}") from error


def _run(connection: Connection, text: str, bound: float | None) -> Sequence[Row] | None:
    """Sends one text; gives the last rows among its results, None if there are none."""
    found: Sequence[Row] | None = None
    try:
        with _ours(connection, bound):
            cursor = Cursor(connection)
            cursor.execute(text)
            while True:
                if cursor.description is not None:
                    found = cursor.fetchall()
                if not cursor.nextset():
                    break
    except (pymysql.err.MySQLError, OSError) as error:
        raise from_code(_code(error), _message(error)) from error
    return found


@contextmanager
def _ours(connection: Connection, bound: float | None) -> Iterator[None]:
    """While a statement of ours runs: our decoders and, on our own connections, our patience."""
    decoders, connection.decoders = connection.decoders, _DECODERS
    mine = isinstance(connection, HandlerConnection)
    if mine:
        guarded, connection.guarded = connection.guarded, False
        patience, connection._read_timeout = connection._read_timeout, bound
    try:
        yield
    finally:
        connection.decoders = decoders
        if mine:
            connection.guarded, connection._read_timeout = guarded, patience


def _usable(connection: Connection) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return bool(connection.open) and not connection.server_status & IN_TRANSACTION


def _close(connection: Connection) -> None:
    if connection.open:
        connection.close()  # with a word of goodbye, or the server would log an aborted connection


def _code(error: BaseException) -> int | None:
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else None


def _message(error: BaseException) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)
