"""Sessions in one transaction of samekey's: each in a savepoint of its own, and none in the others' way.

A session's commit releases its savepoint, its rollback goes back to it; the transaction's end stays with
samekey. Savepoints lie in each other, sessions do not: where the rollback of one would undo what another has
written, which has been told that it stands, it is refused, and the transaction is not committed any more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.pool import PoolProxiedConnection

from ..engine.within import SharedTransaction
from ..errors import CommitRefused, ConfigurationError, FailedTransaction, OperationOver
from .lent import command, lent_connection

OVER: Final = (
    "This session was in an operation that is over, so nothing was sent: it would stand outside of it. Do "
    "the work before the handler returns, or do it with a session of its own. (After session.close() it is "
    "an ordinary one again.)"
)
UNDOES_ANOTHER: Final = (
    "This session was rolled back after another session of the same operation had written: its savepoint "
    "lies around that one's work, which would be undone with it. So everything is rolled back. Use one "
    "session in an operation, or end one before the next begins."
)
_ISOLATION: Final = (
    "The isolation level of an operation's transaction is samekey's to say, and it has begun. Use a session "
    "of your own, outside of the operation, for what needs another."
)
_TWO_PHASES: Final = (
    "samekey commits this transaction together with the answer; it cannot be prepared for a second phase. "
    "Make the sessionmaker without twophase."
)


@dataclass(slots=True, eq=False)
class _Savepoint:
    name: str
    owner: Part
    done: bool = False
    holds_others: bool = False
    """Something that another session has written, and been told that it stands, lies in it."""


class Shared:
    """What the sessions of one transaction share: its connection, and the order of their savepoints."""

    def __init__(self, transaction: SharedTransaction, engine: Engine) -> None:
        self.transaction = transaction
        self.engine = engine
        self.lock = threading.RLock()
        self.lent = lent_connection(transaction, engine)
        self._open: list[_Savepoint] = []
        self._names = 0

    def command(self, sql: str) -> None:
        command(self.transaction, self.lent, sql)

    def name(self) -> str:
        self._names += 1
        return f"samekey_session_{self._names}"

    def note(self, owner: Part, name: str) -> _Savepoint:
        """A savepoint is about to be set."""
        made = _Savepoint(name, owner)
        self._open.append(made)
        return made

    def forget(self, savepoint: _Savepoint) -> None:
        """It was not set after all."""
        if savepoint in self._open:
            self._open.remove(savepoint)

    def named(self, owner: Part, name: str) -> _Savepoint | None:
        found = [one for one in self._open if one.owner is owner and one.name == name]
        return found[-1] if found else None

    def release(self, savepoint: _Savepoint) -> list[str]:
        """It stands, as far as its session is concerned. Gives the names that can be released: those around
        which there is none that is still needed."""
        savepoint.done = True
        if savepoint not in self._open:
            return []
        if savepoint.owner.wrote:
            for around in self._open[: self._open.index(savepoint)]:
                around.holds_others = around.holds_others or around.owner is not savepoint.owner
        names = []
        while self._open and self._open[-1].done:
            names.append(self._open.pop().name)
        return names

    def undoes_another(self, savepoint: _Savepoint) -> bool:
        inside = self._open[self._open.index(savepoint) + 1 :] if savepoint in self._open else []
        return savepoint.holds_others or any(
            one.owner is not savepoint.owner and one.owner.wrote for one in inside
        )

    def drop(self, savepoint: _Savepoint) -> None:
        """It was rolled back, and those in it are gone."""
        if savepoint in self._open:
            place = self._open.index(savepoint)
            gone, self._open = self._open[place:], self._open[:place]
            for one in gone:
                one.owner.lost(one)

    def refuse(self) -> NoReturn:
        self.transaction.broken = FailedTransaction(UNDOES_ANOTHER)
        raise self.transaction.broken


class Part:
    """One session's part in a transaction: a DBAPI connection whose transactions are savepoints."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._savepoint: _Savepoint | None = None
        self.transaction = shared.transaction
        self.wrote = False
        """Whether it may have written since its savepoint was set."""
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

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        self.check(reads=True)  # what a statement does was looked at before
        self._begin()
        return self._shared.lent.cursor(*args, **kwargs)

    def commit(self) -> None:
        """The savepoint is released: what was written stands with the operation, or falls with it."""
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None and not self.over:
            with self._shared.lock:
                self._release(savepoint)
        self.wrote = False

    def rollback(self) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None and not self.over:
            with self._shared.lock:
                if self._shared.undoes_another(savepoint):
                    if self.wrote:
                        self._shared.refuse()
                    self._release(savepoint)  # it has only read, so there is nothing to undo
                else:
                    self._undo(savepoint)
        self.wrote = False

    def _undo(self, savepoint: _Savepoint) -> None:
        self._shared.drop(savepoint)
        try:
            self._shared.command(f"rollback to savepoint {savepoint.name}")
            self._shared.command(f"release savepoint {savepoint.name}")
        except (OperationOver, FailedTransaction) as error:
            # There is no transaction any more, or nothing is sent in it and it will not commit. A rollback
            # often stands in the way out of an error, which says more.
            self.transaction.broken = self.transaction.broken or error

    def close(self) -> None:
        """The connection is samekey's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared.lent, name)

    # Its savepoints

    def _begin(self) -> None:
        with self._shared.lock:
            if self._savepoint is None and not self.transaction.settled:
                self._savepoint = made = self._shared.note(self, self._shared.name())
                try:
                    self._shared.command(f"savepoint {made.name}")
                except BaseException:
                    self._shared.forget(made)
                    self._savepoint = None
                    raise

    def _release(self, savepoint: _Savepoint) -> None:
        for name in self._shared.release(savepoint):
            self._shared.command(f"release savepoint {name}")

    def lost(self, savepoint: _Savepoint) -> None:
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

    def may_undo(self, name: str) -> bool:
        found = self._shared.named(self, name)
        if self.over or found is None:
            return False
        if self._shared.undoes_another(found):
            self._shared.refuse()
        self._shared.drop(found)
        return True


class OperationConnection(Connection):
    """The connection that a session has inside an operation."""

    def __init__(self, engine: Engine, part: Part) -> None:
        self._part = part
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
        return super()._savepoint_impl(self._part.nest())

    def _release_savepoint_impl(self, name: str) -> None:
        for released in self._part.may_release(name):
            super()._release_savepoint_impl(released)

    def _rollback_to_savepoint_impl(self, name: str) -> None:
        if self._part.may_undo(name):
            super()._rollback_to_savepoint_impl(name)

    def execution_options(self, **options: Any) -> Any:
        if "isolation_level" in options:
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


class _Proxied(PoolProxiedConnection):
    """A part, as if it came from a pool."""

    def __init__(self, part: Part) -> None:
        self.dbapi_connection: Any = part
        self.info: dict[Any, Any] = {}
        self.record_info: dict[Any, Any] = {}
        self._valid = True

    @property
    def driver_connection(self) -> Any:  # type: ignore[override] # as SQLAlchemy's own have it
        lent = self.dbapi_connection._shared.lent
        return getattr(lent, "driver_connection", lent)

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
