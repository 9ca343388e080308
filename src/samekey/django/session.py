"""One operation's transaction on Django's own connection, and its one end.

The transaction itself is carried by samekey's session on the raw connection, as for any connection of the
user's own; ``Block`` tells Django about it. In a test that Django wraps into a transaction, everything runs
inside of that one, in savepoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error, transaction

from ..core.program import Row, Statement
from ..drivers.caller import is_handlers
from ..errors import FailedTransaction, StoreError, StoreUnavailable
from .block import MARKED, Block, run_hooks


class DjangoSession:
    """A transaction that begins now. ``begin`` opens samekey's session on the wrapper's raw connection."""

    def __init__(self, wrapper: Any, begin: Callable[[Any], Any]) -> None:
        Block.check(wrapper)
        try:
            wrapper.close_if_health_check_failed()
            wrapper.ensure_connection()
        except Error as error:
            raise StoreUnavailable(f"Django cannot connect to {wrapper.alias!r}: {error}") from error
        self._session = begin(wrapper)
        self._block = Block(wrapper)
        self._block.enter()

    @property
    def connection(self) -> Any:
        """Django's own, as ``django.db.connections`` gives it: the ORM of this thread writes through it."""
        return self._block.wrapper

    @property
    def is_open(self) -> bool:
        """Whether what is written on the connection is still in the transaction."""
        return self._block.is_open

    def wrote(self) -> bool | None:
        found: bool | None = self._session.wrote()
        return found

    def in_transaction(self) -> bool:
        return not self._block.is_marked and bool(self._session.in_transaction())

    def execute(self, statement: Statement) -> Sequence[Row]:
        self._block.refuse_if_marked()
        rows: Sequence[Row] = self._session.execute(statement)
        return rows

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        self._session.expire_after(seconds, then)

    def cut(self) -> None:
        cut = getattr(self._session, "cut", None)
        if cut is not None:
            cut()

    def give_up(self) -> None:
        getattr(self._session, "give_up", self._session.rollback)()
        self._block.leave(dead=self._is_dead())

    def commit(self) -> None:
        if self._block.is_marked:
            self.rollback()
            raise FailedTransaction(MARKED)
        try:
            self._session.commit()
        except BaseException:
            self._session.rollback()  # does nothing to what has ended
            self._block.leave(dead=self._is_dead())
            raise
        run_hooks(self._block.leave())

    def rollback(self) -> None:
        try:
            self._session.rollback()
        finally:
            self._block.leave(dead=self._is_dead())

    def _is_dead(self) -> bool:
        raw = self._block.wrapper.connection
        if raw is None:
            return True
        closed = getattr(raw, "closed", None)  # psycopg
        return bool(closed) if closed is not None else getattr(raw, "open", True) is False  # PyMySQL


class SavepointSession:
    """``DjangoSession`` inside the transaction of a test, and in a database in memory."""

    def __init__(self, wrapper: Any, execute: Callable[[Any, Statement], Sequence[Row]]) -> None:
        self._wrapper = wrapper
        self._execute = execute
        self._ended = False
        self._is_outermost = not wrapper.in_atomic_block
        self._atomic = transaction.atomic(using=wrapper.alias)
        try:
            self._atomic.__enter__()
        except Error as error:
            raise StoreUnavailable(f"The database {wrapper.alias!r} cannot be used: {error}") from error
        self._changes: int | None = getattr(wrapper.connection, "total_changes", None)  # SQLite's

    @property
    def connection(self) -> Any:
        return self._wrapper

    @property
    def is_open(self) -> bool:
        return not self._ended

    def wrote(self) -> bool | None:
        if self._changes is None:
            return None
        try:
            return bool(self._wrapper.connection.total_changes != self._changes)
        except (AttributeError, self._wrapper.Database.Error):
            return True  # the view has closed it, and the next statement says so

    def in_transaction(self) -> bool:
        return not self._ended and not self._wrapper.needs_rollback

    def execute(self, statement: Statement) -> Sequence[Row]:
        if self._wrapper.needs_rollback:
            raise FailedTransaction(MARKED)
        rows = self._execute(self._wrapper, statement)
        if statement.name == "atomic_lock" and not is_handlers():
            # What the test has written before is not the view's.
            rows = [(*row[:3], False, *row[4:]) for row in rows]
        return rows

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        """Nobody else waits for what a test holds."""

    def cut(self) -> None:
        """There is one thread, and it has ended its view."""

    def commit(self) -> None:
        if self._wrapper.needs_rollback:
            self.rollback()
            raise FailedTransaction(MARKED)
        self._ended = True
        hooks: list[Any] = []
        if self._is_outermost:
            hooks, self._wrapper.run_on_commit = list(self._wrapper.run_on_commit), []
        try:
            self._atomic.__exit__(None, None, None)
        except Error as error:
            raise StoreError(f"The commit was refused: {error}") from error
        run_hooks(hooks)

    def rollback(self) -> None:
        if not self._ended:
            self._ended = True
            self._atomic.__exit__(Exception, None, None)

    give_up = rollback
