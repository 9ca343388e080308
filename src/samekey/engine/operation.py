"""The operation that is running: what a handler may know and use of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..core.arrival import proof_in
from ..core.claim import Claim, downstream_key
from ..core.effects import Sent, SentStep
from ..core.outcome import Ending, Outcome
from ..core.provider import StoredText, checked_provider_id
from ..core.record import Lease
from ..core.states import Mode
from ..core.texts import checked_text
from ..drivers.errand import Errand
from ..errors import ConfigurationError, HandlerError, NoOperation, NotExecuted, OperationOver
from ..stores.sql.atomic import Opened
from ..stores.sql.limits import Admission
from .handler.boundary import Boundary, Pieces
from .handler.rules import Rules
from .phased.steps import Steps
from .within import Binding, Guest, SharedTransaction, current_transaction

if TYPE_CHECKING:
    from .modes.mode import Finished, Handled

logger = logging.getLogger("samekey")


MOMENTS: Final = itertools.count(1)
"""What comes later in this process has a higher number."""


class Operation:
    """A guarded operation while its handler runs. Get it with ``current_operation()``."""

    source = StoredText()
    """The provider that is called, by the name that ``resolve`` is given: its ids are looked for within
    it. Set it before each call's downstream key is asked for, if there are several."""

    def __init__(self, claim: Claim, operation_id: str) -> None:
        self._claim = claim
        self._boundary = Boundary()
        self._session: Any = None
        self._transaction: SharedTransaction | None = None
        self.id = operation_id
        """The unguessable id of the record: reference it from your tables."""
        self.places_taken = 0
        """How many jobs it has tried to write. Which of them stand, only its transaction knows."""
        self._enqueue: Callable[[str, Any, float | timedelta], Any] | None = None
        self._steps = Steps()
        self._noted: list[tuple[str, str]] = []
        """The provider's ids that were noted and not taken back, each after its step, in their order."""
        self._sent: dict[str, SentStep] = {}
        self._ended = False
        self.began = next(MOMENTS)
        self.known = False
        """Whether the handler has it in its hands, and may have told others its id."""
        self.tried_before = False
        """An earlier run may have called providers, and was repeated without proof that it had not."""
        self.age = 0.0
        """Seconds since it was begun first, where it may have been tried before."""
        self.life = 1
        """The how-manieth life of its key this is, as far as the store remembers."""

    @property
    def provider_id(self) -> str | None:
        """Set it to the provider's own id, text; it is stored with the outcome and can be looked up. It is
        that of the call whose downstream key was asked for last. None takes back the last one that was set
        for that call: an earlier one counts again."""
        return self._noted[-1][1] if self._noted else None

    @provider_id.setter
    def provider_id(self, value: str | None) -> None:
        self.note_provider_id(value, next(reversed(self._sent), ""))

    def note_provider_id(self, value: str | None, step: str) -> None:
        """The same for the call of this step, whichever was asked for last: several may be under way."""
        self._must_go_on()
        self._boundary.may_act()
        if value is not None:
            self._noted.append((step, checked_provider_id(value)))
        elif self._noted and self._noted[-1][0] == step:
            self._noted.pop()
        else:
            return  # the call of this step has none; another step's id is not its to take back
        known = self._sent.get(step, SentStep(step, None))
        last = next((one for place, one in reversed(self._noted) if place == step), None)
        self._sent[step] = replace(known, provider_id=last, source=known.source or self.source)

    @property
    def mode(self) -> str:
        return str(self._claim.mode)

    @property
    def connection(self) -> Any:
        """Atomic work only: what is written through it commits together with the answer.

        It works as the driver's own connection does (asyncpg or psycopg, PyMySQL, ``sqlite3``), refuses to
        end the transaction or to be closed, and is cut when the operation ends. For async code on SQLite and
        MySQL it is an object with ``await connection.execute(sql, parameters)``.
        """
        if self._session is None:
            raise ConfigurationError(
                f"{self._claim.mode.article} operation has no transaction of its own, because it may call "
                "other services. Use your own connection, or declare the handler atomic."
            )
        return self._session.connection

    @property
    def session(self) -> Any:
        """Atomic work of an ``Idempotency(engine)`` only: a session of the library that the engine is of
        (SQLAlchemy's ``Session`` or ``AsyncSession``), in this operation's transaction."""
        self._must_go_on()
        if self._transaction is None:
            raise ConfigurationError(
                f"{self._claim.mode.article} operation has no transaction of its own, because it may call "
                "other services. Use a session of your own, or declare the handler atomic."
            )
        session = self._transaction.guests_session
        if session is None:
            raise ConfigurationError(
                "current_operation().session needs Idempotency(engine), with an Engine or AsyncEngine of "
                "SQLAlchemy's; this one was given a URL. Use current_operation().connection, or give it the "
                "engine."
            )
        return session

    def downstream_key(self, step: str = "") -> str:
        """A key to send to a provider: the same for every attempt at this step of this operation.

        A leased handler that makes one call leaves the step out: if its process dies, the provider's word
        about that key settles the operation. One that makes several names them all, and finds out by a
        lookup.
        """
        checked_text("step", step, may_be_empty=True)
        self._must_go_on()
        if "#" in step and self._claim.mode is Mode.DEFERRED:
            raise ConfigurationError(
                f"The step {step!r} of a deferred operation needs a name without #: that is how its jobs are "
                "counted."
            )
        self._boundary.may_act()
        key = downstream_key(self._claim.scope, self._claim.key, step)
        known = self._sent.get(step)
        if known is None or known.downstream_key is None:
            if self._claim.mode in (Mode.LEASED, Mode.REPEATABLE):
                self._check_step(step)
            self._sent[step] = SentStep(step, key, None if known is None else known.provider_id, self.source)
        elif self.source is not None:
            self._sent[step] = replace(known, source=self.source)  # it is sent once more, perhaps elsewhere
        return key

    def call_goes_out(self, key: str) -> bool:
        """A call under this key: until its end is known, nothing that the handler says frees its own. False
        if there is one already whose end is not known."""
        new = key not in self._boundary.open_calls
        self._boundary.open_calls.add(key)
        return new

    def call_ended(self, key: str) -> None:
        """Its end is known."""
        self._boundary.open_calls.discard(key)

    def acts(self) -> None:
        """A call goes out now: from here on something may have happened, whatever block it stands in."""
        self._boundary.acts()

    def end(self) -> None:
        """It gives and takes no more. What it has started may go on, with a copy of its context, and serve
        others: under this operation's keys a provider would do the work of only one of them."""
        self._ended = True
        if self._transaction is not None:
            self._transaction.over = True

    def _must_go_on(self) -> None:
        if self._ended and self._boundary.pieces is not Pieces.OPEN:
            raise OperationOver(_ENDED)

    def _check_step(self, step: str) -> None:
        others = {one for one, sent in self._sent.items() if sent.downstream_key is not None}
        if others and (step == "" or "" in others):
            raise ConfigurationError(
                f"This operation has asked for the downstream key of {sorted(others)[0]!r} and now for that "
                "of "
                f"{step!r}. The plain key stands for the only call: a handler that makes several names each."
            )

    def sent(self) -> Sent:
        """What may have been sent so far, for the record."""
        steps = tuple(self._sent.values())
        if len(steps) == 1 and steps[0].source is None:
            steps = (replace(steps[0], source=self.source),)  # it was named after the key was asked for
        return Sent(steps)

    def enqueue(self, name: str, payload: Any = None, *, delay: float | timedelta = 0) -> Any:
        """Deferred work only: writes a job in the handler's transaction. Await it in async code.

        ``delay``: seconds, or a timedelta, before which it is not begun.
        The first job's result is the operation's final answer. ``payload`` must be plain JSON values.
        """
        self._must_go_on()
        if self._enqueue is None:
            raise ConfigurationError(
                f"{self._claim.mode.article} operation has no outbox. Declare the handler with "
                "@idempotency.deferred."
            )
        writing = self._enqueue(name, payload, delay)
        self._steps.note(f"op.enqueue({name!r})", writing)
        return writing

    @contextmanager
    def before_effect(self) -> Iterator[None]:
        """Says that nothing has happened yet: an error that leaves this block and the handler frees the key.

        with current_operation().before_effect():
            order = prices[request.sku]      # a bug here may be retried
        charge = provider.charge(order)      # after an error here the outcome is unknown
        """
        if not self._boundary.window_open:
            logger.warning(
                "before_effect() was entered after something may have happened: it proves nothing there. Put "
                "everything that comes before the effect into one block."
            )
        with self._boundary.nothing_yet():
            yield

    def __repr__(self) -> str:
        return f"<Operation {self.id} {self.mode}>"


