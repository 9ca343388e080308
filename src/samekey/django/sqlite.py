"""One transaction on Django's own SQLite connection.

Nothing but this may end it: SQLite itself is asked to refuse COMMIT and ROLLBACK, however they are sent.
Where SQLite rolls back by itself (``ON CONFLICT ROLLBACK``, a full disk) every later one would commit by
itself, so none is let through.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error

from ..core.program import Row, Statement
from ..drivers.loan import Loan
from ..drivers.sqlite.driver import _execute, _translate
from ..drivers.sqlite.lent import gone
from ..drivers.threaded_session import COMMIT_REFUSED
from ..errors import CommitRefused, OperationOver, StoreBusy, StoreUnavailable, TransactionGone

_PATIENCE = 5.0
"""Seconds for which the end waits for a statement of ours in another thread."""


class SQLiteOnDjango:
    """Begins at once, by Django's own BEGIN: DEFERRED unless its options say otherwise."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._raw: sqlite3.Connection = wrapper.connection
        self._loan = Loan()
        try:
            wrapper._start_transaction_under_autocommit()
        except Error as error:
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error):
                raise _translate(cause) from error
            raise StoreUnavailable(f"SQLite could not begin: {error}") from error
        self._changes = self._raw.total_changes
        self._raw.set_authorizer(self._authorize)
        # Not last: `with connection.execute_wrapper(…)` around the view takes off the last one at its end.
        wrapper.execute_wrappers.insert(0, self._watch)

    def _authorize(self, action: int, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION or self._loan.over:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _watch(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Around every query that goes through Django."""
        with self._loan.use():
            try:
                return execute(sql, params, many, context)
            except Error as error:
                if str(error) == "not authorized":
                    raise CommitRefused(COMMIT_REFUSED) from error
                raise
            finally:
                if not self._loan.over and gone(self._raw):
                    self._loan.lose()

    @property
    def connection(self) -> Any:
        return self._wrapper

    def wrote(self) -> bool:
        try:
            return self._loan.over or self._loan.gone or self._raw.total_changes != self._changes
        except sqlite3.Error:
            self._loan.lose()  # the view has closed it, so SQLite has rolled back
            return True

    def in_transaction(self) -> bool:
        return True  # or it was rolled back, and has not escaped: the next statement says so

    def execute(self, statement: Statement) -> Sequence[Row]:
        with self._loan.use():
            if gone(self._raw):
                self._loan.lose()
                raise TransactionGone
            rows: Sequence[Row] = _execute(self._raw, statement)  # type: ignore[arg-type]
            return rows

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Rolls back, and calls ``then``, if the view has not ended by that time."""

        def expire() -> None:
            self._roll_back()
            then()

        self._loan.expire_after(seconds, expire)

    def commit(self) -> None:
        if not self._loan.end(_PATIENCE, self._raw.interrupt, self._roll_back_now):
            raise StoreBusy("A statement of this operation was still running at its end. Nothing was done.")
        if gone(self._raw):
            self._release()
            raise TransactionGone
        try:
            self._raw.set_authorizer(None)
            sqlite3.Connection.cursor(self._raw).execute("commit")
        except sqlite3.Error as error:
            self._roll_back_now()
            raise _translate(error) from error
        self._release()

    def rollback(self) -> None:
        self._roll_back()
        self._release()

    give_up = rollback

    def _roll_back(self) -> None:
        """From now on every statement of the view's is refused, until the operation ends: it would commit by
        itself."""
        try:
            free = self._loan.end(_PATIENCE, self._raw.interrupt, self._roll_back_now)
        except OperationOver:
            return
        if free:
            self._roll_back_now()

    def _roll_back_now(self) -> None:
        try:
            self._raw.set_authorizer(None)
            if self._raw.in_transaction:
                sqlite3.Connection.cursor(self._raw).execute("rollback")
            self._raw.set_authorizer(self._authorize)
        except sqlite3.Error:
            pass  # it is closed, and SQLite has rolled back

    def _release(self) -> None:
        """The connection is Django's again."""
        if self._watch in self._wrapper.execute_wrappers:
            self._wrapper.execute_wrappers.remove(self._watch)
        try:
            self._raw.set_authorizer(None)
        except sqlite3.Error:
            pass  # it is closed
