"""Answers that are too large for an item are withheld, and never lead to a second run. Exact sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from cryptography.fernet import Fernet

from samekey.core.claim import Claim
from samekey.core.decide import Replay, Withheld
from samekey.core.record import Answer, Lease, encode_headers
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.drivers.wrappers.encrypted import EncryptedDriver, Sealing
from samekey.encryption import fernet
from samekey.stores.dynamodb.finding import DynamoFinding
from samekey.stores.dynamodb.plans import LARGEST_ANSWER
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.protocols import Actor
from samekey.testing.conformance import new_claim, retry_of
from samekey.testing.conformance_claims import POLICY, claim_at, complete, hold, lose
from samekey.testing.conformance_subject import NOW, must_read
from tests.chosen import whole
from tests.dynamodb.subjects import SyncDynamoSubject

pytestmark = whole


HEADERS = ((b"content-type", b"application/json"),)
OVERHEAD = len(encode_headers(HEADERS))
FINDING = DynamoFinding(DynamoStatements())


@pytest.fixture(scope="module")
def store(dynamodb_session_url: str) -> Iterator[SyncDynamoSubject]:
    subject = SyncDynamoSubject(dynamodb_session_url)
    yield subject
    subject.close()


def answer_of(size: int) -> Answer:
    """An answer that takes so many bytes when it is stored."""
    return Answer(201, HEADERS, b"x" * (size - OVERHEAD))


def held(store: SyncDynamoSubject, **changes: str) -> Claim:
    claim = retry_of(new_claim(), **changes)
    hold(store, claim)
    return claim


def test_the_largest_answer_is_replayed(store: SyncDynamoSubject) -> None:
    claim = held(store)
    assert complete(store, claim, answer_of(LARGEST_ANSWER)) == NOW + claim.ttl_ms
    decision = claim_at(store, retry_of(claim))
    assert isinstance(decision, Replay) and decision.record.answer == answer_of(LARGEST_ANSWER)


@pytest.mark.parametrize("size", [LARGEST_ANSWER + 1, 5_000_000])
def test_an_answer_that_is_one_byte_larger_is_withheld(store: SyncDynamoSubject, size: int) -> None:
    claim = held(store)
    assert complete(store, claim, answer_of(size), provider_id="ch_1") == NOW + claim.ttl_ms
    decision = claim_at(store, retry_of(claim))
    assert isinstance(decision, Withheld)
    assert (decision.record.provider_id, decision.record.completed_at) == ("ch_1", NOW)


def test_an_answer_that_dynamodb_finds_too_large_is_withheld(store: SyncDynamoSubject) -> None:
    claim = held(store, endpoint="POST /" + "long" * 5_000)  # what we did not count on
    assert complete(store, claim, answer_of(LARGEST_ANSWER)) == NOW + claim.ttl_ms
    assert isinstance(claim_at(store, retry_of(claim)), Withheld)


def test_what_somebody_found_out_is_withheld_too(store: SyncDynamoSubject) -> None:
    actor = Actor("operator", "the provider says so")
    for size, kept in ((LARGEST_ANSWER, True), (LARGEST_ANSWER + 1, False)):
        claim, answer = held(store), answer_of(size)
        lose(store, claim)
        assert store.run(partial(FINDING.executed, claim.id, answer, actor, now=NOW))
        record = must_read(store, claim)
        assert record.state is State.COMPLETED
        assert (record.answer == answer) is kept and record.withheld is not kept


def test_encryption_makes_answers_larger(store: SyncDynamoSubject) -> None:
    """It is the size in the table that counts: base64 takes four bytes for three."""
    driver = EncryptedDriver(store.drivers.sync, Sealing(fernet(Fernet.generate_key())))
    for size, kind in ((LARGEST_ANSWER * 7 // 10, Replay), (LARGEST_ANSWER * 8 // 10, Withheld)):
        claim = new_claim()
        lease = Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)
        run(driver, partial(store.keys.claim, claim, POLICY, now=NOW))
        run(driver, partial(store.keys.complete, lease, answer_of(size), now=NOW))
        decision = run(driver, partial(store.keys.claim, retry_of(claim), POLICY, now=NOW))
        assert isinstance(decision, kind), size
