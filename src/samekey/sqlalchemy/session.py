"""Sessions that are in the operation's transaction while they are used inside one, and ordinary elsewhere.

A session looks for its operation when it first needs a connection, not when it is made: a framework makes it
(``Depends(get_session)``) before the handler is reached, and with it the claim.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

from sqlalchemy import orm
from sqlalchemy.engine import Engine
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from sqlalchemy.util import greenlet_spawn

from ..engine.exchange import Exchange, current_exchange
from ..engine.within import Binding, SharedTransaction, current_transaction, here, is_ours
from ..errors import CommitRefused, ConfigurationError, FailedTransaction, OperationOver
from .before import only_reads
from .engines import EngineBinding
from .fallen import Fallen
from .joined import OVER, Part, reads
from .savepoints import Shared

Entity = TypeVar("Entity")

_WROTE_BEFORE: Final = (
    "This session has written or locked something, or may have (FOR UPDATE, a function that samekey does not "
    "know), before the operation began (in a dependency or a middleware), and has not committed that: it "
    "would stand or fall without the operation, and a lock would be let go. Nothing was sent. Commit it "
    "before the handler is called, do it in the handler, or do it with a session of its own."
)
_OTHER_ENGINE: Final = (
    "This session is bound to another engine than the one that Idempotency(engine) was given, so what it "
    "writes there could not commit with the operation: nothing was sent. From another database it may read, "
    "by what is known to do no more. Bind its sessionmaker to that engine; what is no part of the operation "
    "is written by a session of SQLAlchemy's own class."
)
_CONNECTION: Final = (
    "This session is bound to a Connection, whose transaction is its own, so what it writes could not commit "
    "with the operation: nothing was sent. Bind it to the engine that Idempotency(engine) was given. In a "
    "test suite whose sessions are bound to a connection that is rolled back after each test, empty the "
    "tables after each test instead (docs/sqlalchemy.md)."
)
_NO_ENGINE: Final = (
    "This session is used in a transaction of an Idempotency that was given a URL, and cannot join it. "
    "Give it the engine in the place of the URL: Idempotency(engine)."
)
_OTHER_OPERATION: Final = (
    "This session is in one operation that goes on, and was used in another one. Use a session for each."
)
_GOES_ON: Final = (
    "This session was closed in an operation that has not ended, and is used outside of its handler: in a "
    "thread without the handler's context, or in what a framework does after a handler. Nothing was sent: it "
    "would stand outside of the operation. Use it in the handler, or use another session."
)
_FAILED: Final = (
    "A statement of a session failed, the session was not rolled back, and the handler went on, so nothing "
    "that it wrote could be kept. Let the error leave the handler, or call session.rollback() and say what "
    "then happens."
)


_FLUSHES: Final = 100  # as many as SQLAlchemy's own commit makes


class Joins:
    """What makes a session class join: ``class Mine(Joins, Theirs)``, in front of any of SQLAlchemy's."""

    _samekey_part: Part | None = None
    _samekey_left: SharedTransaction | None = None
    """The operation's transaction that it was closed in."""
    _samekey_past: SharedTransaction | None = None
    """That of an operation that was over when this session was made, or closed: it has nothing to do with it.
    What an operation has started may outlive it, with a copy of its context."""
    _samekey_request: Any = None
    """The request in which it has joined."""
    _samekey_ended = False
    """It was committed or rolled back after the handler has returned."""
    _samekey_wrote: Any = None
    """Outside of an operation: the transaction of its own in which it may have written."""
    _samekey_told: Any = None
    """The transaction of its own whose listeners have heard that it commits with the operation."""
    _samekey_fallen: Fallen | None = None
    """Since its operation has fallen, until it is used again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._samekey_begin_anew()
        self._samekey_visit()

    def get_bind(self, mapper: Any = None, *, clause: Any = None, bind: Any = None, **kwargs: Any) -> Any:
        """Where a statement goes: every way to a connection passes here."""
        is_read = reads(clause)
        part = self._samekey_join(reads=is_read)
        self._samekey_wake()
        found = super().get_bind(mapper, clause=clause, bind=bind, **kwargs)  # type: ignore[misc]
        if part is None:
            self._samekey_visit()
            if self._samekey_keeps(clause) and (self.autobegin or self._transaction is not None):  # type: ignore[attr-defined]
                self._autobegin_t()  # type: ignore[attr-defined]
                self._samekey_wrote = self.get_transaction()  # type: ignore[attr-defined]
            return found
        if found is part.connection:
            return found
        binding = part.transaction.binding
        assert isinstance(binding, EngineBinding)
        if not isinstance(found, Engine):
            raise ConfigurationError(_CONNECTION)
        if found.pool is not binding.engine.pool:
            if clause is None or not is_read:
                raise ConfigurationError(_OTHER_ENGINE)
            return found  # of another database: whatever becomes of the operation, it was only read
        part.connection.adopt(found)
        return part.connection

    def connection(self, *args: Any, **kwargs: Any) -> Any:
        found = super().connection(*args, **kwargs)  # type: ignore[misc]
        if self._samekey_part is None:  # whoever has it may do anything with it
            self._samekey_wrote = self.get_transaction()  # type: ignore[attr-defined]
        return found

    def add(self, instance: object, *args: Any, **kwargs: Any) -> None:
        self._samekey_note()
        super().add(instance, *args, **kwargs)  # type: ignore[misc]

    def delete(self, instance: object) -> None:
        self._samekey_note()
        super().delete(instance)  # type: ignore[misc]

    def merge(self, instance: Entity, **kwargs: Any) -> Entity:
        self._samekey_note()
        merged: Entity = super().merge(instance, **kwargs)  # type: ignore[misc]
        return merged

    def get(self, entity: type[Entity] | orm.Mapper[Entity], ident: Any, **kwargs: Any) -> Entity | None:
        self._samekey_wake()  # it may have it already
        found: Entity | None = super().get(entity, ident, **kwargs)  # type: ignore[misc]
        return found

    def flush(self, objects: Any = None) -> None:
        if not self._is_clean():  # type: ignore[attr-defined]
            self._samekey_join()  # before a flush is under way
            self._samekey_wake()
        super().flush(objects)  # type: ignore[misc]

    def commit(self) -> None:
        part = self._samekey_part
        if part is not None and part.transaction.settled and self._is_clean():  # type: ignore[attr-defined]
            self._samekey_commit_late()
        else:
            super().commit()  # type: ignore[misc]
        self._samekey_end()

    def rollback(self) -> None:
        super().rollback()  # type: ignore[misc]
        if self._samekey_fallen is not None:
            self._samekey_fallen = None
            self.expire_all()  # type: ignore[attr-defined] # as a rollback does
        self._samekey_end()

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

    def _samekey_visit(self) -> None:
        """A session of this request: what is changed through it in the handler, and no more than changed, is
        sent when the handler returns."""
        request = None if self._samekey_past is not None else current_exchange.get()
        if not isinstance(request, Exchange) or request.ended:
            return
        task = here()
        for one in request.visitors:
            if isinstance(one, _Guest) and one.session is self:
                one.task = task
                return
        request.visitors.append(_Guest(self, task))

    def _samekey_begin_anew(self) -> None:
        transaction = current_transaction.get()
        self._samekey_past = transaction if transaction is not None and transaction.over else None

    def _samekey_note(self) -> None:
        """It is given something in an operation; nothing is sent yet, so nobody has to wait."""
        self._samekey_renew()
        transaction = current_transaction.get()
        if (transaction is not None and not transaction.over) and not any(
            isinstance(one, _Guest) and one.session is self for one in transaction.guests
        ):
            transaction.guests.append(_Guest(self))

    def _samekey_join(self, *, reads: bool = False) -> Part | None:
        """The part that it has in the operation that is running, if one is. Raises where it cannot have one:
        it never goes elsewhere instead."""
        self._samekey_renew()
        part, transaction = self._samekey_part, current_transaction.get()
        if transaction is self._samekey_past:
            transaction = None
        if part is not None:
            if transaction is None or transaction is part.transaction:
                part.check(reads=reads)
                return part
            raise OperationOver(OVER) if part.over else ConfigurationError(_OTHER_OPERATION)
        if transaction is None:
            if self._samekey_left is not None and not self._samekey_left.over:
                raise OperationOver(_GOES_ON)
            return None
        if transaction.over:
            raise OperationOver(OVER)
        binding = _binding_of(transaction)
        self._samekey_end_before()
        with transaction.joining:
            if transaction.shared is None:
                transaction.shared = Shared(transaction, binding.engine)
        self._samekey_part = part = Part(transaction.shared)
        self._samekey_request, self._samekey_ended = current_exchange.get(), False
        self._samekey_note()
        return part

    def _samekey_keeps(self, clause: Any) -> bool:
        """Whether a statement outside of an operation may leave more than what was read. (Nothing is sent
        where an application only asks for the bind.)"""
        if clause is None:
            return bool(self._flushing)  # type: ignore[attr-defined]
        return not only_reads(clause)

    def _samekey_end(self) -> None:
        """It was committed or rolled back. If its operation is over, it is an ordinary session from here on;
        if only the handler has returned, from the operation's end on: until then it may be read from."""
        part = self._samekey_part
        if part is None or (part.over and current_transaction.get() is part.transaction):
            return  # what the handler has left running ends nothing but by close()
        if part.over:
            self._samekey_leave()
        elif part.transaction.settled:
            self._samekey_ended = True

    def _samekey_commit_late(self) -> None:
        """After the handler: what there was commits with the operation, and ``before_commit`` has been told.
        Whatever a listener would add now could not be sent any more."""
        begun: Any = self._transaction  # type: ignore[attr-defined]
        if begun is not None:
            begun.close()
            self.dispatch.after_commit(self)  # type: ignore[attr-defined]
        if self.expire_on_commit:  # type: ignore[attr-defined]
            self.expire_all()  # type: ignore[attr-defined]

    def _samekey_renew(self) -> None:
        """A session that outlives its operation leaves it where it is used for something else: in another
        request or operation, or after its end by the application. What was given to it in the operation and
        was never sent is not taken along."""
        part, transaction, request = self._samekey_part, current_transaction.get(), current_exchange.get()
        if part is None or not part.over or not self._is_clean():  # type: ignore[attr-defined]
            return
        other_request = request is not None and request is not self._samekey_request
        if transaction is part.transaction:
            return  # what the handler has left running
        other_operation = transaction is not None and not transaction.over
        if not (self._samekey_ended or other_request or other_operation):
            return
        if part.transaction.settled:
            super().commit()  # type: ignore[misc] # of what is over: it sends nothing
        else:
            super().rollback()  # type: ignore[misc]
        if other_request:
            self.expire_all()  # type: ignore[attr-defined]
        self._samekey_leave()

    def _samekey_end_before(self) -> None:
        """A transaction that is open from before the operation. One that has only read ends here, and the
        objects that it has read stay."""
        self._samekey_must_be_free()
        for one in self._samekey_open():
            # Not by its own end: whoever has begun it in a block ends it there.
            for connection, opened, _, autoclose in set(one._connections.values()):
                opened.close()
                if autoclose:
                    connection.close()
            one._connections.clear()

    def _samekey_open(self) -> list[Any]:
        """Its transactions that have a connection, the innermost first."""
        begun: Any = self._transaction  # type: ignore[attr-defined]
        every = [] if begun is None else list(begun._iterate_self_and_parents())
        return [one for one in every if one._connections]

    def _samekey_must_be_free(self) -> None:
        begun = self._samekey_open()
        if begun and (begun[-1] is self._samekey_wrote or any(one.nested for one in begun)):
            raise CommitRefused(_WROTE_BEFORE)

    def _samekey_drop(self, transaction: SharedTransaction) -> None:
        """The operation falls. What its function gave to this session, and was not sent, is not the session's
        any more, as after a rollback: whoever commits it would write it outside of the operation."""
        part = self._samekey_part
        if part is None and self._is_clean():  # type: ignore[attr-defined]
            return
        fallen = Fallen(self, transaction)
        if part is not None and part.over:  # whoever answers the error may go on with this session
            fallen.roll_back(self, super().rollback)  # type: ignore[misc]
            self._samekey_leave()
        elif part is None or transaction.settled:
            fallen.forget(self)
        else:
            return
        self._samekey_fallen = fallen

    def _samekey_wake(self) -> None:
        """It is used again after its operation has fallen."""
        part, fallen = self._samekey_part, self._samekey_fallen
        if fallen is not None and fallen.is_over(None if part is None else part.transaction):
            fallen.expire(self)
            self._samekey_fallen = None

    def _samekey_leave(self) -> None:
        part, self._samekey_part = self._samekey_part, None
        self._samekey_begin_anew()
        self._samekey_left = None if part is None else part.transaction
        if part is not None and not part.over:
            part.rollback()  # what a session has not committed when it is closed is not kept


