"""SQLite through the standard library, for sync code; ``driver_async`` runs it for event loops.

Every connection is in autocommit mode: a transaction is there because we began it. WAL lets duplicates
read while somebody writes; ``synchronous=FULL`` makes a commit durable; a writer waits for another a bounded
time and then is busy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ...core.program import Row, Statement
from ...errors import (
    ConfigurationError,
    OperationOver,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransactionGone,
    UnfinishedWork,
)
from ..fork import anew_after_fork
from ..loan import Loan
from ..pool import Pool
from ..protocol import SHORT, Ready
from .files import make_private, private_folder
from .forks import Opening, closed_before_fork, inherited, refuse_if_inherited
from .lent import HandlerConnection, gone

T = TypeVar("T")

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


class SQLiteDriver:
    """Synchronous SQLite. ``path`` may be ``:memory:``."""

    def __init__(self, path: str, *, busy_seconds: float = BUSY_SECONDS, ready: Ready | None = None) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old: samekey needs {'.'.join(map(str, OLDEST))} or "
                "newer. Use a Python that was built with it."
            )
        self.busy_seconds = busy_seconds
        if path == ":memory:":
            # A memory database belongs to one connection, or else locks whole tables among several. A
            # private file that goes with this driver behaves like the real thing, also after a close.
            folder, held = private_folder()
            weakref.finalize(self, _remove, folder, held, os.getpid())
            path = os.path.join(folder, "memory.db")
        self.path = path
        self._short: weakref.WeakSet[HandlerConnection] = weakref.WeakSet()
        """Connections for single statements that are open."""
        self._statements: Pool[HandlerConnection] = Pool(lambda: self._connect(cached=128), self._close_short)
        # Where a handler may come, each statement is prepared anew: then SQLite asks whether it may run.
        self._pool: Pool[HandlerConnection] = Pool(lambda: self._connect(cached=0), _close)
        self._ready = ready
        self.take = self._pool.take
        self.give_back = self._pool.give_back
        self.let_go = self._pool.let_go
        anew_after_fork(self)
        closed_before_fork(self)

    def start_anew(self) -> None:
        self._short = weakref.WeakSet()

    def close_idle(self) -> bool:
        """Before a fork. A transaction may be the forking thread's own, and is not waited for."""
        self._statements.drop_idle()
        self._pool.drop_idle()
        return bool(self._short) and not self._pool.in_use

    def execute(self, statement: Statement) -> Sequence[Row]:
        connection = self._statements.take()
        try:
            rows = _execute(connection, statement)
        except StoreError:
            self._statements.give_back(connection)
            raise
        except BaseException:
            self._statements.let_go(connection)  # interrupted: nobody shall have it
            raise
        self._statements.give_back(connection)
        return rows

    def open(self, connection: Any = None) -> SQLiteSession:
        if connection is not None and connection is not SHORT:
            raise ConfigurationError(
                "On SQLite, atomic work runs on samekey's own connection: use "
                "current_operation().connection for the writes that belong to the operation."
            )
        return SQLiteSession(self)

    def close(self) -> None:
        self._statements.close()
        self._pool.close()

    def _close_short(self, connection: HandlerConnection) -> None:
        try:
            _close(connection)
        finally:
            self._short.discard(connection)

    def _connect(self, *, cached: int) -> HandlerConnection:
        if inherited:
            refuse_if_inherited(self.path)
        make_private(self.path)
        try:
            with Opening.lock:
                connection = sqlite3.connect(
                    self.path,
                    timeout=self.busy_seconds,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=cached,
                    factory=HandlerConnection,
                )
                if cached:
                    self._short.add(connection)
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error
        try:
            self._use_wal(connection)
            connection.execute("pragma synchronous = full")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise _translate(error, self.path) from error
            raise
        return connection

    def make_ready(self, connection: HandlerConnection) -> None:
        """Before a transaction on it."""
        if self._ready is not None:
            self._ready.ready(connection)
            # Whatever was set: our transactions are begun by us.
            if connection.in_transaction:
                sqlite3.Connection.commit(connection)
            if sys.version_info >= (3, 12):
                connection.autocommit = sqlite3.LEGACY_TRANSACTION_CONTROL
            connection.isolation_level = None

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


