"""Atomic work: the handler's writes and its answer commit in one transaction.

What both kinds share: when to commit, what is rolled back, what is remembered of a rollback. They differ in
how a duplicate is kept away while the first one runs:

- ``LockedAtomic`` (PostgreSQL): a transaction-scoped lock. The record appears, completed, with the commit;
  there is no lease and nothing to clean up after a crash.
- ``ClaimedAtomic`` (SQLite): a short committed claim, because SQLite has one write lock for everybody and a
  slow handler must not hold it. The write transaction begins at the first use of the connection.
"""

from __future__ import annotations

import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...core.claim import Claim
from ...core.decide import Execute, Outstanding, Verdict
from ...core.outcome import Outcome
from ...core.problem import Refusal, refuse, uncertain_answer, verdict_answer
from ...core.program import Program
from ...core.record import Answer, Lease
from ...drivers.caller import NotSent
from ...drivers.fork import anew_after_fork
from ...drivers.protocol import LATE
from ...errors import (
    CommitUncertain,
    EscapedTransaction,
    FailedTransaction,
    HandlerError,
    NothingEnqueued,
    NothingWritten,
    OperationOver,
    SamekeyError,
    StoreError,
    StreamedAnswer,
    TransactionConflict,
    TransactionGone,
    UnfinishedWork,
)
from ...stores.keys import Absent, Seen, must_be_tried
from ...stores.sql.atomic import AtomicKeys, Escaped, Opened, Taken, Written
from ...stores.sql.keys import SqlKeys
from ...stores.sql.limits import Admission
from ..flow import Commit, Flow, Open, Pause, Rollback, ask, ask_in
from ..handler.rules import Rules
from ..keeper import Keeper
from ..operation import Operation, Running
from .leased import max_run_of
from .mode import (
    Finished,
    Handled,
    claimed,
    given_back,
    given_back_later,
    keep,
    unavailable,
    undone,
    with_expiry,
)

logger = logging.getLogger("samekey")

SETTLE_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6)
"""Seconds between questions about a commit whose acknowledgement was lost: some five in all. A commit was
seen to land two and a half seconds after its connection was cut."""


def settling() -> Iterator[float]:
    """These pauses, one after each question, for as long as all of them take: a store that says nothing takes
    its time for each question."""
    until = time.monotonic() + sum(SETTLE_PAUSES)
    for pause in SETTLE_PAUSES:
        yield pause
        if time.monotonic() >= until:
            return


_MARK_FOR_MS = 600_000
"""How long an escaped transaction is tried to be marked while the store is away."""

STREAMED = (
    "An atomic handler cannot stream its answer: it commits before the first byte is sent. Everything was "
    "rolled back. Return the whole body at once, or declare the handler leased."
)
_NOTHING_WRITTEN = (
    "The atomic handler answered {status} but wrote nothing on current_operation().connection. Work on "
    "another connection does not commit with the answer, and a crash between the two runs it twice. Write "
    "through current_operation().connection (or a session of samekey.sqlalchemy), or declare the handler "
    "leased."
)
_ESCAPED = (
    "The atomic handler ended its own transaction (COMMIT or ROLLBACK), so its writes may stand without "
    "their record. The outcome is marked unknown and the operation will not be run again by itself. Leave "
    "the end of the transaction to samekey."
)

_RAISED_SUCCESS = (
    "The atomic handler raised its answer (a redirect, or an HTTP exception below 400). What is raised rolls "
    "everything back, so the client got 500 in its place. Return the answer to have it committed."
)


RAN_TOO_LONG = (
    "An atomic handler ran longer than max_run and was rolled back; what it still does on its connection is "
    "refused. Raise max_run if it needs the time."
)


PART_FAILED = (
    "A guarded function that the handler called raised an error, and the handler went on. What the function "
    "had written cannot be told from the rest, so everything was rolled back. Let the error leave the "
    "handler, or call an undecorated function inside a savepoint of your own."
)


