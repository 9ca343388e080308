"""What every way of running an operation has in common: how a handler ended, and what the client gets."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ...core.arrival import proof_in
from ...core.claim import Claim
from ...core.decide import Decision, Verdict
from ...core.outcome import Ending, Outcome
from ...core.policy import Policy
from ...core.problem import Refusal, expiry_header, refuse, uncertain_answer
from ...core.program import Program
from ...core.record import Answer, Lease
from ...core.replayable import replayable
from ...drivers.caller import NotSent
from ...errors import (
    CommitUncertain,
    NotExecuted,
    OutcomeUnknown,
    ReadOnlyStore,
    SamekeyError,
    Sealed,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreUnreachable,
)
from ...stores.keys import Absent, Keys
from ...stores.sql.limits import Admission
from ..flow import Flow, ask
from ..handler.rules import Rules
from ..keeper import Keeper
from ..operation import Running

logger = logging.getLogger("samekey")


@dataclass(frozen=True, slots=True)
class Handled:
    """How the handler ended: the answer that the application made of it, and what its boundary saw."""

    answer: Answer | None
    error: BaseException | None = None
    """What the handler raised."""
    streamed: bool = False
    """There is more of the answer to come, so it cannot be kept."""
    own: bool = True
    """The handler returned, and the answer's status is its own word."""
    said: int | None = None
    """The status that the handler returned, where that is known: the answer may have become another one."""
    refusal: int | None = None
    """The status, if it raised the framework's own HTTP exception."""
    before_effect: bool = False
    """It raised inside ``before_effect()``."""
    at_edge: bool = False
    """Only the edge of an application was seen."""
    unsure: bool = False
    """A guarded function that the handler called ended without proof."""

    @property
    def ending(self) -> Ending:
        status = None if self.answer is None else self.answer.status
        return Ending(
            status,
            self.error,
            self.own,
            self.refusal,
            self.before_effect,
            at_edge=self.at_edge,
            unsure=self.unsure,
            said=self.said,
        )

    @property
    def worst(self) -> int:
        """The status by the handler's own word or by the page that was made of it, whichever is worse."""
        word = self.said if self.error is None else self.refusal
        return max(500 if self.answer is None else self.answer.status, word or 0)

    def falls(self, on_4xx: Literal["rollback", "commit"]) -> bool:
        """Whether what the handler wrote in its transaction is rolled back, even if the answer is kept."""
        return self.error is not None or self.worst >= (400 if on_4xx == "rollback" else 500)

    @property
    def propagated(self) -> BaseException | None:
        """The error, unless the application made an answer of it."""
        return self.error if self.answer is None else None

    @property
    def error_code(self) -> str:
        """What is kept of a failure for operators: its kind, never its text, which may be private."""
        if self.error is not None:
            return type(self.error).__name__
        if self.answer is None or self.ending.answer_failed:
            return "answer_failed"
        return f"status_{self.answer.status}"

    def answer_or_failure(self, policy: Policy) -> Answer:
        """The answer; where the handler only raised, the 500 that is remembered in its place."""
        if self.answer is not None:
            return self.answer
        return refuse(Refusal(500, "The operation failed. It will not be run again under this key."), policy)

    def _own_word(self) -> bool:
        """The client gets what the handler itself chose to say, its own 502 for one."""
        if self.answer is None:
            return False
        return self.own if self.error is None else self.refusal == self.answer.status

    def unremembered(
        self, policy: Policy, outcome: Outcome, operation_id: str | None, expires_at: int
    ) -> Finished:
        """What the client gets when nothing is remembered."""
        if outcome is Outcome.UNKNOWN and not self._own_word():
            told = isinstance(self.error, OutcomeUnknown)  # on purpose: there is no bug to report
            return Finished(
                uncertain_answer(policy, operation_id, expires_at), None if told else self.propagated
            )
        said: BaseException | None = self.error
        if said is not None and self.answer is None:
            said = proof_in(said) or said  # an SDK's error of it is nobody's page
        if isinstance(said, NotExecuted | StoreUnavailable):
            return Finished(with_expiry(unavailable(policy, said), policy, expires_at))
        answer = None if self.answer is None else with_expiry(self.answer, policy, expires_at)
        return Finished(answer, self.propagated)


@dataclass(frozen=True, slots=True)
class Finished:
    """What the edge does now: send the answer, if any, then raise the error, if any."""

    answer: Answer | None
    error: BaseException | None = None


