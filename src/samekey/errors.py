"""The errors of samekey.

    SamekeyError
    ├── ConfigurationError          the set-up cannot work; the sentence says what to change
    │   ├── SchemaMismatch          the tables are missing, too old or too new
    │   ├── OpenTransaction         atomic work was given a connection inside a transaction
    │   └── WrongIsolation          atomic work was given a connection of another isolation level
    ├── StoreError
    │   ├── StoreUnavailable        503: down, slow, or the circuit breaker is open
    │   │   ├── StoreUnreachable    503: no connection, or the breaker is open; nothing was sent
    │   │   ├── ConnectionLost      503: the connection died under the statement
    │   │   ├── ReadOnlyStore       503: the server can only be read: a standby, by mistake or after a switch
    │   │   └── StoreBusy           503: reachable, but somebody else has the lock for now
    │   │       └── Sealed          503: it is stored, and whoever decrypts it could not be asked
    │   ├── TransactionConflict     the database aborted the transaction; it may be run again
    │   └── CommitUncertain         the acknowledgement of COMMIT was lost
    ├── Refused                     what once() raises in place of an HTTP answer
    │   ├── KeyReused               422: the same key with another payload
    │   ├── StillRunning            409: the first call has not ended
    │   ├── ResultUnavailable       409: it was done, its result is gone
    │   ├── CallDeclined            402: it was found out that the provider had said no; carries what it said
    │   ├── LimitExceeded           429: too many new keys of one tenant
    │   ├── AmbiguousProviderId     two operations of one tenant have the same id of the provider's
    │   ├── NotExtended             409: a retention that cannot be extended
    │   └── SignatureRefused        401: an event that does not come from the provider
    ├── Contradicted                a provider says that it happened; who says otherwise must name its events
    ├── CorruptRecord               500: a record that this version cannot read
    └── HandlerError
        ├── NotExecuted             raise it: nothing happened, a retry may run
        ├── OutcomeUnknown          raise it: nobody can tell, a retry must not run
        ├── CommitRefused           atomic work tried to end its transaction and was stopped
        ├── UnfinishedWork          atomic work returned while a statement was under way; rolled back
        ├── FailedTransaction       atomic work went on after a statement that failed or was interrupted
        ├── EscapedTransaction      atomic work ended its own transaction
        ├── OperationOver           what an operation lent was used after its end
        │   └── TransactionGone     the database itself had rolled back; nothing was sent after that
        ├── LeaseLost               somebody else has taken the operation; stop here
        ├── NotSerialisable         an input, a payload or a result that cannot be stored
        ├── DefinitionChanged       phases that do not fit what was recorded, or an unknown version
        ├── NothingWritten          atomic work wrote elsewhere (strict mode)
        ├── NothingEnqueued         deferred work enqueued no job
        ├── StepNotAwaited          a phase or an enqueue that async code began and forgot
        ├── StreamedAnswer          atomic work cannot stream its answer
        └── NoOperation             current_operation() outside a guarded handler

Each class carries the HTTP status that it leads to and, where it is one of the closed list of
machine-readable codes, that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class SamekeyError(Exception):
    """Everything that samekey raises on purpose."""

    status: ClassVar[int] = 500
    code: ClassVar[str | None] = None


class ConfigurationError(SamekeyError):
    """The set-up cannot work as it stands. Raised at start-up wherever that is possible."""


class SchemaMismatch(ConfigurationError):
    """The tables are missing, too old or too new for this version. Run ``samekey migrate URL``."""

    status = 503
    code = "store_unavailable"


class OpenTransaction(ConfigurationError):
    """Atomic work was given a connection that is already inside a transaction."""

    def __init__(self) -> None:
        super().__init__(
            "Atomic work needs a fresh transaction, but this connection is already inside one: its "
            "end is not ours to decide, and an outer rollback would erase the record. Nothing was "
            "run. Give atomic handlers a connection that is not in a transaction."
        )


class WrongIsolation(ConfigurationError):
    """Atomic work was given a connection whose isolation level is not READ COMMITTED."""

    def __init__(self, level: str) -> None:
        super().__init__(
            f"Atomic work needs READ COMMITTED, but this connection uses {level.upper()}: under it a "
            "duplicate cannot see the record that the first request committed. Nothing was run. "
            "Give atomic handlers a connection with the default isolation level."
        )


class StoreError(SamekeyError):
    """The store did not do what was asked."""


class StoreUnavailable(StoreError):
    """The store is down or too slow. Nothing was run; the client may retry with the same key."""

    status = 503
    code = "store_unavailable"


class StoreUnreachable(StoreUnavailable):
    """No connection could be had, or the circuit breaker is open. Nothing was sent."""


class StoreBusy(StoreUnavailable):
    """The store is there, but a lock or a connection could not be had in time."""


class Sealed(StoreBusy):
    """What is stored cannot be decrypted just now: whoever decrypts it, a key service, could not be asked."""

    def __init__(self) -> None:
        super().__init__(
            "What is stored cannot be decrypted just now: whoever decrypts it (a key service, say) could not "
            "be asked."
        )


class ConnectionLost(StoreUnavailable):
    """The connection died; whether the statement was carried out is not known."""


class ReadOnlyStore(StoreUnavailable):
    """The server refuses to write: it is a standby, or was told to. Nothing was done."""


class TransactionConflict(StoreError):
    """The database gave up this transaction in favour of another (40001, 40P01)."""

    status = 503
    code = "store_unavailable"


class CommitUncertain(StoreError):
    """COMMIT was sent and its acknowledgement never came. Neither outcome may be assumed."""

    status = 503
    code = "store_unavailable"


class Refused(SamekeyError):
    """A guarded call was not run, for a reason that HTTP would answer with a 4xx."""


class KeyReused(Refused):
    """The key was first used with another payload."""

    status = 422
    code = "reused"


class StillRunning(Refused):
    """The first call with this key has not ended."""

    status = 409
    code = "in_progress"


class ResultUnavailable(Refused):
    """The operation was done, but its result cannot be given again."""

    status = 409
    code = "result_unavailable"


class CallDeclined(Refused):
    """The provider had the call and said no, as was found out later. ``value`` is what was found."""

    status = 402

    def __init__(self, value: Any) -> None:
        super().__init__(
            "The provider said no to the first call, and that is remembered. Nothing was run; value holds "
            "what it said."
        )
        self.value = value


class LimitExceeded(Refused):
    """A tenant has used too many new keys, or has tried one too often."""

    status = 429
    code = "limited"

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class NotExtended(Refused):
    """The retention of this operation cannot be extended, and the sentence says why. Nothing was changed."""

    status = 409


class AmbiguousProviderId(Refused):
    """Two operations of one tenant have the same id of the provider's. Name the source, or the operation."""