class Session(Joins, orm.Session):
    """``sqlalchemy.orm.Session`` that joins the operation it is used in."""


class AsyncSession(sqlalchemy_asyncio.AsyncSession):
    """``sqlalchemy.ext.asyncio.AsyncSession`` that joins the operation it is used in."""

    sync_session_class = Session


class _Guest:
    """A session, at the end of the function that may have used it."""

    def __init__(self, session: Any, task: asyncio.Task[Any] | None = None) -> None:
        self.session = session
        self.task = task
        """Where a session of the request was made or used last, if not in the function itself. What another
        task works with, beside the function, is none of its business."""

    def must_be_free(self) -> None:
        if self.session._samekey_part is None and is_ours(self.task):
            self.session._samekey_must_be_free()

    def drop(self, transaction: SharedTransaction) -> None:
        if is_ours(self.task):
            self.session._samekey_drop(transaction)

    def settle(self) -> None:
        if not is_ours(self.task):
            return
        if self.session._samekey_part is not None and not self.session.is_active:
            raise FailedTransaction(_FAILED)
        begun, joined = self.session.get_transaction(), self.session._samekey_part is not None
        if begun is not self.session._samekey_told and (joined or not self.session._is_clean()):
            self.session._samekey_told = begun
            self.session.dispatch.before_commit(self.session)  # nobody can commit it later
        for _ in range(_FLUSHES):  # listeners may add something at each, as in a commit
            if self.session._is_clean():
                break
            self.session.flush()  # of one that was closed there is nothing to send
        if self.session._samekey_part is not None:
            self.session._samekey_part.commit()  # so that nothing undoes it that only closes the session

    async def settle_async(self) -> None:
        await greenlet_spawn(self.settle)


def _binding_of(transaction: SharedTransaction) -> EngineBinding:
    binding: Binding | None = transaction.binding
    if not isinstance(binding, EngineBinding):
        raise ConfigurationError(_NO_ENGINE)
    if transaction.sync is binding.is_async:
        said, meant = ("sync", "AsyncEngine") if transaction.sync else ("async", "Engine")
        raise ConfigurationError(
            f"This operation runs in {said} code, and Idempotency was given an {meant}: its sessions cannot "
            f"be used here. Declare the function with {'async def' if transaction.sync else 'def'}."
        )
    return binding
