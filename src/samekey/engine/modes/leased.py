"""Leased work: the claim commits, the handler runs under its lease, the answer is stored, then sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from ...core.claim import Claim
from ...core.decide import Execute, Replay, Uncertain, Verdict, Withheld
from ...core.effects import NOT_NOTED, NOTHING_SENT, Sent
from ...core.outcome import Outcome
from ...core.problem import Refusal, refuse, uncertain_answer, verdict_answer
from ...core.program import Program
from ...core.record import Answer, Lease, Record
from ...core.states import Mode
from ...errors import SamekeyError, StoreError
from ...stores.keys import Absent, Keys, Seen
from ...stores.sql.limits import Admission
from ...stores.sql.overruling import Moved
from ..evidence.belated import Belated
from ..evidence.resolver import Resolver
from ..flow import Flow, ask
from ..handler.rules import Rules
from ..keeper import Keeper
from ..late import TRANSIENT
from ..operation import Operation, Running
from .mode import Finished, Handled, claimed, given_back, given_back_later, keep, with_expiry

logger = logging.getLogger("samekey")


class Leased:
    """The way of handlers with effects outside the database. Two commits: the claim and the outcome."""

    def __init__(self, keys: Keys, keeper: Keeper, resolver: Resolver) -> None:
        self._keys = keys
        self._resolver = resolver
        self._keeper = keeper
        self._belated = Belated(keys, resolver)

    def begin(
        self, claim: Claim, rules: Rules, connection: Any, admission: Admission | None
    ) -> Flow[Running | Verdict]:
        decision = yield from claimed(self._keys, self._keeper, claim, rules.policy, admission)
        if isinstance(decision, Uncertain) and (yield from self._told(decision.record)):
            decision = yield from claimed(self._keys, self._keeper, claim, rules.policy, admission)
        if not isinstance(decision, Execute):
            return decision
        record = decision.record
        lease = record.lease(claim.lease_ms)
        try:
            self._keeper.watch(lease, max_run_of(rules))
            running = Running(claim, rules, Operation(claim, record.id), lease=lease)
            running.expires_at = record.expires_at
            running.attempts = record.attempts
            running.operation.tried_before = claim.mode is Mode.REPEATABLE and record.attempts > 1
            running.operation.age = max(0.0, time.time() - record.created_at / 1000)
            running.operation.life = record.life
            running.reused = decision.reused
            return running
        except BaseException:
            # Also a signal's: what nobody has in hand must not be kept alive for its longest run.
            yield from given_back(self._keys, self._keeper, lease, claim.id)
            raise

    def give_back(self, running: Running) -> Flow[None]:
        assert running.lease is not None
        yield from given_back(self._keys, self._keeper, running.lease, running.claim.id)

    def let_go(self, running: Running) -> None:
        assert running.lease is not None
        given_back_later(self._keys, self._keeper, running.lease, running.claim.id)

    def fall(self, running: Running) -> Flow[None]:
        """There is no transaction."""
        yield from ()

    def _told(self, record: Record) -> Flow[bool]:
        """A provider's word may have come while an attempt was running whose outcome is unknown since:
        whoever asks now need not wait until the reconciler looks."""
        try:
            return (yield from ask(lambda: self._resolver.apply_waiting(record.id)))
        except (SamekeyError, Moved) as error:
            logger.warning("What waits about operation %s could not be used: %s", record.id, error)
            return False

    def finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        lease = running.lease
        assert lease is not None
        try:
            return (yield from self._record(running, lease, handled))
        finally:
            self._keeper.forget(lease)

    def _record(self, running: Running, lease: Lease, handled: Handled) -> Flow[Finished]:
        policy = running.rules.policy
        provider_id, sent = running.operation.provider_id, running.operation.sent()
        operation_id, outcome = running.operation.id, running.outcome
        assert outcome is not None
        if outcome is Outcome.REMEMBER:
            answer = handled.answer_or_failure(policy)
            kept = keep(answer, handled, policy)
            expires_at = yield from self._attempt(
                lease,
                lambda: self._completed(lease, operation_id, kept, answer.status, provider_id, sent),
                bare=lambda: self._completed(lease, operation_id, kept, answer.status),
                otherwise=_UNTOLD if running.claim.mode is Mode.REPEATABLE else running.expires_at,
            )
            if expires_at is None:
                return Finished((yield from self._overtaken(running)))
            if expires_at is _UNTOLD:
                return Finished(refuse(Refusal(503, *_NOT_RECORDED, policy.retry_after), policy))
            return Finished(with_expiry(answer, policy, expires_at), handled.propagated)
        if outcome is Outcome.UNKNOWN:
            code = handled.error_code
            held = yield from self._attempt(
                lease,
                lambda: self._lost(lease, operation_id, code, provider_id, sent),
                bare=lambda: self._keys.lose(lease, NOT_NOTED),
                otherwise=running.expires_at,
            )
        elif outcome is Outcome.FAIL or running.operation.known or not running.is_first:
            # A key is as if it had never been used only if nothing was ever sent under it, by whichever name:
            # else a word of the provider's about this attempt would find nothing, or be taken for one about
            # the next. Nor is it freed without what was noted: then its lease runs out, and it is unknown.
            held = yield from self._attempt(
                lease, lambda: self._failed(lease, operation_id, handled.error_code, sent), otherwise=True
            )
        else:
            held = yield from self._attempt(lease, lambda: self._keys.release(lease), otherwise=True)
        if not held and (told := (yield from self._found_out(running))) is not None:
            return Finished(told)
        return handled.unremembered(policy, outcome, running.operation.id, running.expires_at)

    # Each outcome with what follows where others have taken the operation: what its holder knows is not lost.

    def _completed(
        self,
        lease: Lease,
        operation_id: str,
        kept: Answer | None,
        status: int,
        provider_id: str | None = None,
        sent: Sent = NOTHING_SENT,
    ) -> Program[int | None]:
        expires_at = yield from self._keys.complete(
            lease, kept, provider_id=provider_id, sent=sent, status=status
        )
        if expires_at is None:
            yield from self._belated.answered(lease, operation_id, kept, status, sent)
        return expires_at

    def _lost(
        self, lease: Lease, operation_id: str, code: str, provider_id: str | None, sent: Sent
    ) -> Program[int | None]:
        expires_at = yield from self._keys.lose(lease, code, provider_id=provider_id, sent=sent)
        if expires_at is None:
            yield from self._belated.unsure(lease, operation_id, sent)
        return expires_at

    def _failed(self, lease: Lease, operation_id: str, code: str, sent: Sent) -> Program[bool]:
        held = yield from self._keys.fail(lease, code, sent=sent)
        if not held:
            yield from self._keys.note_former(lease, operation_id, sent)
        return held

    def _found_out(self, running: Running) -> Flow[Answer | None]:
        """The answer that others have found out while this holder was late: what it says itself is older."""
        claim, policy = running.claim, running.rules.policy
        try:
            seen = yield from ask(lambda: self._keys.look(claim, policy))
        except StoreError:
            return None
        return verdict_answer(seen, policy) if isinstance(seen, Replay | Withheld) else None

    def _attempt(
        self,
        lease: Lease,
        factory: Callable[[], Program[Any]],
        *,
        otherwise: Any,
        bare: Callable[[], Program[Any]] | None = None,
    ) -> Flow[Any]:
        """Records an outcome. The one exception to "durable before sent" is made here.

        The handler has run, so its answer is the truth whether or not the store can be reached. The
        client gets it, recording goes on in the background, and a retry meanwhile finds the lease, or an
        unknown outcome, and does not run; where it may be repeated it does run, and so the client is told to
        ask for the answer that counts. What the handler noted beside its outcome matters less than that:
        where the store will not have the one with the other, the ``bare`` outcome is recorded.
        """
        try:
            try:
                return (yield from ask(factory))
            except Exception as error:
                if bare is None or isinstance(error, TRANSIENT):
                    raise
                logger.error("The outcome of an operation is recorded without what it noted: %s", error)
                return (yield from ask(bare))
        except Exception as error:
            # Of the store, or of whatever stands before it, such as an encryption service.
            logger.error(
                "The outcome of an operation could not be recorded and will be tried again: %s", error
            )
            self._keeper.record_later(lease, factory, bare)
            return otherwise
        except BaseException:
            # The event loop ends, and this task with it; the process may live on.
            self._keeper.record_later(lease, factory, bare)
            raise

    def _overtaken(self, running: Running) -> Flow[Answer]:
        """Our lease ran out and somebody else has the record: it says what the client gets."""
        claim, policy = running.claim, running.rules.policy
        seen = yield from ask(lambda: self._keys.look(claim, policy))
        if isinstance(seen, Uncertain) and (yield from self._told(seen.record)):
            seen = yield from ask(lambda: self._keys.look(claim, policy))
        if isinstance(seen, Absent | Seen):
            return uncertain_answer(policy, running.operation.id, None)
        return verdict_answer(seen, policy)


_UNTOLD: Final[Any] = object()
_NOT_RECORDED: Final = (
    "It was done, and its answer could not be recorded, so it may be done again. Retry with the same key.",
    "store_unavailable",
)


def max_run_of(rules: Rules) -> int:
    return int(rules.policy.max_run.total_seconds() * 1000)
