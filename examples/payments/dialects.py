"""SQLite, PostgreSQL and MySQL (or MariaDB): everything in which they differ, and nothing else knows.

The service's SQL is written once, in PostgreSQL's words: ``$1``, ``$2`` … for its arguments, ``for update``,
``on conflict (…) do nothing``. A dialect says the same in its own. What none of our statements has, and no
translation looks for: a dollar or per cent sign in a text, ``returning``, a count of changed rows (which a
flag of the connection can change on MySQL).
"""

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Protocol

from samekey.drivers.mysql.url import target_of

Row = Sequence[Any]

WAIT = 5.0
"""Seconds for a connection, a lock or a statement."""
LONG_WAIT = 60
"""Seconds for other processes that start at the same time and make the tables."""
POOL_SIZE = 10


class DatabaseUnavailable(Exception):
    """A statement of the service's own could not be carried out; it may be tried again."""


class Dialect(Protocol):
    """One kind of database, and the way to one of them."""

    text: str
    """The type of a column whose text is compared byte by byte."""
    serial: str
    """The type of a column that counts by itself."""
    now: str
    """Selects milliseconds since 1970."""
    migrates: bool
    """Whether samekey's tables are for us to make. It does so by itself on SQLite."""

    def __init__(self, url: str) -> None: ...

    async def run(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        """One statement, committed by itself."""

    async def run_within(self, connection: Any, sql: str, arguments: Sequence[Any]) -> list[Row]:
        """One statement in a transaction that samekey has opened."""

    def away(self) -> tuple[type[Exception], ...]:
        """What says that the database is away or busy. A mistake in a statement is not among it."""

    def alone(self) -> AbstractContextManager[Callable[[str], object]]:
        """Runs statements that make tables, in one process at a time."""

    async def close(self) -> None: ...


class SQLite:
    """A file. Transactions of samekey's have its one write lock from their beginning."""

    text = "text"
    serial = "integer primary key autoincrement"
    now = "select cast((julianday('now') - 2440587.5) * 86400000 as integer)"
    migrates = False

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///")

    async def run(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        return await asyncio.to_thread(self._run, sql, arguments)

    async def run_within(self, connection: Any, sql: str, arguments: Sequence[Any]) -> list[Row]:
        return list(await connection.execute(self._said(sql), arguments))

    def away(self) -> tuple[type[Exception], ...]:
        return (sqlite3.OperationalError,)

    @contextmanager
    def alone(self) -> Iterator[Callable[[str], object]]:
        with closing(self._connect()) as connection:
            connection.execute("begin immediate")
            yield connection.execute
            connection.execute("commit")

    async def close(self) -> None:
        """There is nothing to close."""

    def _run(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        with closing(self._connect()) as connection:
            return connection.execute(self._said(sql), arguments).fetchall()

    def _connect(self) -> sqlite3.Connection:
        """It commits each statement by itself, durably."""
        connection = sqlite3.connect(self._path, timeout=WAIT, isolation_level=None)
        connection.execute("pragma synchronous = full")
        return connection

    @staticmethod
    def _said(sql: str) -> str:
        return sql.replace("$", "?").removesuffix(" for update")


class PostgreSQL:
    """A server."""

    text = "text"
    serial = "bigint generated always as identity primary key"
    now = "select (extract(epoch from statement_timestamp()) * 1000)::bigint"
    migrates = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def run(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        rows: list[Row] = await (await self._opened()).fetch(sql, *arguments, timeout=WAIT)
        return rows

    async def run_within(self, connection: Any, sql: str, arguments: Sequence[Any]) -> list[Row]:
        rows: list[Row] = await connection.fetch(sql, *arguments)
        return rows

    def away(self) -> tuple[type[Exception], ...]:
        import asyncpg

        return (
            OSError,  # time-outs too
            asyncpg.InterfaceError,  # of a connection that is closed
            asyncpg.PostgresConnectionError,
            asyncpg.OperatorInterventionError,  # the server is shut down, or starts
            asyncpg.InsufficientResourcesError,
            asyncpg.exceptions.TransactionRollbackError,  # a deadlock
        )

    @contextmanager
    def alone(self) -> Iterator[Callable[[str], object]]:
        import psycopg

        with psycopg.connect(self._url) as server:
            # "if not exists" alone is not safe: two processes may both find nothing, and one then fails.
            # Any number will do that nobody else on this server takes.
            server.execute("select pg_advisory_xact_lock(7061796013116914789)")
            yield lambda sql: server.execute(sql.encode())

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
                    self._url, min_size=0, max_size=POOL_SIZE, timeout=WAIT, command_timeout=WAIT
                )
        return self._pool


class MySQL:
    """A server of MySQL or MariaDB."""

    text = "varbinary(256)"
    """Bytes, because under most collations ``tea``, ``Tea`` and ``tea `` are one item."""
    serial = "bigint auto_increment primary key"
    now = "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(3)) div 1000"
    migrates = True

    def __init__(self, url: str) -> None:
        # As samekey reads the URL, with its options for TLS.
        self._target = {
            **target_of(url).arguments(),
            "autocommit": True,
            "connect_timeout": WAIT,
            "read_timeout": WAIT,
            "write_timeout": WAIT,
        }
        self._idle: list[Any] = []

    async def run(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        # In a thread, which a caller that is cancelled does not interrupt half-way.
        return await asyncio.to_thread(self._run, sql, arguments)

    async def run_within(self, connection: Any, sql: str, arguments: Sequence[Any]) -> list[Row]:
        async with asyncio.timeout(WAIT):
            return self._heard(await connection.execute(*self._said(sql, arguments)))

    def away(self) -> tuple[type[Exception], ...]:
        import pymysql  # type: ignore[import-untyped]

        return (
            OSError,  # time-outs too
            EOFError,  # in the middle of an answer
            pymysql.err.InterfaceError,  # of a connection that is closed
            pymysql.err.OperationalError,  # a deadlock too
        )

    @contextmanager
    def alone(self) -> Iterator[Callable[[str], object]]:
        import pymysql

        with pymysql.connect(**self._target) as server, server.cursor() as cursor:
            # A lock of the session, which ends with it: each statement that makes a table commits.
            cursor.execute(f"select get_lock(concat('payments ', sha1(database())), {LONG_WAIT})")
            if cursor.fetchone() != (1,):
                raise DatabaseUnavailable("Another process is making the tables and takes too long.")

            def execute(sql: str) -> None:
                try:
                    # MySQL, unlike MariaDB, cannot make an index "if not exists".
                    cursor.execute(self._said(sql.replace("index if not exists", "index"), ())[0])
                except pymysql.err.OperationalError as error:
                    if error.args[0] != pymysql.constants.ER.DUP_KEYNAME:
                        raise

            yield execute

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _run(self, sql: str, arguments: Sequence[Any]) -> list[Row]:
        connection = self._connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(*self._said(sql, arguments))
                rows = self._heard(cursor.fetchall())
        except BaseException:
            if connection.open:
                connection.close()
            raise
        self._idle.append(connection)
        return rows

    def _connect(self) -> Any:
        """One that is idle and still alive, or a new one. There are as many as threads that want one."""
        import pymysql

        while self._idle:
            try:
                connection = self._idle.pop()
                connection.ping(reconnect=False)
            except (IndexError, OSError, pymysql.err.Error):
                continue  # another thread was faster, or the server has closed it
            return connection
        return pymysql.connect(**self._target)

    @staticmethod
    def _said(sql: str, arguments: Sequence[Any]) -> tuple[str, list[Any]]:
        """``%s`` takes the arguments one after the other, ``$2`` may come first or twice."""
        order = [arguments[int(number) - 1] for number in re.findall(r"\$(\d+)", sql)]
        sql = re.sub(r"\$\d+", "%s", sql)
        return re.sub(r"on conflict \((\w+)\) do nothing", r"on duplicate key update \1 = \1", sql), order

    @staticmethod
    def _heard(rows: Any) -> list[Row]:
        return [tuple(one.decode() if isinstance(one, bytes) else one for one in row) for row in rows]


DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": SQLite,
    "postgresql": PostgreSQL,
    "postgres": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
}
"""By the scheme of a URL."""
