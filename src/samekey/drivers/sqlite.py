"""SQLite through the standard library: sync, and async without blocking the event loop.

Every connection is in autocommit mode: a transaction is there because we began it. WAL lets duplicates
read while somebody writes; ``synchronous=FULL`` makes a commit durable; a writer waits for another a bounded
time and then is busy.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ..core.program import Row, Statement
from ..errors import (
    CommitRefused,
    ConfigurationError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from .pool import Pool

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any]

BUSY_SECONDS: Final = 5.0
"""How long a writer waits for another. Longer than any commit, shorter than a client's patience."""

OLDEST: Final = (3, 35)
"""The first SQLite with RETURNING."""

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_ADVICE: Final = {
    sqlite3.SQLITE_CANTOPEN: "Does its directory exist, and may this process write there?",
    sqlite3.SQLITE_PERM: "Let this process read and write the file and its directory.",
    sqlite3.SQLITE_READONLY: "Let this process write the file and its directory: WAL keeps files beside it.",
    sqlite3.SQLITE_NOTADB: "The file is no SQLite database: correct the path in the URL.",
    sqlite3.SQLITE_CORRUPT: "The file is damaged: stop the application and restore it from a backup.",
    sqlite3.SQLITE_FULL: "The disk is full: make room.",
}
_COMMIT_REFUSED: Final = (
    "samekey commits this transaction together with the answer, so the handler must not end it. "
    "Remove the commit or rollback; to undo everything, raise an error."
)


class HandlerCursor(sqlite3.Cursor):
    """A cursor that says in our words why SQL text may not end the transaction."""

    def execute(self, sql: str, parameters: Any = (), /) -> HandlerCursor:
        with _refusal_in_our_words(self.connection):
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Any, /) -> HandlerCursor:
        with _refusal_in_our_words(self.connection):
            super().executemany(sql, parameters)
        return self

    def executescript(self, sql: str, /) -> HandlerCursor:
        with _refusal_in_our_words(self.connection):
            super().executescript(sql)
        return self


