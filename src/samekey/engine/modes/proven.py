"""Atomic work on MySQL and MariaDB: a short committed claim, then a transaction that proves itself.

There are no locks of a transaction's own to be had as on PostgreSQL, and an uncommitted claim would make
every duplicate wait for the whole handler. So the claim commits first, as on SQLite, and a duplicate reads it
without waiting. Unlike SQLite the server lets a handler end its transaction, also by statements that commit
without saying so, and the acknowledgement of COMMIT can be lost. Two things settle both:

- A savepoint is set before the handler and released after it. It is gone if the transaction was ended.
- The last statement locks the record and compares its attempt id. While its transaction lives, nobody can
  move the record; once somebody can, it has been committed or rolled back, and the record says which.

A crash rolls the transaction back, and the claim's lease ends: then a retry runs again.
"""

from __future__ import annotations

import logging
from typing import Any

from ...core.problem import Refusal, refuse, uncertain_answer
from ...core.program import Program
from ...core.record import Answer, Lease, Record
from ...core.states import State
from ...errors import (
    CommitUncertain,
    EscapedTransaction,
    FailedTransaction,
    NothingEnqueued,
    SamekeyError,
    StoreError,
    TransactionGone,
)
from ...stores.sql.keys import SqlKeys
from ..flow import Commit, Flow, Open, Pause, Rollback, ask, ask_in
from ..keeper import Keeper
from ..operation import Running
from .atomic import ClaimedAtomic, settling
from .deferred import ClaimedDeferred
from .mode import Finished, Handled, keep, unavailable

logger = logging.getLogger("samekey")

_DEADLOCK = 1213
_MARK_FOR_MS = 600_000
"""How long an escaped transaction is tried to be marked while the store is away."""


class ProvenAtomic(ClaimedAtomic):
    """A committed claim, then the handler's own transaction on a server."""

    def __init__(self, keys: SqlKeys, keeper: Keeper) -> None:
        super().__init__(keys, keeper)
        self._queries = keys.queries

    def _opened(self, connection: Any) -> Flow[Any]:
        session = yield Open(connection)
        try:
            yield from ask_in(session, self._say("open_proof"))
        except BaseException:
            yield Rollback(session)
            raise
        return session

    def _say(self, name: str) -> Program[None]:
        yield self._queries.statement(name, None)

    def _gave_way(self, error: BaseException | None) -> bool:
        seen = (error, getattr(error, "__cause__", None), getattr(error, "orig", None))
        return any(
            isinstance(one, TransactionGone) or getattr(one, "args", ())[:1] == (_DEADLOCK,)
            for one in seen
            if one is not None
        )

    def _commit(self, running: Running, handled: Handled, answer: Answer) -> Flow[Finished]:
        policy, session, lease = running.rules.policy, running.session, running.lease
        assert lease is not None
        if session.wrote() is False:
            problem = self._wrote_nothing(running, answer)
            if problem is not None:
                return (yield from self._refuse_to_commit(running, problem))
        try:
            yield from ask_in(session, self._say("close_proof"))
            expires_at = yield from ask_in(
                session, self._last_statement(running, lease, keep(answer, handled, policy))
            )
            if expires_at is None:
                # The lease ran out and somebody else has run it; ours is as if it had never been.
                yield Rollback(session)
                return (yield from self._decide_again(running))
            yield Commit(session)
        except EscapedTransaction:
            yield Rollback(session)
            return (yield from self._escaped(running))
        except CommitUncertain as error:
            logger.warning("%s; finding out what became of it", error)
            return (yield from self._find_out(running, lease, answer))
        except (FailedTransaction, NothingEnqueued) as error:
            # It has not escaped: that was proven before.
            yield Rollback(session)
            yield from self._give_back(lease)
            return Finished(refuse(Refusal(500, "The operation was rolled back."), policy), error)
        except SamekeyError as error:
            # COMMIT was not sent, or the server said no: nothing stands.
            yield Rollback(session)
            yield from self._give_back(lease)
            logger.error("Atomic work could not be committed and was rolled back: %s", error)
            return Finished(unavailable(policy, error))
        return Finished(self._sent(running, answer, expires_at))

    def _undo(
        self, running: Running, answer: Answer | None, *, remember: bool = False
    ) -> Flow[Finished | None]:
        if not (yield from self._rolled_back(running)):
            return (yield from self._escaped(running))
        return (yield from super()._undo(running, answer, remember=remember))

    def _is_whole(self, running: Running) -> Flow[bool]:
        try:
            yield from ask_in(running.session, self._say("close_proof"))
        except EscapedTransaction:
            return False
        except SamekeyError:
            pass  # cut off: the server has rolled back or will
        return True

    def _escaped(self, running: Running) -> Flow[Finished]:
        lease = running.lease
        assert lease is not None
        error = EscapedTransaction(
            "The atomic handler ended its own transaction (COMMIT, ROLLBACK, or a statement that commits by "
            "itself, such as CREATE or TRUNCATE), so its writes may stand without their record. The outcome "
            "is marked unknown and the operation will not be run again by itself. Leave the end of the "
            "transaction to samekey."
        )
        logger.error("%s", error)

        def lose() -> Program[int | None]:
            return self._keys.lose(lease, "escaped_transaction")

        try:
            yield from ask(lose)
        except StoreError as failure:
            logger.critical("An escaped transaction could not be marked and will be tried again: %s", failure)
            self._keeper.record_later(Lease(lease.scope, lease.key, lease.attempt, _MARK_FOR_MS), lose)
        return Finished(
            uncertain_answer(running.rules.policy, running.operation.id, running.expires_at), error
        )

    def _find_out(self, running: Running, lease: Lease, answer: Answer) -> Flow[Finished]:
        """The acknowledgement of COMMIT was lost. Giving the claim back is the question.

        The transaction has locked the record and changed it. As long as it may still commit, that lock is
        held and the claim cannot be given back (busy). If it can, the transaction was rolled back. If it is
        no longer ours to give back, it was committed, and the record shows our attempt.
        """
        policy = running.rules.policy
        for pause in settling():
            try:
                if (yield from ask(lambda: self._keys.release(lease))):
                    return Finished(unavailable(policy, StoreError("rolled back")))
                record = yield from ask(lambda: self._keys.read(lease.scope, lease.key))
            except StoreError:
                yield Pause(pause)
                continue
            if self._stands(record, lease):
                assert record is not None
                return Finished(self._sent(running, answer, record.expires_at))
            return (yield from self._decide_again(running))
        # Not known yet. A retry with the same key finds the truth.
        return Finished(unavailable(policy, CommitUncertain("the commit is uncertain")))

    def _stands(self, record: Record | None, lease: Lease) -> bool:
        """Whether what we committed is there. Deferred work may have been done by a worker meanwhile."""
        settled = (State.COMPLETED, State.PENDING, State.DEAD_LETTER)
        return record is not None and record.attempt == lease.attempt and record.state in settled


class ProvenDeferred(ClaimedDeferred, ProvenAtomic):
    """The claim becomes pending with the handler's writes and its job, in such a transaction."""
