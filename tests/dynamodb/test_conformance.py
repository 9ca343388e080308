"""The conformance suite on DynamoDB, sync and async."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samekey.core.decide import Replay, Withheld
from samekey.testing.conformance import KeyStoreConformance, Subject, new_claim, retry_of
from samekey.testing.conformance_claims import claim_at, complete, hold
from samekey.testing.conformance_records import ANSWERS
from tests.chosen import whole
from tests.dynamodb.subjects import AsyncDynamoSubject, SyncDynamoSubject


class DynamoConformance(KeyStoreConformance):
    """All of it. One answer of the suite is larger than an item of DynamoDB may be, and so is withheld."""

    def test_an_answer_is_replayed_byte_for_byte(self, store: Subject) -> None:
        withheld = []
        for name, answer in ANSWERS.items():
            claim = new_claim()
            hold(store, claim)
            complete(store, claim, answer)
            decision = claim_at(store, retry_of(claim))
            if isinstance(decision, Withheld):
                withheld.append(name)
            else:
                assert isinstance(decision, Replay), f"{name}: {decision}"
                assert decision.record.answer == answer, name
        assert withheld == ["one mebibyte"]


@pytest.fixture(scope="module")
def sync_subject(dynamodb_session_url: str) -> Iterator[Subject]:
    subject = SyncDynamoSubject(dynamodb_session_url)
    yield subject
    subject.close()


@pytest.fixture(scope="module")
def async_subject(dynamodb_session_url: str) -> Iterator[Subject]:
    subject = AsyncDynamoSubject(dynamodb_session_url)
    yield subject
    subject.close()


@whole
class TestSync(DynamoConformance):
    @pytest.fixture
    def store(self, sync_subject: Subject) -> Subject:
        return sync_subject


@whole
class TestAsync(DynamoConformance):
    @pytest.fixture
    def store(self, async_subject: Subject) -> Subject:
        return async_subject
