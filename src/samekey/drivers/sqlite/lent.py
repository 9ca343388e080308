"""What a sync handler is lent on SQLite: a ``sqlite3.Connection`` that does not end its transaction.

It is closed after the operation, so that nobody inherits its pragmas, functions and factories. Two things
keep a left-over thread from writing between COMMIT and that: the loan, which every method asks, and an
authorizer, which SQLite asks itself, whatever way a statement came.

SQLite may roll back a transaction by itself (``ON CONFLICT ROLLBACK``, ``RAISE(ROLLBACK)``, a full disk, an
interrupted write). From then on every statement would commit by itself, so none is let through any more.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from ...errors import CommitRefused, ConfigurationError, OperationOver, TransactionGone
from ..loan import Loan
from ..threaded_session import COMMIT_REFUSED


class LentCursor(sqlite3.Cursor):
    """A cursor that asks the loan, and says in our words why SQL text may not end the transaction."""

    def execute(self, sql: str, parameters: Any = (), /) -> LentCursor:
        with _using(self.connection, sends=True):
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Any, /) -> LentCursor:
        with _using(self.connection, sends=True):
            super().executemany(sql, parameters)
        return self

    def executescript(self, sql: str, /) -> LentCursor:
        with _using(self.connection, sends=True):
            super().executescript(sql)
        return self

    def fetchone(self) -> Any:
        with _using(self.connection):
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with _using(self.connection):
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with _using(self.connection):
            return super().fetchall()

    def __next__(self) -> Any:
        with _using(self.connection):
            try:
                return super().__next__()
            except StopIteration:
                pass
        raise StopIteration


@contextmanager
def _using(connection: sqlite3.Connection, *, sends: bool = False) -> Iterator[None]:
    loan = getattr(connection, "loan", None)
    if loan is None:
        yield
        return
    with loan.use():
        loan.sent += sends
        try:
            yield
        except sqlite3.DatabaseError as error:
            if str(error) == "not authorized":
                if not loan.over and gone(connection):
                    raise TransactionGone from error
                raise CommitRefused(COMMIT_REFUSED) from error
            raise
        finally:
            if not loan.over and gone(connection):
                loan.lose()


def gone(connection: sqlite3.Connection) -> bool:
    """Whether its transaction has ended. None of a handler's can begin another one."""
    try:
        return not connection.in_transaction
    except sqlite3.Error:
        return False  # it was closed behind our back; the next statement says so


USED: Final = frozenset(
    {"coalesce", "count", "datetime", "json_extract", "julianday", "max", "min", "nullif", "sqlite_version"}
)
"""Functions of SQLite's that our statements use. What replaces one cannot be taken away again."""


class HandlerConnection(sqlite3.Connection):
    """A connection of ours, which may be lent."""

    loan: Loan | None = None

    def lend(self, loan: Loan) -> None:
        """From here on a handler has it. There is no way back: it is closed at the end."""
        this = weakref.ref(self)

        def authorize(action: int, *_: Any) -> int:
            """Asked for each statement: one of ours is never taken from a cache, which would not ask."""
            connection = this()
            if action == sqlite3.SQLITE_TRANSACTION or connection is None or gone(connection):
                return sqlite3.SQLITE_DENY  # savepoints are the handler's own business
            return sqlite3.SQLITE_OK

        super().set_authorizer(authorize)
        self.loan = loan
        self.lent_cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def put_back(self) -> None:
        """What a handler may have set that would reach a statement of ours."""
        if self.loan is not None:
            super().set_progress_handler(None, 0)
            sqlite3.Connection.cursor(self).execute("pragma query_only = off")

    def seal(self) -> None:
        """From here on only this thread can do anything on it.

        A statement that was prepared before is prepared anew, and refused, unless it is running already: then
        it is done before COMMIT is.
        """
        if self.loan is None:
            return
        me = threading.get_ident()

        def only_me(*_: Any) -> int:
            return sqlite3.SQLITE_OK if threading.get_ident() == me else sqlite3.SQLITE_DENY

        super().set_authorizer(only_me)
        for cursor in list(self.lent_cursors):
            # Else rows that nobody has fetched would keep a closed connection, and its locks, alive.
            sqlite3.Cursor.close(cursor)

    def cursor(self, factory: Any = LentCursor) -> Any:
        if self.loan is None:
            return super().cursor(factory)
        if self.loan.over:
            raise OperationOver
        made = super().cursor(factory)
        self.lent_cursors.add(made)
        return made

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
        self._refuse_if_lent()
        super().commit()

    def rollback(self) -> None:
        self._refuse_if_lent()
        super().rollback()

    def close(self) -> None:
        self._refuse_if_lent()
        super().close()

    def set_authorizer(self, callback: Any) -> None:
        self._refuse_if_lent()  # it is what refuses COMMIT as SQL text
        super().set_authorizer(callback)

    def create_function(self, name: str, *arguments: Any, **options: Any) -> None:
        self._refuse_in_the_place_of_ours(name)
        super().create_function(name, *arguments, **options)

    def create_aggregate(self, name: str, *arguments: Any, **options: Any) -> None:
        self._refuse_in_the_place_of_ours(name)
        super().create_aggregate(name, *arguments, **options)

    def _refuse_in_the_place_of_ours(self, name: str) -> None:
        if self.loan is not None and name.lower() in USED:
            raise ConfigurationError(
                f"samekey's own statements use {name}(), and what replaces it would decide about the record. "
                "Give your function another name."
            )

    def blobopen(self, *arguments: Any, **options: Any) -> Any:
        if self.loan is not None and not options.get("readonly"):
            raise CommitRefused(
                "A blob that is written piece by piece cannot be cut off when the operation ends. Write it "
                "by UPDATE, or open it with readonly=True."
            )
        return super().blobopen(*arguments, **options)

    def __enter__(self) -> HandlerConnection:
        self._refuse_if_lent()  # leaving the block would commit
        super().__enter__()
        return self

    def _refuse_if_lent(self) -> None:
        if self.loan is not None:
            _refuse(self.loan)


def _refuse(loan: Loan) -> NoReturn:
    if loan.over:
        raise OperationOver
    raise CommitRefused(COMMIT_REFUSED)
