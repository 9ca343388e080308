"""Sessions in one transaction of samekey's: each in a savepoint of its own, and none in the others' way.

A session's commit releases its savepoint, its rollback goes back to it; the transaction's end stays with
samekey. Savepoints lie in each other, sessions do not: where the rollback of one would undo what another has
written, which has been told that it stands, it is refused, and the transaction is not committed any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from sqlalchemy.engine import Connection, CursorResult, Engine, RootTransaction
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.sql.compiler import Compiled
from sqlalchemy.sql.elements import ReleaseSavepointClause, RollbackToSavepointClause, SavepointClause
from sqlalchemy.sql.expression import TextClause

from ..errors import CommitRefused, ConfigurationError, FailedTransaction, OperationOver
from .before import only_reads
from .savepoints import Savepoint, Shared

OVER: Final = (
    "This session was in an operation that is over, so nothing was sent: it would stand outside of it. Do "
    "the work before the handler returns, or do it with a session of its own. (After session.rollback() or "
    "session.close() it is an ordinary one again.)"
)
_ISOLATION: Final = (
    "The isolation level of an operation's transaction (and whether it is read-only or deferrable) is "
    "samekey's to say, and it has begun. Use a session "
    "of your own, outside of the operation, for what needs another."
)
_OPTIONS: Final = (
    "This session is bound to engines with different execution_options (schema_translate_map, say), or to "
    "one without those of the engine that Idempotency was given. In an operation it has one connection, with "
    "one set of them, and this was not sent. Use a session for each, or give Idempotency the engine without "
    "them."
)
_NOT_UNDONE: Final = (
    "A session was rolled back in the operation's transaction, and the database has not said that it was "
    "done, so nothing of the transaction is kept."
)
_TWO_PHASES: Final = (
    "samekey commits this transaction together with the answer; it cannot be prepared for a second phase. "
    "Make the sessionmaker without twophase."
)


class Part:
    """One session's part in a transaction: a DBAPI connection whose transactions are savepoints."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._savepoint: Savepoint | None = None
        self._writes: bool | None = None
        """Whether the statement that is being sent writes. None: there is none that SQLAlchemy knows of."""
        self.turn = shared.turn
        self.transaction = shared.transaction
        self.connection = OperationConnection(shared.engine, self)

    @property
    def over(self) -> bool:
        return self.transaction.over

    def check(self, *, reads: bool = False) -> None:
        """Until the function has returned it may do anything; then it may read, until the operation ends: an
        answer that is made of objects may have to load some more of them."""
        if self.over or (self.transaction.settled and not reads):
            raise OperationOver(OVER)
        if self.transaction.broken is not None:
            raise self.transaction.broken

    # As a DBAPI connection

    @contextmanager
    def sending(self, *, writes: bool) -> Iterator[None]:
        """Around one statement."""
        with self._shared.turn():
            before, self._writes = self._writes, writes
            try:
                with self._shared.around():
                    yield
            except BaseException:
                self._shared.wrote(self)  # or not; but on PostgreSQL nothing goes on until it is undone
                raise
            finally:
                self._writes = before
            if writes:
                self._shared.wrote(self)  # also into a savepoint that was set while it waited to be sent

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        self.check(reads=True)  # what a statement does was looked at before
        self._begin()
        if self._writes is not False:
            self._shared.wrote(self)
        if args and self._shared.is_pymysql:
            args = ()  # unbuffered, it would lose its rows with the next statement of another
        lent = self._shared.lent if self._writes is not None else self._shared.unheard
        return lent.cursor(*args, **kwargs)

    @property
    def bare(self) -> Any:
        """The driver's connection. Whoever takes it may write through it for this session."""
        self._begin()
        self._shared.wrote(self)
        lent = self._shared.lent
        return getattr(lent, "driver_connection", lent)

    def commit(self) -> None:
        """The savepoint is released: what was written stands with the operation, or falls with it."""
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None and not self.over:
            with self._shared.turn():
                self._release(savepoint)

    def rollback(self) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None and not self.over:
            with self._shared.turn():
                if self._shared.may_undo(savepoint):
                    self._undo(savepoint)
                else:
                    self._release(savepoint)

    def _undo(self, savepoint: Savepoint) -> None:
        self._shared.drop(savepoint)
        try:
            self._shared.command(f"rollback to savepoint {savepoint.name}")
            self._shared.command(f"release savepoint {savepoint.name}")
        except (OperationOver, FailedTransaction) as error:
            # There is no transaction any more, or nothing is sent in it and it will not commit. A rollback
            # often stands in the way out of an error, which says more.
            self.transaction.broken = self.transaction.broken or error
        except BaseException:
            self.not_undone()
            raise

    def not_undone(self) -> None:
        """A rollback to a savepoint was wanted, and the server has not said that it was done."""
        self.transaction.broken = self.transaction.broken or FailedTransaction(_NOT_UNDONE)

    def close(self) -> None:
        """The connection is samekey's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared.lent, name)

    # Its savepoints

    def _begin(self) -> None:
        with self._shared.turn():
            if self._savepoint is None and not self.transaction.settled:
                self._savepoint = made = self._shared.note(self, self._shared.name())
                try:
                    self._shared.command(f"savepoint {made.name}")
                except BaseException:
                    self._shared.forget(made)
                    self._savepoint = None
                    raise

    def _release(self, savepoint: Savepoint) -> None:
        for name in self._shared.release(savepoint):
            self._shared.command(f"release savepoint {name}")

    def lost(self, savepoint: Savepoint) -> None:
        """It was undone with one that lay around it."""
        if self._savepoint is savepoint:
            self._savepoint = None

    # Those of begin_nested

    def nest(self) -> str:
        self._begin()
        name = self._shared.name()
        self._shared.note(self, name)
        return name

    def may_release(self, name: str) -> list[str]:
        found = self._shared.named(self, name)
        return [] if found is None or self.over else self._shared.release(found)

    def undo(self, name: str) -> list[str] | None:
        """None: it can be rolled back, and counts as that. Else the names that can be released in the place
        of that."""
        found = self._shared.named(self, name)
        if self.over or found is None:
            return []
        if not self._shared.may_undo(found):
            return self._shared.release(found)
        self._shared.drop(found)
        return None


class OperationConnection(Connection):
    """The connection that a session has inside an operation."""

    def __init__(self, engine: Engine, part: Part) -> None:
        self._part = part
        self._adopted: Any = None
        # Never a new connection of the engine's pool, whatever happens to this one.
        super().__init__(engine, connection=_Proxied(part), _allow_revalidate=False)

    def _begin_impl(self, transaction: RootTransaction) -> None:
        """Nothing begins but a savepoint, with the first statement. Listeners that send BEGIN
        are not told."""

    def _commit_impl(self) -> None:
        self._part.commit()

    def _rollback_impl(self) -> None:
        self._part.rollback()

    def _savepoint_impl(self, name: str | None = None) -> str:
        self._part.check()
        with self._part.turn():
            return super()._savepoint_impl(self._part.nest())

    def _release_savepoint_impl(self, name: str) -> None:
        with self._part.turn():
            for released in self._part.may_release(name):
                super()._release_savepoint_impl(released)

    def _rollback_to_savepoint_impl(self, name: str) -> None:
        with self._part.turn():
            released = self._part.undo(name)
            if released is None:
                try:
                    super()._rollback_to_savepoint_impl(name)
                except BaseException:
                    self._part.not_undone()
                    raise
            for one in released or ():
                super()._release_savepoint_impl(one)

    def _execute_context(
        self, dialect: Any, constructor: Any, statement: Any, *args: Any, **kwargs: Any
    ) -> CursorResult[Any]:
        """Every statement passes here."""
        with self._part.sending(writes=not reads(statement)):
            return super()._execute_context(dialect, constructor, statement, *args, **kwargs)

    def adopt(self, engine: Engine) -> None:
        """Takes the options of the engine that its session is bound to: ``engine.execution_options(…)`` of
        the operation's, with the schemas of a tenant, say."""
        wanted, own = engine.get_execution_options(), self.engine.get_execution_options()
        if wanted == self._adopted:
            return
        if self._adopted is not None or own.keys() - wanted.keys():
            raise ConfigurationError(_OPTIONS)
        self.execution_options(**{name: wanted[name] for name in wanted if own.get(name) != wanted[name]})
        self._adopted = wanted

    def execution_options(self, **options: Any) -> Any:
        dialect: Any = self.dialect
        if options.keys() & (dialect.connection_characteristics.keys() - {"logging_token"}):
            raise ConfigurationError(_ISOLATION)
        return super().execution_options(**options)

    def begin_twophase(self, xid: Any = None) -> NoReturn:
        raise CommitRefused(_TWO_PHASES)

    def close(self) -> None:
        """Only its own transaction: whoever has it may go on."""
        if self._transaction is not None:
            self._transaction.close()

    def detach(self) -> NoReturn:
        raise CommitRefused("This connection is lent for one operation: it cannot be detached.")