class SignatureRefused(Refused):
    """An event whose signature is wrong. Nothing was looked up."""

    status = 401


class Contradicted(SamekeyError):
    """A provider says that it happened, and that word waits: nobody may say otherwise by the way."""

    status = 409

    def __init__(self, events: Sequence[str], described: str = "") -> None:
        """``events``: as SOURCE:EVENT."""
        named = described or ", ".join(repr(event) for event in events)
        super().__init__(
            f"A provider says that it happened, in an event that waits for this operation: {named}. Nothing "
            "was changed. Find out which is true; to act as if it had not happened all the same, name each "
            "of these events: --despite SOURCE:EVENT."
        )
        self.events = tuple(events)


class CorruptRecord(SamekeyError):
    """A stored record that this version cannot read. The handler is not run."""

    code = "result_unavailable"


class HandlerError(SamekeyError):
    """Raised by a handler, or because of what a handler did."""


_NEVER = 1 << 62
"""Later than anything."""


class NotExecuted(HandlerError):
    """Raise this when nothing happened: the operation becomes ``failed_retryable``.

    It is the word of the operation whose function it leaves first. Where that is a call inside another
    operation (``once()`` in a handler, a guarded function that it calls), it says nothing about what the
    outer one did before.
    """

    status = 503
    sdks: frozenset[str] = frozenset()
    """Packages whose own errors, made of this one, say the same: the provider's, where an outgoing transport
    said it of a call."""
    _said_by: tuple[str, int] = ("", 0)

    def is_word_of(self, operation: str, began: int, now: int) -> bool:
        """Whether this operation is the first to hear it, since it began: one object may be raised again and
        again."""
        if self._said_by[1] <= began:
            self._said_by = (operation, now)
        return self._said_by[0] == operation

    def __setstate__(self, state: dict[str, Any] | None, /) -> None:
        super().__setstate__(state)
        if self._said_by[0]:  # another process has heard it: what it counts says nothing here
            self._said_by = (self._said_by[0], _NEVER)


