"""What every store must do about retention and what follows it: each life of a key is a new operation."""

from __future__ import annotations

import dataclasses
from functools import partial

from ..core.claim import AfterExpiry
from ..core.decide import Ask, Execute, Gone, Outstanding, Replay
from ..core.program import Program
from ..core.states import State
from .conformance_claims import GONE, POLICY, claim_at, complete, hold, lose
from .conformance_subject import DAY, HOUR, NOW, Subject, lease_of, must_read, new_claim, retry_of


class LifeConformance:
    """Retention, expiry, and the lives of a key."""

    def test_retention_can_count_from_creation(self, store: Subject) -> None:
        claim = dataclasses.replace(new_claim(), ttl_from="creation")
        hold(store, claim)
        assert complete(store, claim, now=NOW + HOUR) == NOW + DAY
        assert must_read(store, claim).expires_at == NOW + DAY

    def test_what_is_settled_after_its_retention_can_still_be_heard(self, store: Subject) -> None:
        """Counted from creation, retention was over before there was an answer."""
        for ttl_ms, kept in ((2 * DAY, HOUR), (HOUR // 2, HOUR // 2)):
            claim = dataclasses.replace(new_claim(ttl_ms=ttl_ms), ttl_from="creation")
            hold(store, claim)
            lose(store, claim)
            late = NOW + 3 * DAY
            assert complete(store, claim, now=late) == late + kept
            assert isinstance(claim_at(store, retry_of(claim), late + kept - 1), Replay)
            assert isinstance(claim_at(store, retry_of(claim), late + kept), Execute)

    def test_what_failed_is_kept_from_then_on(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        lease = lease_of(must_read(store, claim), claim)
        store.run(lambda: store.keys.fail(lease, "x", now=NOW + 3 * DAY))
        assert must_read(store, claim).expires_at == NOW + 3 * DAY + claim.ttl_ms

    def test_what_follows_expiry_is_the_records_own(self, store: Subject) -> None:
        """Neither another policy nor another declaration turns a 410 into a second run, or the reverse."""
        choices: tuple[tuple[AfterExpiry, AfterExpiry], ...] = (("gone", "new"), ("new", "gone"))
        for first, second in choices:
            claim = dataclasses.replace(new_claim(), after_expiry=first)
            hold(store, claim)
            complete(store, claim)
            late = NOW + claim.ttl_ms
            for policy in (GONE, POLICY):
                again = dataclasses.replace(retry_of(claim), after_expiry=second)
                decision = claim_at(store, again, late, policy)
                assert isinstance(decision, Gone if first == "gone" else Execute | Outstanding), decision

    def test_a_life_that_came_in_between_is_decided_about_by_itself(self, store: Subject) -> None:
        """Another life began, was done and expired between a decision and its statement; it asks first."""
        claim = new_claim()
        hold(store, claim)
        complete(store, claim)
        between = dataclasses.replace(retry_of(claim), after_expiry="ask")
        late = retry_of(claim)

        def meanwhile() -> Program[object]:
            decision = yield from store.keys.claim(between, POLICY, now=NOW + 2 * DAY)
            assert isinstance(decision, Execute)
            lease = decision.record.lease(between.lease_ms)
            return (yield from store.keys.complete(lease, None, now=NOW + 2 * DAY))

        def race() -> Program[object]:
            program = store.keys.claim(late, POLICY, now=NOW + 10 * DAY)
            statement, waits = next(program), True
            while True:
                if statement.name == "reuse" and waits:
                    waits = False
                    yield from meanwhile()
                rows = yield statement
                try:
                    statement = program.send(rows)
                except StopIteration as done:
                    return done.value

        assert isinstance(store.run(race), Ask)

    def test_a_later_life_that_is_released_does_not_lose_the_former_one(self, store: Subject) -> None:
        """What the provider has made for that must stay known, so the key is free for a retry."""
        claim = new_claim()
        hold(store, claim)
        complete(store, claim)
        late, again = NOW + claim.ttl_ms, retry_of(claim)
        assert isinstance(claim_at(store, again, late), Execute)
        lease = lease_of(must_read(store, claim), again)
        assert store.run(lambda: store.keys.release(lease, now=late)) is True
        released = must_read(store, claim)
        assert (released.state, released.life) == (State.FAILED_RETRYABLE, 2)
        assert store.run(lambda: store.keys.release(lease, now=late)) is False
        assert isinstance(claim_at(store, retry_of(claim), late), Execute)
        assert must_read(store, claim).life == 2

    def test_each_life_of_a_key_is_an_operation_of_its_own(self, store: Subject) -> None:
        claim = new_claim()
        hold(store, claim)
        complete(store, claim)
        known = must_read(store, claim)
        for life in (2, 3):
            now = NOW + (life - 1) * 10 * DAY
            again = dataclasses.replace(retry_of(claim), ttl_ms=2 * DAY)
            decision = claim_at(store, again, now)
            assert isinstance(decision, Execute) and decision.reused
            record = must_read(store, claim)
            assert decision.record == record
            assert (record.id, record.life, record.attempts) == (again.id, life, 1)
            assert (record.created_at, record.last_run_at, record.completed_at) == (now, now, None)
            assert (record.ttl_ms, record.after_expiry) == (2 * DAY, "new")
            assert (record.downstream, record.answer) == (known.downstream, None)
            assert store.run(partial(store.keys.read_by_id, known.id)) is None
            found = store.run(partial(store.keys.read_by_id, record.id))
            assert found is not None and found[1] == record
            assert store.run(partial(store.keys.existed, known.id, claim.tenant)) is True
            assert store.run(partial(store.keys.existed, known.id, "=another")) is False
            complete(store, again, now=now)