_SAVEPOINTS: Final = (SavepointClause, RollbackToSavepointClause, ReleaseSavepointClause)


def reads(statement: Any) -> bool:
    """Whether a statement only reads, for all that it shows."""
    clause = statement.statement if isinstance(statement, Compiled) else statement
    if isinstance(clause, str):
        clause = TextClause(clause)
    return isinstance(clause, _SAVEPOINTS) or only_reads(clause)


class _Proxied(PoolProxiedConnection):
    """A part, as if it came from a pool."""

    def __init__(self, part: Part) -> None:
        self.dbapi_connection: Any = part
        self.info: dict[Any, Any] = {}
        self.record_info: dict[Any, Any] = {}
        self._valid = True

    @property
    def driver_connection(self) -> Any:  # type: ignore[override] # as SQLAlchemy's own have it
        return self.dbapi_connection.bare

    @property
    def is_valid(self) -> bool:
        return self._valid

    @property
    def is_detached(self) -> bool:
        return False

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return self.dbapi_connection.cursor(*args, **kwargs)

    def commit(self) -> None:
        self.dbapi_connection.commit()

    def rollback(self) -> None:
        self.dbapi_connection.rollback()

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:
        self._valid = False

    def close(self) -> None:
        """It goes back with the operation's end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dbapi_connection, name)