class _Atomic(ABC):
    """The decisions that both kinds share."""

    def __init__(self, keys: SqlKeys) -> None:
        self._keys = keys

    def finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        rules, policy = running.rules, running.rules.policy
        if handled.streamed:
            yield from self._undo(running, None)
            answer = refuse(Refusal(500, "The answer could not be kept."), policy)
            return Finished(with_expiry(answer, policy, running.expires_at), StreamedAnswer(STREAMED))
        falls = handled.falls(rules.on_4xx)
        untrue = falls and handled.worst < 400  # a success that is rolled back
        if untrue:
            logger.error(_RAISED_SUCCESS)
        if running.outcome is not Outcome.REMEMBER or untrue:
            escaped = yield from self._undo(running, None)
            # Cut off because it ran too long: it was rolled back, and a retry finds out who was faster.
            over = type(handled.error) is OperationOver
            if escaped is None and (over or self._gave_way(handled.error)):
                return Finished(unavailable(policy, TransactionConflict("the database gave it up")))
            told = replace(handled, answer=undone(handled, policy))
            return escaped or told.unremembered(
                policy, Outcome.FAIL, running.operation.id, running.expires_at
            )
        answer = handled.answer_or_failure(policy)
        if falls:
            # A refusal is remembered; what the handler wrote before it refused is not.
            escaped = yield from self._undo(running, keep(answer, handled, policy), remember=True)
            sent = with_expiry(answer, policy, running.expires_at)
            return escaped or Finished(sent, handled.propagated)
        if running.part_failed:
            return (yield from self._refuse_to_commit(running, FailedTransaction(PART_FAILED)))
        return (yield from self._commit(running, handled, answer))

    def fall(self, running: Running) -> Flow[None]:
        yield from self._rolled_back(running)

    def _rolled_back(self, running: Running) -> Flow[bool]:
        """Rolls back. False: the handler had ended its own transaction, so what it wrote may stand."""
        if running.fell is None:
            running.fell = yield from self._is_whole(running)
        yield Rollback(running.session)  # does nothing to what has ended
        return running.fell

    def _is_whole(self, running: Running) -> Flow[bool]:
        """Whether the transaction that a rollback is about to end is the one that was opened."""
        yield from ()
        return True

    @abstractmethod
    def _commit(self, running: Running, handled: Handled, answer: Answer) -> Flow[Finished]: ...

    @abstractmethod
    def _undo(
        self, running: Running, answer: Answer | None, *, remember: bool = False
    ) -> Flow[Finished | None]:
        """Rolls back; then remembers the answer, or lets a retry run.

        Finished only if the client must get something else: the transaction had escaped, or the answer could
        not be remembered. An answer that is not the record's must not be sent: a retry would get another.
        """

    def _gave_way(self, error: BaseException | None) -> bool:
        """Whether a handler's error says that the database gave up its transaction in favour of another. It
        only chooses the words of the answer, once everything is rolled back for certain: a retry will do."""
        return getattr(error, "sqlstate", None) in ("40001", "40P01")

    def _sent(self, running: Running, answer: Answer, expires_at: int) -> Answer:
        """What the client gets once it is durable."""
        return with_expiry(answer, running.rules.policy, expires_at)

    def _decide_again(self, running: Running) -> Flow[Finished]:
        """Somebody else's record is there, and ours was rolled back."""
        claim, policy = running.claim, running.rules.policy
        seen = yield from ask(lambda: self._keys.look(claim, policy))
        if isinstance(seen, Absent | Seen):
            return Finished(unavailable(policy, StoreError("the record moved")))
        return Finished(verdict_answer(seen, policy))

    def _wrote_nothing(self, running: Running, answer: Answer) -> NothingWritten | None:
        """A warning, or in strict mode an error, for work that went elsewhere."""
        if answer.status >= 300:
            return None  # a refusal or a redirect need not write
        sentence = _NOTHING_WRITTEN.format(status=answer.status)
        if running.rules.strict:
            return NothingWritten(sentence)
        logger.warning(sentence)
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        return None

    def _refuse_to_commit(self, running: Running, error: HandlerError) -> Flow[Finished]:
        yield from self._undo(running, None)
        policy = running.rules.policy
        return Finished(refuse(Refusal(500, "The operation was rolled back."), policy), error)


