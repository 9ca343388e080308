"""The state machine walks DynamoDB and the plain model side by side; then every item is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase

from samekey.core.states import Event, State, sources
from samekey.stores.dynamodb.items import KEPT_BEYOND, place, value_of
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.dynamodb.upkeep import DynamoUpkeep
from tests.dynamodb.subjects import AsyncDynamoSubject, SyncDynamoSubject
from tests.stores.test_model import walk

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
        state = value_of(item, "state")
        assert value_of(item, "queue") == place(State(state), value_of(item, "pk")), item
        assert value_of(item, "due") == value_of(item, DUE[state]), item
        forgotten = value_of(item, "forget_after")
        assert (forgotten is not None) == (state in sources(Event.REAP)), item
        if forgotten is not None:
            assert forgotten >= (value_of(item, "expires_at") + KEPT_BEYOND) // 1000, item
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