def claimed(
    keys: Keys, keeper: Keeper, claim: Claim, policy: Policy, admission: Admission | None
) -> Flow[Decision]:
    """Takes the key by a committed claim.

    A claim whose reply never came may have landed all the same. Nothing will run under it, so it is given
    back as soon as the store can be reached: else a key that nobody uses would become unknown.
    """

    def take() -> Program[Decision]:
        return keys.claim(claim, policy)

    def take_a_place() -> Program[Decision]:
        assert admission is not None
        return admission.before(take(), held_ms=claim.lease_ms)

    new = admission is not None and isinstance((yield from ask(lambda: keys.look(claim, policy))), Absent)
    try:
        return (yield from ask(take_a_place if new else take))
    except BaseException as error:
        if _may_have_landed(error):
            lease = Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)
            keeper.give_back_later(lambda: keys.give_back(lease, claim.id))
        raise


def _may_have_landed(error: BaseException) -> bool:
    """Whether a statement that ended so may have been carried out. It may, unless the error proves that it
    was not: what a signal raises (a soft time limit, say) comes out of a statement that is on its way."""
    if isinstance(error, StoreError):
        unheard = isinstance(error, StoreUnavailable | CommitUncertain)
        return unheard and not isinstance(error, StoreUnreachable | StoreBusy | ReadOnlyStore)
    return not isinstance(error, NotSent | SamekeyError)


def given_back(keys: Keys, keeper: Keeper, lease: Lease, claim_id: str) -> Flow[None]:
    """Gives back a claim that landed and under which nothing was run."""
    keeper.forget(lease)
    try:
        yield from ask(lambda: keys.give_back(lease, claim_id))
    except BaseException as error:
        keeper.give_back_later(lambda: keys.give_back(lease, claim_id))
        if not isinstance(error, StoreError):
            raise
        logger.warning("A claim could not be given back and will be tried again: %s", error)


def given_back_later(keys: Keys, keeper: Keeper, lease: Lease, claim_id: str) -> None:
    """``given_back`` by a thread."""
    keeper.forget(lease)
    keeper.give_back_later(lambda: keys.give_back(lease, claim_id))


class Way(Protocol):
    """One of the ways to run an operation once."""

    def begin(
        self, claim: Claim, rules: Rules, connection: Any, admission: Admission | None
    ) -> Flow[Running | Verdict]:
        """Takes the key, or says what the request gets instead. ``admission`` where keys are limited."""

    def give_back(self, running: Running) -> Flow[None]:
        """The key is as it was before: it was taken, and the handler was never reached."""

    def let_go(self, running: Running) -> None:
        """``give_back`` where the event loop ends: a thread sees to it, and nobody waits."""

    def fall(self, running: Running) -> Flow[None]:
        """The handler has raised: what it wrote in its transaction is rolled back before anybody else hears
        of the error. Whoever answers it may want the rows that the handler has locked."""

    def finish(self, running: Running, handled: Handled) -> Flow[Finished]:
        """Makes the outcome durable, then says what to send."""


def undone(handled: Handled, policy: Policy) -> Answer | None:
    """What the client of atomic work gets that was rolled back: never the success that it would have been."""
    answer = handled.answer
    if answer is None or answer.status >= 400 or answer.status in (307, 308):
        return answer
    return refuse(Refusal(500, "The operation was rolled back: nothing was done."), policy)


def keep(answer: Answer, handled: Handled, policy: Policy) -> Answer | None:
    """What is stored of an answer; None if it was streamed or is too large."""
    if handled.streamed or len(answer.body) > policy.max_answer:
        return None
    return replayable(answer, policy.keep_headers, policy.drop_headers)


def with_expiry(answer: Answer, policy: Policy, expires_at: int) -> Answer:
    ours = expiry_header(policy, expires_at)
    others = tuple((name, value) for name, value in answer.headers if name.lower() != ours[0].lower())
    return Answer(answer.status, (*others, ours), answer.body)


def unavailable(policy: Policy, error: Exception) -> Answer:
    """503: the same key may be tried again. It says no more than is known."""
    if isinstance(error, NotExecuted):
        return refuse(
            Refusal(503, "Nothing was done. Retry with the same key.", None, policy.retry_after), policy
        )
    if isinstance(error, Sealed):
        said = "What is stored under this key cannot be read right now. Retry with the same key."
        return refuse(Refusal(503, said, "store_unavailable", policy.retry_after), policy)
    detail = (
        "It is not known yet whether it was done: the store was lost at the end. Retry with the same key."
        if isinstance(error, CommitUncertain)
        else "The idempotency store cannot be used right now, so nothing was done. Retry with the same key."
    )
    return refuse(Refusal(503, detail, "store_unavailable", policy.retry_after), policy)
