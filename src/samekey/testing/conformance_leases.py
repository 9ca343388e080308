"""Conformance, part two: leases and fencing.

An old holder, however late it wakes, changes nothing that another has taken; while its attempt is still the
current one, its late result is the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.claim import Claim
from ..core.decide import Replay
from ..core.program import Program
from ..core.record import Answer, Lease, Record
from ..core.states import Mode, State
from .conformance_claims import ANSWER, claim_at, complete, expire, fail, hold, lose
from .conformance_subject import (
    DAY,
    NOW,
    SECOND,
    Subject,
    executed,
    must_read,
    new_claim,
    retry_of,
)

LATE = NOW + 2 * DAY
OTHER = Answer(409, (), b"somebody else's")


def _acts(store: Subject, lease: Lease, now: int) -> dict[str, Callable[[], Program[Any]]]:
    """Everything that a holder can do."""
    keys = store.keys
    return {
        "complete": lambda: keys.complete(lease, OTHER, provider_id="late", now=now),
        "fail": lambda: keys.fail(lease, "late", now=now),
        "lose": lambda: keys.lose(lease, "late", provider_id="late", now=now),
        "release": lambda: keys.release(lease, now=now),
        "renew": lambda: keys.renew([lease], now=now),
    }


def _assert_powerless(store: Subject, old: Lease, now: int, case: str) -> None:
    before = must_read(store, _name(old))
    for act, factory in _acts(store, old, now).items():
        assert not store.run(factory), f"{case}: the old holder's {act} was taken"
        assert must_read(store, _name(old)) == before, f"{case}: the old holder's {act} changed the record"


def _name(lease: Lease) -> Claim:
    return new_claim(scope=lease.scope, key=lease.key)


def _held(store: Subject, claim: Claim, now: int = NOW) -> tuple[Record, Lease]:
    record = executed(claim_at(store, claim, now))
    return record, record.lease(claim.lease_ms)


class LeaseConformance:
    """Each test takes the store under test and one body serves every store."""

    def test_an_old_holder_is_powerless_after_a_retry(self, store: Subject) -> None:
        claim = new_claim()
        _, old = _held(store, claim)
        fail(store, claim)
        hold(store, retry_of(claim))
        _assert_powerless(store, old, NOW, "retried")

    def test_an_old_holder_is_powerless_after_its_lease_was_taken_over(self, store: Subject) -> None:
        for mode in (Mode.REPEATABLE, Mode.ATOMIC, Mode.PHASED):
            claim = new_claim(mode=mode)
            _, old = _held(store, claim)
            hold(store, retry_of(claim), NOW + claim.lease_ms)
            _assert_powerless(store, old, NOW + claim.lease_ms, str(mode))

    def test_an_old_holder_is_powerless_after_release_and_claim(self, store: Subject) -> None:
        claim = new_claim()
        _, old = _held(store, claim)
        assert store.run(lambda: store.keys.release(old, now=NOW)) is True
        assert store.run(lambda: store.keys.read(claim.scope, claim.key)) is None
        hold(store, retry_of(claim))
        _assert_powerless(store, old, NOW, "released")

    def test_an_old_holder_is_powerless_after_reaping_and_claim(self, store: Subject) -> None:
        claim = new_claim()
        _, old = _held(store, claim)
        store.remove(claim.scope, claim.key)
        hold(store, retry_of(claim))
        _assert_powerless(store, old, NOW, "reaped")

    def test_an_old_holder_is_powerless_after_expiry_and_reuse(self, store: Subject) -> None:
        for tombstone in (False, True):
            claim = new_claim()
            _, old = _held(store, claim)
            complete(store, claim)
            if tombstone:
                assert expire(store, claim, LATE) is True
            hold(store, retry_of(claim), LATE)
            _assert_powerless(store, old, LATE, "reused")

    def test_an_old_holder_cannot_touch_the_new_holders_answer(self, store: Subject) -> None:
        claim = new_claim(mode=Mode.REPEATABLE)
        _, old = _held(store, claim)
        hold(store, retry_of(claim), NOW + claim.lease_ms)
        complete(store, claim, now=NOW + claim.lease_ms)
        _assert_powerless(store, old, NOW + claim.lease_ms, "completed by another")

    def test_nobody_can_act_on_a_key_that_is_not_there(self, store: Subject) -> None:
        lease = Lease("nowhere", "nothing", "nobody", SECOND)
        for act, factory in _acts(store, lease, NOW).items():
            assert not store.run(factory), act

    def test_another_scopes_record_is_out_of_reach(self, store: Subject) -> None:
        claim = new_claim()
        record, mine = _held(store, claim)
        for lease in (
            Lease("another scope", mine.key, mine.attempt, mine.duration_ms),
            Lease(mine.scope, "another key", mine.attempt, mine.duration_ms),
        ):
            for act, factory in _acts(store, lease, NOW).items():
                assert not store.run(factory), act
        assert must_read(store, claim) == record

    # The current holder, however late

    def test_a_late_result_of_the_current_attempt_is_the_truth(self, store: Subject) -> None:
        def lease_ended(claim: Claim) -> None:
            claim_at(store, retry_of(claim), NOW + claim.lease_ms)  # moves it to unknown

        def overrun(claim: Claim) -> None:
            store.overwrite(claim.scope, claim.key, state="failed_retryable", locked_until=None)

        moves: dict[str, Callable[[Claim], object]] = {
            "in_progress": lambda claim: None,
            "unknown": lease_ended,
            "failed_retryable": overrun,
        }
        for state, move in moves.items():
            claim = new_claim()
            _, lease = _held(store, claim)
            move(claim)
            assert must_read(store, claim).state == state
            late = NOW + 10 * claim.lease_ms
            assert complete(store, claim, now=late) == late + DAY, state
            assert must_read(store, claim).attempt == lease.attempt
            record = must_read(store, claim)
            assert (record.state, record.answer) == (State.COMPLETED, ANSWER), state
            assert (record.error_code, record.reconcile_after, record.locked_until) == (None, None, None)
            assert isinstance(claim_at(store, retry_of(claim), late), Replay)

    def test_a_late_proof_that_nothing_happened_settles_an_unknown(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        lose(store, claim)
        assert store.run(lambda: store.keys.fail(lease, "declined", now=NOW)) is True
        record = must_read(store, claim)
        assert (record.state, record.reconcile_after) == (State.FAILED_RETRYABLE, None)

    def test_a_late_release_settles_an_unknown(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        lose(store, claim)
        assert store.run(lambda: store.keys.release(lease, now=NOW)) is True
        assert store.run(lambda: store.keys.read(claim.scope, claim.key)) is None

    def test_a_completion_whose_acknowledgement_was_lost_is_recognised(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        first = store.run(lambda: store.keys.complete(lease, ANSWER, now=NOW))
        record = must_read(store, claim)
        second = store.run(lambda: store.keys.complete(lease, ANSWER, now=NOW + SECOND))
        assert first == second == NOW + DAY
        assert must_read(store, claim) == record

    def test_an_answer_never_changes(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        complete(store, claim)
        record = must_read(store, claim)
        for act, factory in _acts(store, lease, NOW + SECOND).items():
            store.run(factory)
            assert must_read(store, claim) == record, f"{act} changed a completed record"

    def test_a_failure_is_not_renewed(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        fail(store, claim)
        assert store.run(lambda: store.keys.renew([lease], now=NOW)) == set()
        assert must_read(store, claim).locked_until is None

    # Renewal

    def test_many_leases_are_renewed_in_one_statement(self, store: Subject) -> None:
        claims = [new_claim(lease_ms=(index + 1) * SECOND) for index in range(6)]
        leases = [_held(store, claim)[1] for claim in claims]
        store.run(lambda: store.keys.release(leases[1], now=NOW))
        complete(store, claims[2])
        fail(store, claims[3])
        hold(store, retry_of(claims[3]))
        lost = {claim.key: must_read(store, claim) for claim in claims[2:4]}

        program = store.keys.renew(leases, now=NOW + SECOND)
        statement = next(program)
        program.close()
        assert statement.name == "renew"

        still_held = store.run(lambda: store.keys.renew(leases, now=NOW + SECOND))
        assert still_held == {leases[index].attempt for index in (0, 4, 5)}
        for index in (0, 4, 5):
            locked_until = must_read(store, claims[index]).locked_until
            assert locked_until == NOW + SECOND + leases[index].duration_ms, "each by its own duration"
        assert {claim.key: must_read(store, claim) for claim in claims[2:4]} == lost

    def test_no_leases_and_many_leases_can_be_renewed(self, store: Subject) -> None:
        assert store.run(lambda: store.keys.renew([], now=NOW)) == set()
        claim = new_claim()
        _, lease = _held(store, claim)
        strangers = [Lease(claim.scope, f"key {n}", f"attempt {n}", SECOND) for n in range(300)]
        assert store.run(lambda: store.keys.renew([*strangers, lease], now=NOW)) == {lease.attempt}

    def test_a_renewed_lease_does_not_end_when_it_first_would_have(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        half = claim.lease_ms // 2
        assert store.run(lambda: store.keys.renew([lease], now=NOW + half)) == {lease.attempt}
        claim_at(store, retry_of(claim), NOW + claim.lease_ms)
        assert must_read(store, claim).state is State.IN_PROGRESS
        claim_at(store, retry_of(claim), NOW + half + claim.lease_ms)
        assert must_read(store, claim).state is State.UNKNOWN

    def test_a_lost_lease_is_not_renewed(self, store: Subject) -> None:
        claim = new_claim()
        _, lease = _held(store, claim)
        claim_at(store, retry_of(claim), NOW + claim.lease_ms)
        assert store.run(lambda: store.keys.renew([lease], now=NOW + claim.lease_ms)) == set()
        assert must_read(store, claim).state is State.UNKNOWN