class LockedAtomic(_Atomic):
    """PostgreSQL: no commit but the handler's own, and no lease."""

    def __init__(self, keys: SqlKeys, keeper: Keeper) -> None:
        super().__init__(keys)
        self._keeper = keeper
        self._atomic = AtomicKeys(keys)
        self._here: dict[tuple[str, str], Running] = {}
        """The operations that run in this process. A duplicate of one is answered from here, even while
        handlers hold every connection of the pool."""
        anew_after_fork(self)

    def start_anew(self) -> None:
        self._here = {}

    def begin(
        self, claim: Claim, rules: Rules, connection: Any, admission: Admission | None
    ) -> Flow[Running | Verdict]:
        policy = rules.policy
        # A replay is one statement, and never takes a connection that a handler could use.
        seen = yield from ask(lambda: self._keys.look(claim, policy))
        if not isinstance(seen, Absent | Seen):
            return seen
        if isinstance(seen, Seen) and not seen.reused:
            must_be_tried(seen.record, policy)
        here = self._here.get((claim.scope, claim.key))
        if here is not None:
            return Outstanding(None, here.expires_at)
        # A new key on a connection of ours, the ordinary case: BEGIN goes with the first statement.
        enters = connection is None and isinstance(seen, Absent)
        session = yield Open(LATE if enters else connection)
        max_run_ms = max_run_of(rules)
        try:
            opened: Opened | Verdict | None = None
            if isinstance(seen, Absent) and enters:
                opened = yield from ask_in(session, self._atomic.enter(claim, seen, max_run_ms=max_run_ms))
            if opened is None:
                opened = yield from ask_in(session, self._atomic.open(claim, policy, max_run_ms=max_run_ms))
            if admission is not None and isinstance(opened, Opened) and opened.seen is None:
                # Under the lock: a duplicate of what runs in another process is no new key.
                place = admission
                yield from ask(lambda: place.keep_place(max_run_ms))
        except (Exception, NotSent):
            # A caller that has left meanwhile interrupts nothing: its connection is for whoever waits.
            yield Rollback(session)
            raise
        except BaseException:
            session.give_up()
            raise
        if not isinstance(opened, Opened):
            yield Rollback(session)
            return opened
        operation = Operation(claim, opened.operation_id)
        operation._session = session
        running = Running(claim, rules, operation, session=session, opened=opened)
        running.admission = admission if opened.seen is None else None
        running.attempts, running.reused = opened.attempts, opened.reused
        running.expires_at = opened.clock + claim.ttl_ms
        # The server ends a transaction that is idle for so long, and with it the lock. Here it must not keep
        # its connection, nor the key, any longer either.
        try:
            session.expire_after(max_run_ms / 1000, lambda: self._leave(running))
        except BaseException:
            yield Rollback(session)
            raise
        self._here[claim.scope, claim.key] = running
        return running

    def give_back(self, running: Running) -> Flow[None]:
        self._leave(running)
        yield Rollback(running.session)
        yield from self._leave_place(running)

    def _leave_place(self, running: Running) -> Flow[None]:
        """No record will appear. What cannot be said now is over with the longest run."""
        admission = running.admission
        if admission is not None:
            try:
                yield from ask(admission.leave)
            except StoreError as error:
                logger.debug("A place among a tenant's keys could not be left: %s", error)

    def let_go(self, running: Running) -> None:
        self._leave(running)
        running.session.give_up()

    def _leave(self, running: Running) -> None:
        name = running.claim.scope, running.claim.key
        if self._here.get(name) is running:
            self._here.pop(name, None)  # by two threads at once, perhaps

    def finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        try:
            self._cut(running)
            return (yield from super().finish(running, handled))
        finally:
            self._leave(running)
            running.session.give_up()  # on every way out; it has ended already on the ordinary ones

    def _cut(self, running: Running) -> None:
        try:
            running.session.cut()
        except (UnfinishedWork, FailedTransaction) as error:
            running.unfinished = error

    def fall(self, running: Running) -> Flow[None]:
        self._cut(running)
        yield from self._rolled_back(running)

    def _is_whole(self, running: Running) -> Flow[bool]:
        try:
            return (yield from ask_in(running.session, self._atomic.still_open(running.claim)))
        except EscapedTransaction:
            return False
        except SamekeyError:
            return True  # aborted or cut off: the server has rolled back or will

    def _commit(self, running: Running, handled: Handled, answer: Answer) -> Flow[Finished]:
        policy, session = running.rules.policy, running.session
        if running.unfinished is not None:
            return Finished(
                refuse(Refusal(500, "The operation was rolled back."), policy), running.unfinished
            )
        try:
            written = yield from ask_in(session, self._last_statement(running, keep(answer, handled, policy)))
        except (FailedTransaction, NothingEnqueued) as error:
            return (yield from self._refuse_to_commit(running, error))
        except Exception as error:
            # COMMIT was not sent, so the server rolls back whatever happens to this connection.
            escaped = yield from self._undo(running, None)
            logger.error("Atomic work could not be committed and was rolled back: %s", error)
            return escaped or Finished(unavailable(policy, error))
        if isinstance(written, Escaped):
            yield Rollback(session)
            return (yield from self._escaped(running))
        if isinstance(written, Taken):
            yield Rollback(session)
            return (yield from self._decide_again(running))
        if not written.wrote:
            problem = self._wrote_nothing(running, answer)
            if problem is not None:
                return (yield from self._refuse_to_commit(running, problem))
        try:
            yield Commit(session)
        except CommitUncertain as error:
            logger.warning("%s; finding out what became of it", error)
            return (yield from self._find_out(running, written, answer))
        except FailedTransaction as error:
            return Finished(refuse(Refusal(500, "The operation was rolled back."), policy), error)
        except StoreError as error:
            logger.error("COMMIT was refused, so everything was rolled back: %s", error)
            return Finished(unavailable(policy, error))
        return Finished(self._sent(running, answer, written.expires_at))

    def _last_statement(self, running: Running, answer: Answer | None) -> Program[Written | Taken | Escaped]:
        """What makes the record appear with the handler's writes."""
        assert running.opened is not None
        return self._atomic.commit(
            running.claim, running.opened, answer, provider_id=running.operation.provider_id
        )

    def _find_out(self, running: Running, written: Written, answer: Answer) -> Flow[Finished]:
        """The acknowledgement of COMMIT was lost. Only evidence counts: the transaction's own status.

        That the record cannot be seen proves nothing, since the commit may still be on its way. But neither
        does the status alone: after a failover the new primary gives the same numbers to other transactions.
        """
        policy, claim = running.rules.policy, running.claim
        for pause in settling():
            try:
                status = yield from ask(lambda: self._atomic.transaction_status(written.transaction))
            except StoreError:
                status = "unreachable"
            if status == "committed" and (yield from self._is_ours(claim)):
                return Finished(self._sent(running, answer, written.expires_at))
            if status in ("committed", "aborted"):
                break
            yield Pause(pause)
        # Rolled back, or not known yet. Either way a retry with the same key finds the truth.
        return Finished(unavailable(policy, CommitUncertain("the commit is uncertain")))

    def _is_ours(self, claim: Claim) -> Flow[bool]:
        """Whether the record that is there was written by this attempt."""
        try:
            record = yield from ask(lambda: self._keys.read(claim.scope, claim.key))
        except SamekeyError:
            return False
        return record is not None and record.attempt == claim.attempt

    def _undo(
        self, running: Running, answer: Answer | None, *, remember: bool = False
    ) -> Flow[Finished | None]:
        opened = running.opened
        assert opened is not None
        if not (yield from self._rolled_back(running)):
            return (yield from self._escaped(running))
        if not remember:
            yield from self._leave_place(running)
        else:
            claim = running.claim
            try:
                expires_at = yield from ask(lambda: self._atomic.remember(claim, opened, answer))
            except StoreError as error:
                logger.warning("A refusal could not be remembered; a retry will run again: %s", error)
                return Finished(unavailable(running.rules.policy, error))
            if expires_at is None:
                # Somebody else took the key once it was free again.
                return (yield from self._decide_again(running))
            running.expires_at = expires_at
        return None

    def _escaped(self, running: Running) -> Flow[Finished]:
        claim, opened = running.claim, running.opened
        assert opened is not None
        logger.error(_ESCAPED)

        def lose() -> Program[int | None]:
            return self._atomic.lose(claim, opened, "escaped_transaction")

        try:
            yield from ask(lose)
        except StoreError as error:
            logger.critical("An escaped transaction could not be marked and will be tried again: %s", error)
            self._keeper.record_later(Lease(claim.scope, claim.key, claim.attempt, _MARK_FOR_MS), lose)
        answer = uncertain_answer(running.rules.policy, running.operation.id, running.expires_at)
        return Finished(answer, EscapedTransaction(_ESCAPED))