class OutcomeUnknown(HandlerError):
    """Raise this when nobody can tell what happened: the operation becomes ``unknown``."""

    status = 409
    code = "outcome_unknown"


class CommitRefused(HandlerError):
    """samekey commits this transaction together with the answer. Remove the commit or rollback."""


class UnfinishedWork(HandlerError):
    """The handler returned while a statement of its own was under way. Everything was rolled back."""

    def __init__(self) -> None:
        super().__init__(
            "The handler returned while a statement was still under way on the connection that was lent to "
            "it, so everything was rolled back. Await every task and join every thread that uses it, and "
            "close every stream, copy or pipeline, before the handler returns."
        )


class FailedTransaction(HandlerError):
    """A statement of the handler's failed, or was interrupted, and the handler went on; or what it wrote was
    refused at COMMIT. Everything was rolled back."""

    def __init__(self, sentence: str | None = None) -> None:
        super().__init__(
            sentence
            or "A statement of the handler's failed, and the handler went on. PostgreSQL refuses everything "
            "after that up to the end of the transaction, so everything was rolled back. Let the error leave "
            "the handler, or put a statement that may fail into a savepoint: with connection.transaction()."
        )


class EscapedTransaction(HandlerError):
    """The atomic handler ended its own transaction, so its writes may stand without their record."""

    status = 409
    code = "outcome_unknown"


class OperationOver(HandlerError):
    """What an operation had lent was used after its end, when that had been cut. Nothing was sent."""

    def __init__(self, sentence: str | None = None) -> None:
        super().__init__(
            sentence
            or "This operation is over and its connection was cut, so nothing was sent. Await every task and "
            "join every thread that uses the connection before the handler returns; what comes after it "
            "needs a connection of your own."
        )


class TransactionGone(OperationOver):
    """The database itself rolled back the operation's transaction. Nothing was sent after that."""

    status = 500

    def __init__(self) -> None:
        HandlerError.__init__(
            self,
            "The database itself has rolled back the transaction of this operation, so nothing more is sent "
            "on its connection, where it would commit by itself. Let the error of the statement that did it "
            "(a deadlock, ON CONFLICT ROLLBACK) through: nothing stands, and a retry with the same key runs "
            "again.",
        )


class LeaseLost(HandlerError):
    """Somebody else has taken the operation. Nothing more may be done under this attempt."""

    status = 409
    code = "in_progress"


class NotSerialisable(HandlerError):
    """An input, a payload or a result that cannot be stored as JSON."""


class DefinitionChanged(HandlerError):
    """The code does not fit what the operation has recorded. The operation was left as it was."""


class NothingWritten(HandlerError):
    """The atomic handler wrote nothing on ``current_operation().connection``: its work escaped."""


class NothingEnqueued(HandlerError):
    """The deferred handler enqueued no job, so nobody would ever finish the operation."""

    def __init__(self) -> None:
        super().__init__(
            "The deferred handler left no job in its transaction (op.enqueue(…)), so no worker would ever "
            "finish the operation. Everything was rolled back. Enqueue the job that does the work, outside "
            "of savepoints that are rolled back, or declare the handler atomic."
        )


class StepNotAwaited(HandlerError):
    """Async code called a phase or ``op.enqueue`` and never awaited it, or not to its end."""


class StreamedAnswer(HandlerError):
    """An atomic handler streamed its answer; it was rolled back. Return the whole body at once."""


class NoOperation(HandlerError):
    """``current_operation()`` was called where no guarded operation is running."""