def _remove(folder: str, held: int, owner: int) -> None:
    """Not by a forked child that ends, or closes what it inherited: the parent goes on."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


class SQLiteSession:
    """A write transaction that begins at its first use, so that slow handlers do not hold the lock.

    Whoever ends it may be another thread than the one that uses it: async code that was cancelled leaves its
    statement behind in a thread, perhaps still waiting to begin. The end waits for that one, and nothing
    begins after the end: a transaction that nobody ends would lock out every writer of every process.
    """

    def __init__(self, driver: SQLiteDriver) -> None:
        self._driver = driver
        self._loan = Loan()
        self._held: HandlerConnection | None = None
        self._changes = 0

    @property
    def connection(self) -> sqlite3.Connection:
        with self._loan.use():
            connection = self._begin()
            if connection.loan is None:
                connection.lend(self._loan)
            return connection

    def lend(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does something with the connection; the transaction is not ended in the middle of it."""
        with self._loan.use():
            return work(self.connection)

    def wrote(self) -> bool:
        if self._loan.over or self._loan.gone:
            return True  # nobody can tell; the next statement says that it is over
        try:
            return self._held is not None and self._held.total_changes != self._changes
        except sqlite3.Error:
            return True  # it was closed behind our back; the next statement says so

    def sent(self) -> int:
        return self._loan.sent

    def in_transaction(self) -> bool:
        return True  # or it was rolled back, and has not escaped: the next statement says so

    def execute(self, statement: Statement) -> Sequence[Row]:
        with self._loan.use():
            held = self._begin()
            if gone(held):
                self._loan.lose()  # by a way that went past our own classes
                raise TransactionGone
            held.put_back()
            self._loan.sent += 1
            return _execute(held, statement)

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Rolls back, and calls ``then``, if the handler has not ended by that time."""

        def expire() -> None:
            self.rollback()
            then()

        self._loan.expire_after(seconds, expire)

    def commit(self) -> None:
        if not self._end_loan():
            raise StoreBusy(
                "A statement of this operation was still running at its end, so nothing was committed. Retry "
                "with the same key."
            )
        held, self._held = self._held, None
        if held is None:
            return
        if gone(held):
            # SQLite has rolled it back, and nothing was let through since.
            self._undo(held)
            raise TransactionGone
        try:
            held.seal()
            _run(held, "commit")
        except sqlite3.Error as error:
            # SQLite says for certain that it did not commit; the transaction is still open.
            self._undo(held)
            if "statements in progress" in str(error):
                raise UnfinishedWork from error  # rows of an INSERT … RETURNING that nobody has fetched, say
            raise _translate(error) from error
        except BaseException:
            self._let_go(held)
            raise
        self._leave(held)

    def rollback(self) -> None:
        try:
            free = self._end_loan()
        except OperationOver:
            return  # a commit that failed has rolled back
        held = None
        if free:
            held, self._held = self._held, None
        if held is not None:
            self._undo(held)

    def _end_loan(self) -> bool:
        def interrupt() -> None:
            if self._held is not None:
                self._held.interrupt()

        def undo() -> None:
            held, self._held = self._held, None
            if held is not None:
                self._undo(held)

        # Whoever waits to begin does so for the busy time at most.
        return self._loan.end(self._driver.busy_seconds + 1, interrupt, undo)

    def _undo(self, held: HandlerConnection) -> None:
        try:
            held.seal()
            if held.in_transaction:
                _run(held, "rollback")
        except sqlite3.Error:
            self._let_go(held)  # in whatever state it is, nobody shall have it
        except BaseException:
            self._let_go(held)
            raise
        else:
            self._leave(held)

    def _begin(self) -> HandlerConnection:
        if self._held is None:
            connection = self._driver.take()
            try:
                self._driver.make_ready(connection)
                _run(connection, "begin immediate")
                self._changes = connection.total_changes
                self._held = connection
            except sqlite3.Error as error:
                self._driver.give_back(connection)
                raise _translate(error) from error
            except BaseException:
                # A signal's, say: a transaction that nobody has in hand would lock everybody out.
                self._driver.let_go(connection)
                raise
        return self._held

    def _leave(self, held: HandlerConnection) -> None:
        if held.loan is None:
            self._driver.give_back(held)
        else:
            # A handler may have set pragmas, functions, factories: nobody else shall inherit them, and
            # a new connection costs a fraction of a millisecond.
            self._let_go(held)

    def _let_go(self, held: HandlerConnection) -> None:
        self._driver.let_go(held)


def _close(connection: HandlerConnection) -> None:
    """Also of one that is lent, whose own method refuses."""
    sqlite3.Connection.close(connection)


def _run(connection: HandlerConnection, sql: str) -> None:
    """A statement of ours, which no loan refuses."""
    # Not ``sqlite3.Cursor(connection)``: the connection would keep a reference to each of them for good.
    sqlite3.Connection.cursor(connection).execute(sql)


def _execute(connection: HandlerConnection, statement: Statement) -> Sequence[Row]:
    sql, parameters = statement.render("qmark")
    text, connection.text_factory = connection.text_factory, str  # whatever a handler has set
    try:
        cursor = sqlite3.Connection.cursor(connection)
        cursor.row_factory = None
        rows: list[Row] = cursor.execute(sql, parameters).fetchall()
        cursor.close()
    except sqlite3.Error as error:
        raise _translate(error) from error
    finally:
        connection.text_factory = text
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
