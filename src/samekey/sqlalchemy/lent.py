"""The connection that a transaction of samekey's lends, as SQLAlchemy's dialects want it.

In sync code it is the driver's own. For async code SQLAlchemy's dialects want a connection that is used as a
sync one and waits in a greenlet: on PostgreSQL that is SQLAlchemy's adapter of asyncpg, on SQLite and MySQL
it is made here, since samekey runs their sync drivers in threads.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy.engine import Engine
from sqlalchemy.util import await_only

from ..engine.within import SharedTransaction
from .prepared import prepared_on

T = TypeVar("T")
Speaking = Callable[[], AbstractContextManager[None]]


def adapted_asyncpg(engine: Engine, connection: Any) -> Any:
    """A connection of asyncpg's, in a transaction or not, as SQLAlchemy's dialect wants it."""
    from sqlalchemy.dialects.postgresql import asyncpg

    dialect: Any = engine.dialect
    adapter: Any = asyncpg.AsyncAdapt_asyncpg_connection
    # Each by a name of its own: behind a pooler a usual one may be that of somebody else's statement.
    return adapter(
        dialect.dbapi,
        connection,
        prepared_statement_cache_size=0,
        prepared_statement_name_func=lambda: f"__samekey_{uuid.uuid4().hex}__",
    )


def lent_connection(transaction: SharedTransaction, engine: Engine, speaking: Speaking) -> Any:
    """What a session speaks through. It neither begins nor ends anything by itself."""
    connection = transaction.session.connection
    if transaction.sync:
        return connection
    if engine.dialect.name == "postgresql":
        adapted = adapted_asyncpg(engine, connection)
        adapted.isolation_level = "autocommit"  # else it would begin a savepoint that we know nothing of
        adapted._prepared_statement_cache = prepared_on(connection)
        return adapted
    return ThreadedConnection(connection, engine, speaking)


def command(transaction: SharedTransaction, lent: Any, sql: str) -> None:
    """A statement that gives nothing."""
    if not transaction.sync and not isinstance(lent, ThreadedConnection):
        await_only(lent.driver_connection.execute(sql))  # one round trip; a cursor would prepare it first
        return
    cursor = lent.cursor()
    try:
        cursor.execute(sql)
    finally:
        cursor.close()


class ThreadedConnection:
    """samekey's async connection of SQLite or MySQL, for SQLAlchemy's async dialects."""

    def __init__(self, connection: Any, engine: Engine, speaking: Speaking) -> None:
        self.driver_connection = connection
        self._speaking = speaking
        self._dialect: Any = engine.dialect

    def run(self, work: Callable[[Any], T]) -> T:
        """In the transaction's thread, with the database's own connection."""

        def alone(connection: Any) -> T:
            with self._speaking():  # here, where nobody else speaks meanwhile
                return work(connection)

        try:
            result: T = await_only(self.driver_connection.lend(alone))
            return result
        except Exception as error:
            raise self._as_the_dialects(error) from error.__cause__

    def cursor(self, server_side: bool = False) -> ThreadedCursor:
        return ThreadedCursor(self)

    def _as_the_dialects(self, error: Exception) -> Exception:
        """The driver in the thread may be another one than the dialect's: the error is the same by name."""
        dbapi = self._dialect.dbapi
        if isinstance(error, dbapi.Error) or type(error).__module__.partition(".")[0] != "pymysql":
            return error
        theirs = getattr(dbapi, type(error).__name__, dbapi.Error)
        translated: Exception = theirs(*error.args)
        return translated

    def __getattr__(self, name: str) -> Any:
        """What a dialect reads of a connection (its version, its character set) is the driver's own."""
        return self.run(lambda connection: getattr(connection, name))


class ThreadedCursor:
    """A cursor whose rows are all fetched in the thread, with the statement."""

    def __init__(self, connection: ThreadedConnection) -> None:
        self._connection = connection
        self._rows: Iterator[Any] = iter(())
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None
        self.arraysize = 1

    def execute(self, operation: Any, parameters: Any = None) -> None:
        self._run("execute", operation, () if parameters is None else (parameters,))

    def executemany(self, operation: Any, parameters: Any) -> None:
        self._run("executemany", operation, (list(parameters),))

    def _run(self, method: str, operation: Any, parameters: tuple[Any, ...]) -> None:
        def work(connection: Any) -> tuple[list[Any], Any, int, Any]:
            cursor = connection.cursor()
            try:
                getattr(cursor, method)(operation, *parameters)
                rows = [] if cursor.description is None else list(cursor.fetchall())
                return rows, cursor.description, cursor.rowcount, cursor.lastrowid
            finally:
                cursor.close()

        rows, self.description, self.rowcount, self.lastrowid = self._connection.run(work)
        self._rows = iter(rows)

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> Sequence[Any]:
        wanted = self.arraysize if size is None else size
        return [row for _, row in zip(range(wanted), self._rows, strict=False)]

    def fetchall(self) -> Sequence[Any]:
        return list(self._rows)

    def setinputsizes(self, *sizes: Any) -> None:
        """Nothing that these drivers would use."""

    async def _async_soft_close(self) -> None:
        """There is nothing left to fetch."""

    def nextset(self) -> None:
        return None

    def close(self) -> None:
        self._rows = iter(())