class ClaimedAtomic(_Atomic):
    """SQLite: one short commit for the claim, then the handler's own."""

    def __init__(self, keys: SqlKeys, keeper: Keeper) -> None:
        super().__init__(keys)
        self._keeper = keeper

    def begin(
        self, claim: Claim, rules: Rules, connection: Any, admission: Admission | None
    ) -> Flow[Running | Verdict]:
        # The claim comes first: duplicates and replays never take a connection that a handler could use, and
        # a transaction that holds the write lock from its beginning would keep us from claiming.
        decision = yield from claimed(self._keys, self._keeper, claim, rules.policy, admission)
        if not isinstance(decision, Execute):
            return decision
        record = decision.record
        lease = record.lease(claim.lease_ms)
        try:
            session = yield from self._opened(connection)
        except BaseException:
            yield from given_back(self._keys, self._keeper, lease, claim.id)
            raise
        yield from self._watch(lease, claim.id, session, max_run_of(rules))
        operation = Operation(claim, record.id)
        operation._session = session
        running = Running(claim, rules, operation, lease=lease, session=session)
        running.expires_at = record.expires_at
        running.attempts, running.reused = record.attempts, decision.reused
        return running

    def _opened(self, connection: Any) -> Flow[Any]:
        return (yield Open(connection))

    def _watch(self, lease: Lease, claim_id: str, session: Any, max_run_ms: int) -> Flow[None]:
        """Keeps the lease for the longest run. A handler that hangs must not keep the write lock, or its
        place in the pool, any longer than that either. Where nobody can see to that, nothing runs."""
        try:
            self._keeper.watch(lease, max_run_ms)
            session.expire_after(max_run_ms / 1000, lambda: logger.error(RAN_TOO_LONG))
        except BaseException:
            try:
                yield Rollback(session)
            finally:
                yield from given_back(self._keys, self._keeper, lease, claim_id)
            raise

    def give_back(self, running: Running) -> Flow[None]:
        assert running.lease is not None
        try:
            yield Rollback(running.session)
        finally:
            yield from given_back(self._keys, self._keeper, running.lease, running.claim.id)

    def let_go(self, running: Running) -> None:
        assert running.lease is not None
        given_back_later(self._keys, self._keeper, running.lease, running.claim.id)
        running.session.give_up()

    def finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        assert running.lease is not None
        try:
            return (yield from super().finish(running, handled))
        except GeneratorExit:
            raise  # nobody is there to carry out a step
        except BaseException:
            yield Rollback(running.session)  # on every way out; does nothing to what has ended already
            raise
        finally:
            self._keeper.forget(running.lease)

    def _commit(self, running: Running, handled: Handled, answer: Answer) -> Flow[Finished]:
        policy, session, lease = running.rules.policy, running.session, running.lease
        assert lease is not None
        if not session.wrote():
            problem = self._wrote_nothing(running, answer)
            if problem is not None:
                return (yield from self._refuse_to_commit(running, problem))
        try:
            expires_at = yield from ask_in(
                session, self._last_statement(running, lease, keep(answer, handled, policy))
            )
            if expires_at is None:
                # The lease ran out and somebody else has run it; ours is as if it had never been.
                yield Rollback(session)
                return (yield from self._decide_again(running))
            yield Commit(session)
        except (TransactionGone, UnfinishedWork, FailedTransaction, NothingEnqueued) as error:
            return (yield from self._refuse_to_commit(running, error))
        except Exception as error:
            yield from self._undo(running, None)
            logger.error("Atomic work could not be committed and was rolled back: %s", error)
            return Finished(unavailable(policy, error))
        return Finished(self._sent(running, answer, expires_at))

    def _last_statement(self, running: Running, lease: Lease, answer: Answer | None) -> Program[int | None]:
        """What makes the record final with the handler's writes."""
        return self._keys.complete(lease, answer, provider_id=running.operation.provider_id)

    def _undo(
        self, running: Running, answer: Answer | None, *, remember: bool = False
    ) -> Flow[Finished | None]:
        lease, policy = running.lease, running.rules.policy
        assert lease is not None
        yield from self._rolled_back(running)
        if not remember:
            yield from self._give_back(lease)
            return None
        try:
            expires_at = yield from ask(lambda: self._keys.complete(lease, answer))
        except StoreError as error:
            # It may be recorded all the same, if only the word of that was lost: then the claim is over, and
            # giving it back does nothing.
            logger.warning("A refusal could not be remembered; a retry will run again: %s", error)
            yield from self._give_back(lease)
            return Finished(unavailable(policy, error))
        if expires_at is None:
            # The lease ran out and somebody else has the key.
            return (yield from self._decide_again(running))
        running.expires_at = expires_at
        return None

    def _give_back(self, lease: Lease) -> Flow[None]:
        """Nothing stands, so the key is as free as if it had never been sent."""
        try:
            yield from ask(lambda: self._keys.release(lease))
        except StoreError as error:
            logger.warning("A claim could not be given back; it runs out by itself: %s", error)
