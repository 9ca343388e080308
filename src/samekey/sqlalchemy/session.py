"""Sessions that are in the operation's transaction while they are used inside one, and ordinary elsewhere.

A session looks for its operation when it first needs a connection, not when it is made: a framework makes it
(``Depends(get_session)``) before the handler is reached, and with it the claim.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import event, orm
from sqlalchemy.engine import Engine
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from sqlalchemy.sql.expression import SelectBase, TextClause
from sqlalchemy.util import greenlet_spawn

from ..engine.within import Binding, Transaction, current_transaction
from ..errors import CommitRefused, ConfigurationError, FailedTransaction, OperationOver
from .engines import EngineBinding
from .joined import OVER, Part, Shared

_SELECT: Final = re.compile(r"\s*select\b", re.IGNORECASE)

_WROTE_BEFORE: Final = (
    "This session has written, or may have, before the operation began (in a dependency or a middleware), and "
    "has not committed that: it would stand or fall without the operation. Nothing was sent. Commit it before "
    "the handler is called, write it in the handler, or do it with a session of its own."
)
_OTHER_ENGINE: Final = (
    "This session is bound to another engine than the one that Idempotency(engine) was given, so what it "
    "writes could not commit with the operation. Bind its sessionmaker to that engine. For a database that is "
    "no part of the operation, use SQLAlchemy's own Session class."
)
_NO_ENGINE: Final = (
    "This session is used in a {mode} transaction of an Idempotency that was given a URL, and cannot join it. "
    "Give it the engine in the place of the URL: Idempotency(engine)."
)
_OTHER_OPERATION: Final = (
    "This session is in one operation that goes on, and was used in another one. Use a session for each."
)
_FAILED: Final = (
    "A statement of a session failed, the session was not rolled back, and the handler went on, so nothing "
    "that it wrote could be kept. Let the error leave the handler, or call session.rollback() and say what "
    "then happens."
)


class Joins:
    """What makes a session class join: ``class Mine(Joins, Theirs)``, in front of any of SQLAlchemy's."""

    _samekey_part: Part | None = None
    _samekey_wrote = False
    """Outside of an operation: whether it may have written in the transaction that is open."""

    def get_bind(self, mapper: Any = None, *, clause: Any = None, bind: Any = None, **kwargs: Any) -> Any:
        """Where a statement goes: every way to a connection passes here."""
        part = self._samekey_join()
        found = super().get_bind(mapper, clause=clause, bind=bind, **kwargs)  # type: ignore[misc]
        reads = _reads(clause)
        if part is None:
            self._samekey_wrote = self._samekey_wrote or not reads
            return found
        if found is part.connection:
            return found
        binding = part.transaction.binding
        assert isinstance(binding, EngineBinding)
        if not isinstance(found, Engine) or found.pool is not binding.engine.pool:
            raise ConfigurationError(_OTHER_ENGINE)
        part.wrote = part.wrote or not reads
        return part.connection

    def flush(self, objects: Any = None) -> None:
        if not self._is_clean():  # type: ignore[attr-defined]
            self._samekey_join()  # before a flush is under way
        super().flush(objects)  # type: ignore[misc]

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        self._samekey_leave()

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self._samekey_leave()

    def invalidate(self) -> None:
        if self._samekey_part is not None and not self._samekey_part.over:
            raise CommitRefused(
                "The connection of this session is lent for one operation: it is not this session's to "
                "invalidate. Raise an error to undo everything."
            )
        super().invalidate()  # type: ignore[misc]
        self._samekey_leave()

    # Joining and leaving

    def _samekey_join(self) -> Part | None:
        """The part that it has in the operation that is running, if one is. Raises where it cannot have one:
        it never goes elsewhere instead."""
        part, transaction = self._samekey_part, current_transaction.get()
        if part is not None:
            if transaction is None or transaction is part.transaction:
                part.check()
                return part
            if not part.over:
                raise ConfigurationError(_OTHER_OPERATION)
            super().commit()  # type: ignore[misc] # of what is over: it sends nothing, or is refused
            self._samekey_leave()
        if transaction is None:
            return None
        if transaction.over:
            raise OperationOver(OVER)
        binding = _binding_of(transaction)
        self._samekey_end_before()
        if transaction.shared is None:
            transaction.shared = Shared(transaction, binding.engine)
        self._samekey_part = part = Part(transaction.shared)
        transaction.guests.append(_Guest(self))
        return part

    def _samekey_end_before(self) -> None:
        """A transaction that is open from before the operation. One that has only read ends here, and the
        objects that it has read stay."""
        begun: Any = self._transaction  # type: ignore[attr-defined]
        if begun is None or not any(one._connections for one in begun._iterate_self_and_parents()):
            return
        if self._samekey_wrote or any(
            one.nested and one._connections for one in begun._iterate_self_and_parents()
        ):
            raise CommitRefused(_WROTE_BEFORE)
        for one in begun._iterate_self_and_parents():
            # Not by its own end: whoever has begun it in a block ends it there.
            for connection, opened, _, autoclose in set(one._connections.values()):
                opened.close()
                if autoclose:
                    connection.close()
            one._connections.clear()

    def _samekey_leave(self) -> None:
        part, self._samekey_part = self._samekey_part, None
        if part is not None and not part.over:
            part.rollback()  # what a session has not committed when it is closed is not kept


class Session(Joins, orm.Session):
    """``sqlalchemy.orm.Session`` that joins the operation it is used in."""


class AsyncSession(sqlalchemy_asyncio.AsyncSession):
    """``sqlalchemy.ext.asyncio.AsyncSession`` that joins the operation it is used in."""

    sync_session_class = Session


@event.listens_for(orm.Session, "after_transaction_end")
def _ended(session: Any, ended: Any) -> None:
    if isinstance(session, Joins) and ended.parent is None:
        session._samekey_wrote = False


class _Guest:
    """A session, at the end of the function that has used it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def settle(self) -> None:
        if self._session._samekey_part is None:
            return  # it was closed: what it had not committed is gone, as ever
        if not self._session.is_active:
            raise FailedTransaction(_FAILED)
        self._session.flush()

    async def settle_async(self) -> None:
        await greenlet_spawn(self.settle)


def _binding_of(transaction: Transaction) -> EngineBinding:
    binding: Binding | None = transaction.binding
    if not isinstance(binding, EngineBinding):
        raise ConfigurationError(_NO_ENGINE.format(mode="samekey"))
    if transaction.sync is binding.is_async:
        said, meant = ("sync", "AsyncEngine") if transaction.sync else ("async", "Engine")
        raise ConfigurationError(
            f"This operation runs in {said} code, and Idempotency was given an {meant}: its sessions cannot be "
            f"used here. Declare the function with {'async def' if transaction.sync else 'def'}."
        )
    return binding


def _reads(clause: Any) -> bool:
    """Whether a statement only reads, for all that it shows."""
    if isinstance(clause, TextClause):
        return _SELECT.match(clause.text) is not None
    return isinstance(clause, SelectBase)
