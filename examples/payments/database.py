"""The service's own statements on SQLite and PostgreSQL, from one text.

A ``Run`` carries out one statement and gives its rows. There are two: ``database.run`` commits by itself;
``database.within(connection)`` is part of the transaction that samekey has opened, and commits or rolls back
together with samekey's own record. SQL is written with ``$1``, ``$2`` …, which both databases can be given.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

Row = Sequence[Any]
Run = Callable[..., Awaitable[list[Row]]]

WAIT = 5.0
"""Seconds for a connection, a lock or a statement."""
POOL_SIZE = 10

_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}

_NOW = {
    "sqlite": "select cast((julianday('now') - 2440587.5) * 86400000 as integer)",
    "postgres": "select (extract(epoch from statement_timestamp()) * 1000)::bigint",
}


class DatabaseUnavailable(Exception):
    """A statement of the service's own could not be carried out; it may be tried again."""


class Database:
    """One database, reached by a URL that samekey takes too."""

    def __init__(self, url: str) -> None:
        scheme = url.partition(":")[0]
        if scheme not in _DIALECTS:
            raise ValueError(f"DATABASE_URL begins with {scheme}:; it must be one of {', '.join(_DIALECTS)}.")
        self.url = url
        self.dialect = _DIALECTS[scheme]
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def run(self, sql: str, *arguments: Any) -> list[Row]:
        """One statement, committed by itself. ``DatabaseUnavailable`` if that cannot be done now."""
        with _in_our_words(self.dialect):
            if self.dialect == "sqlite":
                return await asyncio.to_thread(self._run_sqlite, sql, arguments)
            pool = await self._opened()
            rows: list[Row] = await pool.fetch(sql, *arguments, timeout=WAIT)
            return rows

    def within(self, connection: Any) -> Run:
        """Statements in the transaction of a connection that samekey gave to a handler, a phase or a job."""

        async def run(sql: str, *arguments: Any) -> list[Row]:
            with _in_our_words(self.dialect):
                if self.dialect == "sqlite":
                    found = await connection.execute(_for_sqlite(sql), arguments)
                    return list(found)
                rows: list[Row] = await connection.fetch(sql, *arguments)
                return rows

        return run

    async def now(self) -> int:
        """Milliseconds since 1970 by the database's clock, which is what samekey's times are by."""
        rows = await self.run(_NOW[self.dialect])
        return int(rows[0][0])

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _opened(self) -> Any:
        """The pool. Opened at first use: application and worker import this, and only one has a lifespan."""
        import asyncpg

        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self.url, min_size=0, max_size=POOL_SIZE, timeout=WAIT, command_timeout=WAIT
                )
        return self._pool

    def _run_sqlite(self, sql: str, arguments: tuple[Any, ...]) -> list[Row]:
        with closing(connect_sqlite(self.url)) as connection:
            return connection.execute(_for_sqlite(sql), arguments).fetchall()


@contextmanager
def _in_our_words(dialect: str) -> Iterator[None]:
    """What says that the database is away or busy is one error. A mistake in a statement is not among it."""
    if dialect == "sqlite":
        away: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
    else:
        import asyncpg

        away = (
            OSError,  # time-outs too
            asyncpg.InterfaceError,  # of a connection that is closed
            asyncpg.PostgresConnectionError,
            asyncpg.OperatorInterventionError,  # the server is shut down, or starts
            asyncpg.InsufficientResourcesError,
            asyncpg.exceptions.TransactionRollbackError,  # a deadlock
        )
    try:
        yield
    except away as error:
        raise DatabaseUnavailable(f"The database could not be used: {error}") from error


def connect_sqlite(url: str) -> sqlite3.Connection:
    """A connection that commits each statement by itself, durably."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=WAIT, isolation_level=None)
    connection.execute("pragma synchronous = full")
    return connection


def _for_sqlite(sql: str) -> str:
    """``$1`` is ``?1`` there. None of our statements has a dollar sign in a text."""
    return sql.replace("$", "?")
