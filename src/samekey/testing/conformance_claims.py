"""Conformance, part one: who may run, and what everybody else is told."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Final
from unittest import mock

from ..core.claim import Claim
from ..core.decide import (
    Accepted,
    Decision,
    Execute,
    Gone,
    Mismatch,
    Outstanding,
    Replay,
    Uncertain,
    Unreadable,
)
from ..core.effects import Sent, SentStep
from ..core.policy import Policy, ietf
from ..core.program import Program
from ..core.record import Answer
from ..core.states import Mode, State
from .conformance_subject import (
    DAY,
    HOUR,
    NOW,
    SECOND,
    Subject,
    different_request,
    executed,
    must_read,
    new_claim,
    retry_of,
)

POLICY: Final = ietf()
GONE: Final = ietf(after_expiry="gone")
REPLAY: Final = ietf(on_mismatch="replay")
ANSWER: Final = Answer(201, ((b"content-type", b"application/json"),), b'{"id": 7}')
CROWD: Final = 8
"""How many contend at once: more than the cores of a small machine, fewer than a default pool."""


def claim_at(store: Subject, claim: Claim, now: int = NOW, policy: Policy = POLICY) -> Decision:
    return store.run(lambda: store.keys.claim(claim, policy, now=now))


def hold(store: Subject, claim: Claim, now: int = NOW) -> None:
    executed(claim_at(store, claim, now))


def noted(provider_id: str | None) -> Sent:
    """What a handler that noted this id of the provider's may have sent."""
    return Sent(() if provider_id is None else (SentStep("", None, provider_id, "bank"),))


def complete(
    store: Subject,
    claim: Claim,
    answer: Answer | None = ANSWER,
    now: int = NOW,
    provider_id: str | None = None,
) -> int | None:
    lease = must_read(store, claim).lease(claim.lease_ms)
    return store.run(
        lambda: store.keys.complete(lease, answer, provider_id=provider_id, sent=noted(provider_id), now=now)
    )


def fail(store: Subject, claim: Claim, now: int = NOW) -> None:
    lease = must_read(store, claim).lease(claim.lease_ms)
    assert store.run(lambda: store.keys.fail(lease, "declined", now=now)) is True


def lose(store: Subject, claim: Claim, provider_id: str | None = None, now: int = NOW) -> None:
    lease = must_read(store, claim).lease(claim.lease_ms)
    lost = store.run(
        lambda: store.keys.lose(lease, "timeout", provider_id=provider_id, sent=noted(provider_id), now=now)
    )
    assert lost is not None


def expire(store: Subject, claim: Claim, now: int) -> bool:
    return store.run(lambda: store.keys.expire(claim.scope, claim.key, now=now))


def crowd(store: Subject, claim: Claim, now: int) -> list[Decision]:
    """Many retries of one request at once."""

    def contender() -> Callable[[], Program[Decision]]:
        again = retry_of(claim)
        return lambda: store.keys.claim(again, POLICY, now=now)

    return store.run_together([contender() for _ in range(CROWD)])


def assert_one_winner(decisions: list[Decision]) -> Execute:
    winners = [decision for decision in decisions if isinstance(decision, Execute)]
    assert len(winners) == 1, f"{len(winners)} of {len(decisions)} won"
    others = [decision for decision in decisions if not isinstance(decision, Execute)]
    assert all(isinstance(decision, Outstanding) for decision in others), others
    return winners[0]


