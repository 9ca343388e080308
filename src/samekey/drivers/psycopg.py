"""PostgreSQL for sync code, through psycopg 3.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import psycopg.conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool, PoolTimeout

from ..core.program import Row, Statement
from ..errors import CommitUncertain, OpenTransaction, SamekeyError, StoreBusy, StoreUnavailable
from .sqlstate import from_sqlstate

Connection = psycopg.Connection[Any]


class PsycopgDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(self, url: str, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self._url = url
        self._pool_size = pool_size
        self.timeout = timeout
        self._pools: dict[str, ConnectionPool[Connection]] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def execute(self, statement: Statement) -> Sequence[Row]:
        pool = self._pool("statements")
        connection = self._acquire(pool)
        try:
            return _execute(connection, statement)
        except StoreUnavailable:
            # Its siblings died of the same cause; let the pool look them over.
            pool.putconn(connection)
            connection = None
            pool.check()
            raise
        finally:
            if connection is not None:
                pool.putconn(connection)

    def open(self, connection: Any = None) -> PsycopgSession:
        if connection is not None:
            return PsycopgSession(connection, pool=None)
        pool = self._pool("operations")
        held = self._acquire(pool)
        try:
            return PsycopgSession(held, pool=pool)
        except SamekeyError as error:
            pool.putconn(held)
            if not isinstance(error, StoreUnavailable):
                raise
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            pool.check()
            held = self._acquire(pool)
            return PsycopgSession(held, pool=pool)

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
            if self._pid != os.getpid():
                return
        for pool in pools.values():
            pool.close()

    def _acquire(self, pool: ConnectionPool[Connection]) -> Any:
        try:
            return pool.getconn(timeout=self.timeout)
        except PoolTimeout as error:
            raise StoreBusy(
                f"No connection could be had within {self.timeout:g} s: PostgreSQL is down, or a "
                "handler takes a second connection while it holds its own. Retry with the same key."
            ) from error

    def _pool(self, name: str) -> ConnectionPool[Connection]:
        with self._lock:
            if self._pid != os.getpid():
                # Connections must not cross a fork; the parent's are left alone.
                self._pid, self._pools = os.getpid(), {}
            if name not in self._pools:
                self._pools[name] = self._make_pool(name)
            return self._pools[name]

    def _make_pool(self, name: str) -> ConnectionPool[Connection]:
        settings: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self._url)
        settings.setdefault("connect_timeout", max(2, round(self.timeout)))
        # A peer that vanished without a word is noticed by the kernel.
        settings.setdefault("tcp_user_timeout", round(self.timeout * 1000))
        if name == "statements":
            # Ours are short; a handler's statements are its own business.
            settings.setdefault("options", f"-c statement_timeout={round(self.timeout * 1000)}")
        return ConnectionPool(
            psycopg.conninfo.make_conninfo(**settings),
            min_size=0,
            max_size=self._pool_size,
            kwargs={"autocommit": True},
            configure=_configure,
            name=f"samekey-{name}",
            open=True,
            reconnect_timeout=self.timeout,
        )


def _configure(connection: Connection) -> None:
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


class PsycopgSession:
    """One transaction, opened through psycopg's own object, so that it refuses the handler's commit."""

    def __init__(self, connection: Connection, *, pool: ConnectionPool[Connection] | None) -> None:
        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise OpenTransaction
        self._connection = connection
        self._pool = pool
        self._transaction: AbstractContextManager[Any] = connection.transaction()
        try:
            self._transaction.__enter__()
        except psycopg.Error as error:
            raise _translate(error) from error

    @property
    def connection(self) -> Connection:
        return self._connection

    def wrote(self) -> None:
        return None

    def execute(self, statement: Statement) -> Sequence[Row]:
        return _execute(self._connection, statement)

    def commit(self) -> None:
        try:
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
            self._transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            self._connection.close()
        self._leave()

    def _leave(self) -> None:
        if self._pool is not None:
            self._pool.putconn(self._connection)


def _execute(connection: Connection, statement: Statement) -> Sequence[Row]:
    sql, parameters = statement.render("format")
    try:
        # A cursor of our own making: the user's connection may have other factories.
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(sql.encode(), parameters, binary=True)
            return cursor.fetchall() if cursor.description else ()
    except psycopg.Error as error:
        raise _translate(error) from error


def _translate(error: psycopg.Error) -> SamekeyError:
    return from_sqlstate(error.sqlstate, str(error).strip() or type(error).__name__)
