"""The partitioned key table of docs/scaling.md: the page's own SQL, and the conformance suite on it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from samekey.drivers.url import drivers_for
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import SyncSubject, run_all
from tests.chosen import whole
from tests.stores.conftest import migrated

pytestmark = whole


PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def partitioning() -> str:
    (found,) = [
        block
        for block in re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        if "partition by hash" in block
    ]
    return str(found)


@pytest.fixture
def partitioned_url(postgres_url: str) -> str:
    migrated(postgres_url).sync.close()
    with psycopg.connect(postgres_url) as connection:  # one transaction, as the page says
        before = indexes(connection)
        connection.execute(partitioning().encode())
        assert indexes(connection) == before, "the page has forgotten an index"
    return postgres_url


def indexes(connection: psycopg.Connection[tuple[str]]) -> set[str]:
    rows = connection.execute(
        "select indexname from pg_indexes where schemaname = 'samekey' and tablename = 'keys'"
    ).fetchall()
    return {re.sub(r"pkey\d*$", "pkey", row[0]) for row in rows}


def test_a_partitioned_key_table_conforms(partitioned_url: str) -> None:
    drivers, queries = drivers_for(partitioned_url), queries_for("postgres")
    assert len(run_all(SyncSubject(drivers.sync, SqlKeys(queries), queries))) > 50
    drivers.sync.close()


def test_a_claim_looks_into_one_partition(partitioned_url: str) -> None:
    sql, names = queries_for("postgres")["find"].rendered["format"]
    values: dict[str, str | None] = {"scope": "7:=tenant", "key": "k", "now": None}
    with psycopg.connect(partitioned_url) as connection:
        plan = connection.execute(f"explain {sql}".encode(), [values[name] for name in names]).fetchall()
    scanned = {match for row in plan for match in re.findall(r" on (keys_\d+)", row[0])}
    assert len(scanned) == 1, plan
