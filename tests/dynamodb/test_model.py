"""The state machine walks DynamoDB and the plain model side by side; then every item is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase

from samekey.core.decide import Execute
from samekey.core.policy import ietf
from samekey.core.record import LAST_TIME, Answer, Record
from samekey.core.states import Mode, State, StateEvent, sources
from samekey.stores.dynamodb.finding import DynamoFinding
from samekey.stores.dynamodb.items import KEPT_BEYOND, is_pk, place, value_of
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.dynamodb.upkeep import DynamoUpkeep
from samekey.stores.protocols import Actor
from tests.chosen import whole
from tests.dynamodb.subjects import AsyncDynamoSubject, SyncDynamoSubject
from tests.operator.world import claim_of
from tests.stores.test_model import walk

pytestmark = whole


DUE = {
    "in_progress": "locked_until",
    "unknown": "reconcile_after",
    "completed": "expires_at",
    "failed_retryable": "expires_at",
    "expired": "expires_at",
}


def assert_in_order(client: Any, table: str) -> int:
    """Each record stands in the queue of its state, and only what is settled may be deleted by DynamoDB."""
    items = client.scan(TableName=table, ConsistentRead=True)["Items"]
    for item in items:
        if not is_pk(value_of(item, "pk")):
            continue  # it leads from a provider's id to its record
        state = value_of(item, "state")
        assert value_of(item, "queue") == place(State(state), value_of(item, "pk")), item
        assert value_of(item, "due") == value_of(item, DUE[state]), item
        forgotten = value_of(item, "forget_after")
        assert (forgotten is not None) == (state in sources(StateEvent.REAP)), item
        if forgotten is not None:
            kept = min(value_of(item, "expires_at") + KEPT_BEYOND, LAST_TIME)
            assert forgotten >= kept // 1000, item
        known = value_of(item, "provider_id")
        assert (known is None) == (value_of(item, "by_provider") is None), item
    return len(items)


@pytest.mark.parametrize("kind", [SyncDynamoSubject, AsyncDynamoSubject])
def test_dynamodb_tells_the_story_of_the_model(
    dynamodb_url: str, kind: Callable[[str], SyncDynamoSubject | AsyncDynamoSubject]
) -> None:
    subject = kind(dynamodb_url)
    # Looking for a smaller failure would take minutes.
    walk(subject, DynamoUpkeep(DynamoStatements()), max_examples=3, phases=[Phase.generate])
    assert_in_order(subject.client, subject.table)
    subject.close()


def test_an_answer_that_came_late_in_a_life_is_kept_for_its_whole_retention(dynamodb_url: str) -> None:
    """When DynamoDB may delete it follows from the expiry that is written with it, not from the time at which
    the key was first used."""
    subject = SyncDynamoSubject(dynamodb_url)
    finding, day, minute = DynamoFinding(DynamoStatements()), 86_400_000, 60_000
    now = 45 * day

    def claimed(at: int) -> Record:
        made = claim_of("k", Mode.LEASED, minute, day, "acme", "POST /pay")
        made = replace(made, id=subject.keys.operation_id(made.id, made.scope, made.key))
        decision = subject.run(lambda: subject.keys.claim(made, ietf(), now=at))
        assert isinstance(decision, Execute)
        return decision.record

    def forgotten(record: Record) -> int:
        item = subject.item(record.scope, record.key)
        assert item is not None
        assert_in_order(subject.client, subject.table)
        return int(value_of(item, "forget_after")) * 1000

    first = claimed(0)
    subject.run(lambda: subject.keys.lose(first.lease(minute), "TimeoutError", now=1))
    assert subject.run(lambda: finding.not_executed(first.id, Actor("operator"), now=now))
    second = claimed(now + 1)
    subject.run(lambda: subject.keys.fail(second.lease(minute), "x", now=now + 2))
    assert forgotten(second) >= now + 2 + day + KEPT_BEYOND
    third = claimed(now + 2 * minute)
    assert third.attempts == 3
    expires_at = subject.run(
        lambda: subject.keys.complete(third.lease(minute), Answer(200), now=now + 3 * minute)
    )
    assert expires_at == now + 3 * minute + day
    assert forgotten(third) >= expires_at + KEPT_BEYOND
    subject.close()