class ClaimConformance:
    """Each test takes the store under test and one body serves every store."""

    # D1, S2: a new key

    def test_a_new_key_is_executed(self, store: Subject) -> None:
        claim = new_claim()
        decision = claim_at(store, claim)
        record = executed(decision)
        assert isinstance(decision, Execute) and not decision.reused
        assert (record.id, record.attempt, record.attempts) == (claim.id, claim.attempt, 1)
        assert (record.scope, record.key, record.mode) == (claim.scope, claim.key, claim.mode)
        assert (record.tenant, record.endpoint) == (claim.tenant, claim.endpoint)
        assert (record.fingerprint, record.fingerprint_version) == (claim.fingerprint, "1")
        assert record.state is State.IN_PROGRESS
        assert record.locked_until == NOW + claim.lease_ms
        assert (record.created_at, record.last_run_at, record.completed_at) == (NOW, NOW, None)
        assert record.expires_at == NOW + claim.ttl_ms
        assert record.answer is None and not record.withheld
        assert must_read(store, claim) == record

    def test_of_many_first_requests_one_is_executed(self, store: Subject) -> None:
        claim = new_claim()
        winner = assert_one_winner(crowd(store, claim, NOW))
        assert must_read(store, claim) == winner.record

    def test_a_claim_whose_acknowledgement_was_lost_is_recognised(self, store: Subject) -> None:
        claim = new_claim()
        first, second = claim_at(store, claim), claim_at(store, claim, NOW + SECOND)
        assert executed(second) == executed(first), "the runner asks again after a lost connection"
        assert must_read(store, claim).attempts == 1

    def test_a_retry_whose_acknowledgement_was_lost_is_recognised(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        fail(store, claim)
        again = retry_of(claim)
        assert executed(claim_at(store, again)) == executed(claim_at(store, again))
        assert must_read(store, claim).attempts == 2

    def test_an_abandoned_program_changes_nothing(self, store: Subject) -> None:
        claim = new_claim()
        program = store.keys.claim(claim, POLICY, now=NOW)
        next(program)
        program.close()
        assert store.run(lambda: store.keys.read(claim.scope, claim.key)) is None

    # D2: another request under the same key

    def test_another_request_is_refused_before_any_other_answer(self, store: Subject) -> None:
        moves: dict[str, Callable[[Claim], object]] = {
            "in_progress": lambda claim: None,
            "completed": lambda claim: complete(store, claim),
            "failed_retryable": lambda claim: fail(store, claim),
            "unknown": lambda claim: lose(store, claim),
            "dead_letter": lambda claim: store.overwrite(
                claim.scope, claim.key, state="dead_letter", locked_until=None
            ),
            "pending": lambda claim: store.overwrite(
                claim.scope, claim.key, state="pending", mode="deferred", locked_until=None
            ),
        }
        for state, move in moves.items():
            claim = new_claim()
            hold(store, claim)
            move(claim)
            before = must_read(store, claim)
            assert before.state == state
            decision = claim_at(store, different_request(claim))
            assert isinstance(decision, Mismatch), f"in state {state}: {decision}"
            assert must_read(store, claim) == before

    def test_another_request_is_refused_when_the_lease_has_ended(self, store: Subject) -> None:
        for mode in Mode:
            claim = new_claim(mode=mode)
            hold(store, claim)
            late = NOW + claim.lease_ms
            assert isinstance(claim_at(store, different_request(claim), late), Mismatch), mode

    def test_another_request_can_be_given_the_old_answer(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        complete(store, claim)
        decision = claim_at(store, different_request(claim), NOW, REPLAY)
        assert isinstance(decision, Replay) and decision.record.answer == ANSWER

    def test_a_fingerprint_that_cannot_be_computed_is_an_error(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, fingerprint_version="of a later release")
        assert isinstance(claim_at(store, retry_of(claim)), Unreadable)

    # D3, D4, D6, D7: the same request again

    def test_a_completed_request_is_replayed(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        assert complete(store, claim, now=NOW + SECOND) == NOW + SECOND + claim.ttl_ms
        for later in (NOW + SECOND, NOW + HOUR):
            decision = claim_at(store, retry_of(claim), later)
            assert isinstance(decision, Replay), decision
            assert decision.record.answer == ANSWER
            assert decision.record.completed_at == NOW + SECOND

    def test_a_request_in_progress_is_outstanding_until_its_lease_ends(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        decision = claim_at(store, retry_of(claim), NOW + claim.lease_ms - 1)
        assert isinstance(decision, Outstanding), decision
        assert decision.operation_id == claim.id
        assert decision.expires_at == NOW + claim.ttl_ms
        assert must_read(store, claim).attempt == claim.attempt

    def test_an_unknown_outcome_is_not_executed(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        lose(store, claim, now=NOW + SECOND)
        for later in (NOW + SECOND, NOW + 400 * DAY):
            decision = claim_at(store, retry_of(claim), later)
            assert isinstance(decision, Uncertain), decision
        record = must_read(store, claim)
        assert (record.state, record.error_code) == (State.UNKNOWN, "timeout")
        assert record.reconcile_after == NOW + SECOND, "the reconciler must be able to find it"
        assert record.locked_until is None

    def test_a_dead_letter_is_not_executed(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, state="dead_letter", locked_until=None)
        assert isinstance(claim_at(store, retry_of(claim), NOW + 400 * DAY), Uncertain)

    def test_deferred_work_is_accepted(self, store: Subject) -> None:
        claim = new_claim(mode=Mode.DEFERRED)
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, state="pending", locked_until=None)
        assert isinstance(claim_at(store, retry_of(claim), NOW + 400 * DAY), Accepted)

    # D5: a failure that provably did nothing

    def test_one_retry_of_a_failed_request_is_executed(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        fail(store, claim)
        before = must_read(store, claim)
        assert (before.state, before.error_code) == (State.FAILED_RETRYABLE, "declined")
        record = assert_one_winner(crowd(store, claim, NOW + SECOND)).record
        assert (record.id, record.attempts, record.error_code) == (before.id, 2, None)
        assert record.attempt != before.attempt
        assert (record.created_at, record.last_run_at) == (NOW, NOW + SECOND)
        assert record.locked_until == NOW + SECOND + claim.lease_ms

    # D11, S5: a lease that ran out

    def test_a_lost_lease_of_outside_effects_is_unknown(self, store: Subject) -> None:
        claim = new_claim(mode=Mode.LEASED)
        hold(store, claim)
        late = NOW + claim.lease_ms
        decision = claim_at(store, retry_of(claim), late)
        assert isinstance(decision, Uncertain), decision
        record = must_read(store, claim)
        assert (record.state, record.error_code) == (State.UNKNOWN, "lease_ended")
        assert (record.reconcile_after, record.locked_until) == (late, None)
        assert (record.attempt, record.attempts) == (claim.attempt, 1)

    def test_a_lost_lease_of_safe_work_is_retried_by_one(self, store: Subject) -> None:
        for mode in (Mode.REPEATABLE, Mode.ATOMIC, Mode.DEFERRED):  # rolled back, or said to be safe
            claim = new_claim(mode=mode)
            hold(store, claim)
            winner = assert_one_winner(crowd(store, claim, NOW + claim.lease_ms))
            assert winner.record.attempts == 2, mode

    def test_phased_work_is_resumed_by_one_at_its_recovery_point(self, store: Subject) -> None:
        claim = new_claim(mode=Mode.PHASED)
        hold(store, claim)
        store.overwrite(claim.scope, claim.key, recovery_point="charged")
        record = assert_one_winner(crowd(store, claim, NOW + claim.lease_ms)).record
        assert (record.recovery_point, record.attempts, record.id) == ("charged", 2, claim.id)

    def test_the_recorded_mode_decides_not_that_of_the_retry(self, store: Subject) -> None:
        claim = new_claim(mode=Mode.LEASED)
        hold(store, claim)
        again = retry_of(claim, mode=Mode.REPEATABLE)
        assert isinstance(claim_at(store, again, NOW + claim.lease_ms), Uncertain)

    def test_many_who_find_a_lost_lease_agree(self, store: Subject) -> None:
        claim = new_claim(mode=Mode.LEASED)
        hold(store, claim)
        decisions = crowd(store, claim, NOW + claim.lease_ms)
        assert all(isinstance(decision, Uncertain) for decision in decisions), decisions

    # D8: after retention

    def test_an_expired_key_is_a_new_operation(self, store: Subject) -> None:
        for how in ("completed", "failed_retryable", "tombstone"):
            claim = new_claim()
            hold(store, claim)
            fail(store, claim) if how == "failed_retryable" else complete(store, claim)
            late = NOW + claim.ttl_ms
            if how == "tombstone":
                assert expire(store, claim, late) is True
            before = must_read(store, claim)
            request = different_request(claim)
            decision = claim_at(store, request, late)
            record = executed(decision)
            assert isinstance(decision, Execute) and decision.reused, how
            assert (record.id, record.downstream) == (request.id, before.downstream), how
            assert record.attempt != before.attempt
            assert (record.attempts, record.created_at, record.completed_at) == (1, late, None)
            assert record.expires_at == late + claim.ttl_ms
            assert (record.answer, record.provider_id, record.error_code) == (None, None, None)

    def test_an_expired_key_is_reused_by_one(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        complete(store, claim)
        assert assert_one_winner(crowd(store, claim, NOW + claim.ttl_ms)).reused

    def test_a_key_does_not_expire_a_moment_too_early(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        expires_at = complete(store, claim)
        assert expires_at == NOW + claim.ttl_ms
        assert isinstance(claim_at(store, retry_of(claim), expires_at - 1), Replay)
        assert expire(store, claim, expires_at - 1) is False

    def test_an_expired_key_can_be_gone(self, store: Subject) -> None:
        claim = dataclasses.replace(new_claim(), after_expiry="gone")
        hold(store, claim)
        complete(store, claim)
        late = NOW + claim.ttl_ms
        for reaped in (False, True):
            if reaped:
                expire(store, claim, late)
            for request in (retry_of(claim), different_request(claim)):
                decision = claim_at(store, request, late, GONE)
                assert isinstance(decision, Gone), decision

    def test_a_tombstone_keeps_the_fact_and_drops_the_answer(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        complete(store, claim)
        late = NOW + claim.ttl_ms
        assert expire(store, claim, late) is True
        record = must_read(store, claim)
        assert (record.state, record.answer, record.id) == (State.EXPIRED, None, claim.id)
        assert expire(store, claim, late) is False
        store.overwrite(
            claim.scope,
            claim.key,
            state="completed",
            answer_version=1,
            answer_status=201,
            answer_headers=b"[]",
        )
        assert isinstance(claim_at(store, retry_of(claim)), Unreadable), "the body was kept"

    def test_what_is_not_settled_never_expires(self, store: Subject) -> None:
        for state in ("in_progress", "unknown", "pending", "dead_letter"):
            claim = new_claim()
            hold(store, claim)
            store.overwrite(claim.scope, claim.key, state=state)
            late = NOW + 400 * DAY
            assert expire(store, claim, late) is False
            assert not isinstance(claim_at(store, retry_of(claim), late), Execute), state

    # S4: whose clock it is

    def test_the_clock_is_the_stores(self, store: Subject) -> None:
        claim, other = new_claim(), new_claim()
        with skewed(-DAY):
            first = executed(store.run(lambda: store.keys.claim(claim, POLICY)))
        with skewed(+DAY):
            decision = store.run(lambda: store.keys.claim(retry_of(claim), POLICY))
            second = executed(store.run(lambda: store.keys.claim(other, POLICY)))
        assert isinstance(decision, Outstanding), "a node whose clock is fast must not end a lease"
        assert 0 <= second.created_at - first.created_at < HOUR


@contextlib.contextmanager
def skewed(by_ms: int) -> Iterator[None]:
    """The application's wall clock is wrong; the store's is not."""
    true = time.time

    def wrong() -> float:
        return true() + by_ms / 1000

    def wrong_ns() -> int:
        return int(wrong() * 1e9)

    with mock.patch("time.time", wrong), mock.patch("time.time_ns", wrong_ns):
        yield