@dataclass(slots=True, eq=False)
class Running:
    """The engine's own view of an operation that holds its key."""

    claim: Claim
    rules: Rules
    operation: Operation
    sync: bool = False
    """Begun by sync code: its session belongs to the sync driver."""
    lease: Lease | None = None
    session: Any = None
    opened: Opened | None = None
    admission: Admission | None = None
    """A place is kept for its record, among the keys that its tenant may have."""
    unfinished: HandlerError | None = None
    """The handler ended while a statement of its own was under way, or after one that was interrupted;
    everything is rolled back."""
    fell: bool | None = None
    """Whether its transaction was its own to the end, once it has been rolled back."""
    part_failed: bool = False
    """A guarded function that shares the transaction raised: what it had written is not undone by itself."""
    expires_at: int = field(default=0)
    attempts: int = 1
    reused: bool = False
    """The key had a former life that expired."""
    enqueuing: asyncio.Lock = field(default_factory=asyncio.Lock)
    enqueuing_in_threads: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=time.monotonic)
    process: int = field(default_factory=os.getpid)
    """Whose it is. A child that its handler forked has a copy, with the parent's connection in it."""
    tenant: str = ""
    """As the resolver gave it."""
    anonymous: bool = False
    """No key was sent, and none is required: nothing is remembered."""
    outcome: Outcome | None = None
    """The judgement, once the handler has ended; there is one."""
    finishing: Errand[Finished] | None = None

    @property
    def is_first(self) -> bool:
        """Whether its own claim made the record: nobody has run under it. ``attempts`` does not tell: it is
        counted anew when an operator has it tried again."""
        return self.operation.id == self.claim.id

    def lend(self, binding: Binding | None, *, sync: bool, visitors: Sequence[Guest] = ()) -> None:
        """What joins the transaction by itself finds it from here on."""
        self.sync = sync
        if self.session is not None:
            self.operation._transaction = SharedTransaction(
                self.session, binding, sync=sync, visitors=visitors
            )

    def settle(self, word: int | None = None) -> None:
        """The handler has returned, with this status if it chose one. What joined its transaction sends what
        it still holds back: an error of that is the handler's. Of a refusal nothing is kept, so nothing is
        sent."""
        transaction = self.operation._transaction
        if transaction is None:
            return
        if self._refuses(word):
            transaction.refuse()
        else:
            transaction.settle()

    def _refuses(self, word: int | None) -> bool:
        """Whether its transaction falls by the handler's own word, whatever becomes of its answer."""
        said = word if self.boundary.said is None else self.boundary.said
        least = 400 if self.rules.on_4xx == "rollback" else 500
        return said is not None and (said >= least or said in (307, 308)) and not self.boundary.wrapped

    def drop(self) -> None:
        """The handler has raised: what joined its transaction, and was not sent, falls too."""
        if self.operation._transaction is not None:
            self.operation._transaction.drop()

    async def settle_async(self, word: int | None = None) -> None:
        """``settle`` for async code."""
        transaction = self.operation._transaction
        if transaction is None:
            return
        if self._refuses(word):
            transaction.refuse()
        else:
            await transaction.settle_async()

    @property
    def has_transaction(self) -> bool:
        """One that is this process's to end: a child that its handler forked has a copy of the parent's."""
        return self.session is not None and self.process == os.getpid()

    @property
    def to_finish(self) -> bool:
        """Whether its answer must wait for something: there is a record to write, or a transaction to end."""
        return not self.anonymous or self.session is not None

    @property
    def boundary(self) -> Boundary:
        return self.operation._boundary

    def judge(self, handled: Handled) -> Outcome:
        """Judges the run, once. A second finish cannot be written."""
        if self.process != os.getpid():
            raise HandlerError(
                "This operation belongs to the parent process, which finishes it: nothing was recorded here. "
                "A child that a handler forks must leave by os._exit()."
            )
        if self.outcome is not None:
            raise RuntimeError("This operation has been finished already.")
        ending = handled.ending
        proof = None if ending.error is None else proof_in(ending.error)
        if proof is not None:
            foreign, wrapped = self._is_foreign(proof), proof is not ending.error
            ending = replace(ending, foreign=foreign, never_called=wrapped and not foreign)
        if self._acted(ending) and (ending.foreign or not isinstance(ending.error, NotExecuted)):
            ending = replace(ending, acted=True)
        self.outcome = self.rules.judge(ending)
        if not handled.streamed:
            self.operation.end()
        if ending.acted and self.outcome is Outcome.UNKNOWN and ending.own and ending.error is None:
            logger.error(
                "The answer of operation %s says that nothing happened, but its handler has noted the "
                "provider's id, or asked for a key to send: the outcome counts as unknown. Where the id "
                "means nothing, take it back (provider_id = None) or raise NotExecuted.",
                self.operation.id,
            )
        elif ending.error is not None and ending.shows_success and self.outcome is Outcome.UNKNOWN:
            logger.error(
                "Operation %s failed (%s), and the application has made a success of it (%s): what was done "
                "is not known. Answer the failure as one, or catch it inside the guarded function.",
                self.operation.id,
                type(ending.error).__name__,
                ending.status,
            )
        return self.outcome

    def _is_foreign(self, error: NotExecuted) -> bool:
        """Whether it is about something else than all that this operation does: of several steps, it may be
        about one."""
        several = self.claim.mode is Mode.LEASED and len(self.operation.sent().steps) > 1
        return several or not error.is_word_of(self.operation.id, self.operation.began, next(MOMENTS))

    def _acted(self, ending: Ending) -> bool:
        """Whether the provider's own id is there, of a call that nobody declared safe to repeat. Where only
        the edge is seen, a page is no handler's word: there a key that was asked for says as much."""
        if not self.operation._sent or self.claim.mode is not Mode.LEASED:
            return False
        asked = ending.at_edge and self.rules.on_error == "unknown"
        return any(
            one.provider_id is not None or (asked and one.downstream_key is not None)
            for one in self.operation.sent().steps
        )


_ENDED: Final = (
    "This operation has ended, so it gives no downstream keys and takes no provider's id and no jobs any "
    "more: they would be taken for its own. Ask before the handler returns, and hand the key on. What "
    "outlives the request that started it (a worker, a consumer of a queue) runs with a copy of its context: "
    "start it with context=contextvars.Context(), and give each piece of its work a key of its own, once(…)."
)

_current: ContextVar[Operation | None] = ContextVar("samekey_operation", default=None)


Entered = tuple[Token[Operation | None], Token[SharedTransaction | None]]


def enter(operation: Operation) -> Entered:
    """From here on it is the current one."""
    return _current.set(operation), current_transaction.set(operation._transaction)


def leave(entered: Entered) -> None:
    """From here on the current one is who was it before."""
    current_transaction.reset(entered[1])
    _current.reset(entered[0])


def current_operation() -> Operation:
    """The operation that this handler runs in. ``NoOperation`` where there is none."""
    operation = _current.get()
    if operation is None:
        raise NoOperation(
            "current_operation() was called where no guarded operation is running: outside a decorated "
            "handler."
        )
    operation.known = True
    return operation
