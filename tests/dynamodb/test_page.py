"""What the page says of permissions, sizes and the table is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import samekey
from samekey.drivers.dynamodb.clock import TOLERATED
from samekey.stores.dynamodb.items import KEPT_BEYOND, SHARDS
from samekey.stores.dynamodb.plans import LARGEST_ANSWER
from samekey.stores.dynamodb.table import DEFINITION, FORGET
from samekey.testing.conformance import new_claim
from samekey.testing.conformance_claims import hold
from tests.chosen import whole
from tests.dynamodb.subjects import SyncDynamoSubject

pytestmark = whole


PAGE = (Path(__file__).parents[2] / "docs/stores/dynamodb.md").read_text()
SOURCE = Path(samekey.__file__).parent / "stores/dynamodb"


def test_the_permissions_are_those_of_the_requests() -> None:
    code = "".join(file.read_text() for file in SOURCE.glob("*.py"))
    made = set(re.findall(r'Request\(\s*"(\w+)"', code))
    assert set(re.findall(r"`dynamodb:(\w+)`", PAGE)) == made
    assert len(made) > 5


def test_the_figures_are_the_codes() -> None:
    assert f"{LARGEST_ANSWER:,} bytes" in PAGE
    assert f"over {len(SHARDS)} partitions" in PAGE and f"{len(SHARDS)} `Query`" in PAGE
    assert f"{KEPT_BEYOND // 86_400_000} days after their expiry" in PAGE
    assert TOLERATED == 5 and "more than five seconds wrong" in PAGE


def test_the_table_is_the_definition() -> None:
    for index in DEFINITION["GlobalSecondaryIndexes"]:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| index `{index['IndexName']}`"))
        projected = index["Projection"].get("NonKeyAttributes", [])
        names = [part["AttributeName"] for part in index["KeySchema"]]
        assert re.findall(r"`(\w+)`", row) == [index["IndexName"], *names, *projected]
    assert f"`{FORGET}`" in PAGE


def test_a_record_without_its_answer_is_under_a_kilobyte(dynamodb_session_url: str) -> None:
    store = SyncDynamoSubject(dynamodb_session_url)
    claim = new_claim(scope="s" * 100, key="k" * 36, body=b"f" * 32)
    hold(store, claim)
    item = store.item(claim.scope, claim.key)
    store.close()
    assert item is not None
    size = sum(len(name) + len(next(iter(value.values()))) for name, value in item.items())
    assert 500 < size < 1024, "a number takes less than its digits"