@contextmanager
def _refusal_in_our_words(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if str(error) == "not authorized" and getattr(connection, "guarded", False):
            raise CommitRefused(_COMMIT_REFUSED) from error
        raise


class HandlerConnection(sqlite3.Connection):
    """A connection that refuses to end its transaction while a handler holds it."""

    guarded = False

    def cursor(self, factory: Any = HandlerCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().execute(sql, parameters)
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(sql, parameters)
        return cursor

    def executescript(self, sql: str, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executescript(sql)
        return cursor

    def commit(self) -> None:
        self._refuse_if_guarded()
        super().commit()

    def rollback(self) -> None:
        self._refuse_if_guarded()
        super().rollback()

    def __enter__(self) -> HandlerConnection:
        self._refuse_if_guarded()  # leaving the block would commit
        super().__enter__()
        return self

    def _refuse_if_guarded(self) -> None:
        if self.guarded:
            raise CommitRefused(_COMMIT_REFUSED)

    def guard(self) -> None:
        self.guarded = True
        self.set_authorizer(_refuse_transaction_statements)

    def unguard(self) -> None:
        self.guarded = False
        self.set_authorizer(None)


def _refuse_transaction_statements(
    action: int, _a: str | None, _b: str | None, _c: str | None, _d: str | None
) -> int:
    """COMMIT and ROLLBACK as SQL text; savepoints are the handler's own business."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteDriver:
    """Synchronous SQLite. ``path`` may be ``:memory:``."""

    def __init__(self, path: str, *, busy_seconds: float = BUSY_SECONDS) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old: samekey needs {'.'.join(map(str, OLDEST))} or "
                "newer. Use a Python that was built with it."
            )
        self.busy_seconds = busy_seconds
        self._temporary: weakref.finalize[..., Any] | None = None
        if path == ":memory:":
            # A memory database belongs to one connection, or else locks whole tables among several. A
            # private file that goes with the process behaves like the real thing.
            folder = tempfile.mkdtemp(prefix="samekey-")
            self._temporary = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = os.path.join(folder, "memory.db")
        self.path = path
        self._pool: Pool[HandlerConnection] = Pool(self._connect, HandlerConnection.close)
        self.take = self._pool.take
        self.give_back = self._pool.give_back
        self.let_go = self._pool.let_go

    def execute(self, statement: Statement) -> Sequence[Row]:
        connection = self.take()
        try:
            return _execute(connection, statement)
        finally:
            self.give_back(connection)

    def open(self, connection: Any = None) -> SQLiteSession:
        if connection is not None:
            raise ConfigurationError(
                "On SQLite, atomic work runs on samekey's own connection: use "
                "current_operation().connection for the writes that belong to the operation."
            )
        return SQLiteSession(self)

    def close(self) -> None:
        self._pool.drop_idle()
        if self._temporary is not None:
            self._temporary()

    def _connect(self) -> HandlerConnection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                factory=HandlerConnection,
            )
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error
        try:
            self._use_wal(connection)
            connection.execute("pragma synchronous = full")
        except sqlite3.Error as error:
            connection.close()
            raise _translate(error, self.path) from error
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switching a new file to WAL does not wait for another process that does the same."""
        give_up = time.monotonic() + self.busy_seconds
        while True:
            try:
                connection.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if _primary_code(error) not in _BUSY or time.monotonic() >= give_up:
                    raise
            time.sleep(0.01)


class SQLiteSession:
    """A write transaction that begins at its first use, so that slow handlers do not hold the lock.

    Whoever ends it may be another thread than the one that uses it: async code that was cancelled leaves its
    statement behind in a thread, perhaps still waiting to begin. The end waits for that one, and nothing
    begins after the end: a transaction that nobody ends would lock out every writer of every process.
    """

    def __init__(self, driver: SQLiteDriver) -> None:
        self._driver = driver
        self._held: HandlerConnection | None = None
        self._lent = False
        self._changes = 0
        self._ended = False
        self._one_at_a_time = threading.RLock()

    @property
    def connection(self) -> sqlite3.Connection:
        with self._one_at_a_time:
            connection = self._begin()
            self._lent = True
            return connection

    def lend(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does something with the connection; the transaction is not ended in the middle of it."""
        with self._one_at_a_time:
            return work(self.connection)

    def wrote(self) -> bool:
        return self._held is not None and self._held.total_changes != self._changes

    def in_transaction(self) -> bool:
        return self._held is None or self._held.in_transaction

    def execute(self, statement: Statement) -> Sequence[Row]:
        with self._one_at_a_time:
            return _execute(self._begin(), statement)

    def commit(self) -> None:
        with self._one_at_a_time:
            self._ended = True
            if self._held is None:
                return
            self._held.unguard()
            try:
                self._held.execute("commit")
            except sqlite3.Error as error:
                # SQLite says for certain that it did not commit; the transaction is still open.
                self.rollback()
                raise _translate(error) from error
            self._leave()

    def rollback(self) -> None:
        with self._one_at_a_time:
            self._ended = True
            if self._held is None:
                return
            self._held.unguard()
            try:
                if self._held.in_transaction:
                    self._held.execute("rollback")
            except sqlite3.Error:
                self._lent = True  # in whatever state it is, nobody shall have it
            self._leave()

    def _begin(self) -> HandlerConnection:
        if self._held is None:
            if self._ended:
                raise StoreBusy("This transaction is over; nothing more can be written in it.")
            connection = self._driver.take()
            try:
                connection.execute("begin immediate")
            except sqlite3.Error as error:
                self._driver.give_back(connection)
                raise _translate(error) from error
            self._changes = connection.total_changes
            connection.guard()
            self._held = connection
        return self._held

    def _leave(self) -> None:
        connection, self._held = self._held, None
        if connection is None:
            return
        if self._lent:
            # A handler may have set pragmas, functions, factories: nobody else shall inherit them, and
            # a new connection costs a fraction of a millisecond.
            self._driver.let_go(connection)
        else:
            self._driver.give_back(connection)


def _execute(connection: sqlite3.Connection, statement: Statement) -> Sequence[Row]:
    sql, parameters = statement.render("qmark")
    try:
        cursor = connection.cursor()
        cursor.row_factory = None
        rows: list[Row] = cursor.execute(sql, parameters).fetchall()
        cursor.close()
    except sqlite3.Error as error:
        raise _translate(error) from error
    return rows


def _primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def _translate(error: sqlite3.Error, path: str = "") -> StoreError | SchemaMismatch:
    code = _primary_code(error)
    if code in _BUSY:
        return StoreBusy("The SQLite database is locked by another writer. Retry with the same key.")
    if "no such table" in str(error):
        return SchemaMismatch("The tables of samekey are missing. Create them: samekey migrate URL")
    advice = "" if code is None else _ADVICE.get(code, "")
    if path and code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOTADB):
        return StoreUnavailable(f"SQLite cannot open {path}: {error}. {advice}")
    return StoreUnavailable(f"SQLite could not do it: {error}. {advice}".rstrip())


class AsyncSQLiteDriver:
    """SQLite for async code: the same driver, run in threads of its own.

    Statements and transactions have separate threads: a transaction that holds the write lock must be able to
    end while statements wait for that lock. Of the transactions only one is let at the lock at a time; the
    others wait here, in the event loop, where waiting costs no thread.
    """

    def __init__(self, driver: SQLiteDriver) -> None:
        self.driver = driver
        self._lock = threading.Lock()
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._statements: ThreadPoolExecutor | None = None
        self._transactions: ThreadPoolExecutor | None = None
        self._turn = asyncio.Lock()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        statements, _ = self._threads()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(statements, self.driver.execute, statement)

    async def open(self, connection: Any = None) -> AsyncSQLiteSession:
        return AsyncSQLiteSession(self, self.driver.open(connection))

    async def in_transaction(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs something in a thread; a cancelled caller does not interrupt it half-way."""
        _, transactions = self._threads()
        return await asyncio.get_running_loop().run_in_executor(transactions, function, *arguments)

    async def take_turn(self) -> asyncio.Lock:
        """The right to be the one transaction of this process, until the lock is released."""
        self._threads()
        turn = self._turn
        try:
            async with asyncio.timeout(self.driver.busy_seconds):
                await turn.acquire()
        except TimeoutError:
            raise StoreBusy(
                "Other handlers of this process have held SQLite's write lock for too long. Retry with the "
                "same key."
            ) from None
        return turn

    async def close(self) -> None:
        with self._lock:
            pools = (self._statements, self._transactions)
            self._statements = self._transactions = None
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True)

    def _threads(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        here = (os.getpid(), asyncio.get_running_loop())
        with self._lock:
            if self._home != here:
                # Threads do not cross a fork, and a lock belongs to one event loop.
                forked = self._home is not None and self._home[0] != here[0]
                self._home, self._turn = here, asyncio.Lock()
                if forked:
                    self._statements = self._transactions = None
            if self._statements is None or self._transactions is None:
                self._statements = ThreadPoolExecutor(16, thread_name_prefix="samekey-sqlite")
                self._transactions = ThreadPoolExecutor(2, thread_name_prefix="samekey-sqlite-tx")
            return self._statements, self._transactions


class AsyncSQLiteSession:
    """A write transaction for async code."""

    def __init__(self, driver: AsyncSQLiteDriver, session: SQLiteSession) -> None:
        self._driver = driver
        self._session = session
        self._turn: asyncio.Lock | None = None
        self._connection = AsyncConnection(self)

    @property
    def connection(self) -> AsyncConnection:
        return self._connection

    def wrote(self) -> bool:
        return self._session.wrote()

    def in_transaction(self) -> bool:
        return self._session.in_transaction()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return await self.use(lambda: self._session.execute(statement))

    async def lend(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does something with the connection that the handler sees."""
        return await self.use(lambda: self._session.lend(work))

    async def use(self, work: Callable[[], T]) -> T:
        if self._turn is None:
            self._turn = await self._driver.take_turn()
        return await self._driver.in_transaction(work)

    async def commit(self) -> None:
        await self._end(self._session.commit)

    async def rollback(self) -> None:
        await self._end(self._session.rollback)

    async def _end(self, how: Callable[[], None]) -> None:
        """A caller that is cancelled meanwhile does not keep the transaction from being ended."""
        ending = asyncio.ensure_future(self._driver.in_transaction(how))
        ending.add_done_callback(self._end_turn)
        await asyncio.shield(ending)

    def _end_turn(self, ending: asyncio.Future[None]) -> None:
        if not ending.cancelled():
            ending.exception()  # looked at, also where nobody waits for it any more
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()


class AsyncConnection:
    """What an async handler writes through: ``await connection.execute(sql, parameters)``.

    Rows are fetched in the thread, so what comes back is plain data.
    """

    def __init__(self, session: AsyncSQLiteSession) -> None:
        self._session = session
        self._one_at_a_time = asyncio.Lock()

    async def execute(self, sql: str, parameters: Parameters = ()) -> Result:
        """Runs one statement and gives its rows."""
        return await self._use(lambda c: _fetch(c.execute(sql, parameters)))

    async def executemany(self, sql: str, parameters: Iterable[Parameters]) -> Result:
        """Runs one statement for each set of parameters."""
        return await self._use(lambda c: _fetch(c.executemany(sql, parameters)))

    async def commit(self) -> None:
        """Always refused: samekey commits, together with the answer."""
        raise CommitRefused(_COMMIT_REFUSED)

    async def rollback(self) -> None:
        """Always refused: raise an error to undo everything."""
        raise CommitRefused(_COMMIT_REFUSED)

    async def _use(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        async with self._one_at_a_time:
            return await self._session.lend(work)


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


def _fetch(cursor: sqlite3.Cursor) -> Result:
    return Result(cursor.fetchall(), cursor.lastrowid, cursor.rowcount)
