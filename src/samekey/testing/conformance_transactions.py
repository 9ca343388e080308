"""Conformance, part four: inside somebody's transaction, for stores that have one."""

from __future__ import annotations

import contextlib

from ..core.decide import Execute, Outstanding
from .conformance_claims import ANSWER, POLICY, hold
from .conformance_subject import NOW, TransactionalSubject, must_read, new_claim, retry_of


class TransactionConformance:
    """Each test takes the store under test and one body serves every store."""

    def test_a_claim_that_finds_a_record_leaves_the_callers_transaction_whole(
        self, store: TransactionalSubject
    ) -> None:
        claim, other = new_claim(), new_claim()
        hold(store, claim)
        with store.transaction() as transaction:
            decision = transaction.run(store.keys.claim(retry_of(claim), POLICY, now=NOW))
            assert isinstance(decision, Outstanding)
            transaction.run(store.keys.claim(other, POLICY, now=NOW))
        assert must_read(store, other).attempt == other.attempt

    def test_a_claim_is_undone_with_the_callers_transaction(self, store: TransactionalSubject) -> None:
        claim = new_claim()
        with contextlib.suppress(ZeroDivisionError), store.transaction() as transaction:
            transaction.run(store.keys.claim(claim, POLICY, now=NOW))
            _ = 1 / 0
        assert store.run(lambda: store.keys.read(claim.scope, claim.key)) is None

    def test_claim_and_completion_appear_together(self, store: TransactionalSubject) -> None:
        claim = new_claim()
        with store.transaction() as transaction:
            decision = transaction.run(store.keys.claim(claim, POLICY, now=NOW))
            assert isinstance(decision, Execute)
            lease = decision.record.lease(claim.lease_ms)
            transaction.run(store.keys.complete(lease, ANSWER, now=NOW))
            assert store.run(lambda: store.keys.read(claim.scope, claim.key)) is None
        assert must_read(store, claim).answer == ANSWER
