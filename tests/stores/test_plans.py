"""Query plans: every statement of a request goes through an index, whatever the planner knows of the table.

On an empty table, on one that was never analysed and on a large one. The plan is that of the statement as it
is sent, with its parameters unknown to the planner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lab.servers.postgres import NamedServer
from samekey.core.claim import lock_number
from samekey.core.program import Statement, Value
from samekey.core.record import Answer
from samekey.drivers.url import drivers_for
from samekey.stores.keys import answer_values, claim_values
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import new_claim
from tests.chosen import stores
from tests.stores.conftest import migrated
from tests.stores.schemas import execute

Connection = psycopg.Connection[Any]
QUERIES = queries_for("postgres")
ROWS = 100_000
GROWN = 20_000
"""Enough that reading all of them is dearer than looking up five, and quick to write."""
CLAIM = new_claim(scope="7:=tenant", key="key 5")

FILL = """
    insert into samekey.keys (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt, attempts,
        locked_until, downstream, provider_id, created_at, last_run_at, expires_at,
        ttl_ms, ttl_from, after_expiry
    )
    select '7:=tenant', 'key ' || n, 'id ' || n, '=tenant', 'POST /', '\\x00', '1',
        (array['in_progress', 'completed', 'completed', 'unknown', 'failed_retryable'])[1 + n %% 5],
        'leased', 'attempt ' || n, 1, n, 'down ' || n, 'ch ' || n, n, n, n, 1, 'completion', 'new'
    from generate_series(1, %s) as n
"""


@pytest.fixture(scope="module", params=stores("never analysed", "empty", "large", first=1))
def table(request: pytest.FixtureRequest, postgres_server: NamedServer) -> Iterator[Connection]:
    """A connection to a database whose table of keys is in that state."""
    url = postgres_server.create_database()
    migrated(url).sync.close()
    with psycopg.connect(url, autocommit=True) as connection:
        if request.param != "empty":
            # Nothing behind our back: the statistics are part of what is tested.
            connection.execute("alter table samekey.keys set (autovacuum_enabled = off)")
            connection.execute(FILL, [ROWS])
        if request.param == "large":
            connection.execute("vacuum analyze samekey.keys")
        yield connection
    postgres_server.drop_database(url)


def lease_values(count: int = 1) -> dict[str, Value]:
    return {
        "scopes": [CLAIM.scope] * count,
        "key_list": [f"key {n}" for n in range(count)],
        "attempts": [f"attempt {n}" for n in range(count)],
        "durations": [60_000] * count,
        "leases": "",
    }


VALUES: dict[str, Value] = {
    **claim_values(CLAIM),
    **answer_values(Answer(201, (), b"paid")),
    "happened": 1,
    "heeded": None,
    "now": None,
    "seen": "attempt 5",
    "life": 2,
    "reused": 1,
    "provider_id": "ch 5",
    "source": "bank",
    "downstream": "down 5",
    "id": "id 5",
    "error_code": "code",
    "lock": lock_number(CLAIM.scope, CLAIM.key),
    "state": "completed",
}
PRIMARY = "keys_pkey"
ONE_KEY = (
    "reserve",
    "find",
    "retry",
    "resume",
    "reuse",
    "end_lease",
    "complete",
    "fail",
    "lose",
    "release",
    "expire",
)


def explain(connection: Connection, name: str, **values: Value) -> list[dict[str, Any]]:
    """The nodes of a statement's generic plan: the one that any parameters must live with."""
    sql, parameters = Statement(QUERIES[name], {**VALUES, **values}).render("numeric")
    connection.execute("set plan_cache_mode to force_generic_plan")
    connection.execute(f"prepare probe as {sql}".encode())
    try:
        literals = ", ".join(_literal(value) for value in parameters)
        text = f"explain (format json, verbose) execute probe ({literals})"
        rows = connection.execute(text.encode()).fetchall()
    finally:
        connection.execute("deallocate probe")
    return list(_nodes(rows[0][0][0]["Plan"]))


def _literal(value: Any) -> str:
    return psycopg.sql.Literal(value).as_string()


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def scans(nodes: list[dict[str, Any]]) -> dict[str, str | None]:
    """How each scan of our table is done: by which index, or None for reading all of it."""
    found = {}
    for place, node in enumerate(nodes):
        kind = node["Node Type"]
        if kind == "Bitmap Heap Scan":
            continue  # its index scan stands below it
        if "Index" in kind or (kind == "Seq Scan" and node.get("Relation Name") == "keys"):
            found[f"{place} {kind}"] = node.get("Index Name")
    return found


def allowed(table: Connection) -> set[str | None]:
    """The primary key. With no rows at all any index is as good, if that plan is not kept (see below)."""
    empty = table.execute("select not exists (select from samekey.keys)").fetchall()[0][0]
    return {PRIMARY, "keys_lease", "keys_expiry"} if empty else {PRIMARY}


@pytest.mark.parametrize("name", ONE_KEY)
def test_a_statement_on_one_key_uses_the_primary_key(table: Connection, name: str) -> None:
    found = scans(explain(table, name))
    assert found, "the table was not looked at"
    # What is left of an operation keeps it; a new life also takes along what the former one had made.
    beside = {"jobs_operation", "phases_pkey", "evidence_operation"} if name in ("reuse", "expire") else set()
    beside |= {"made_pkey", "effects_pkey", "jobs_pkey"} if name == "reuse" else set()
    assert set(found.values()) <= allowed(table) | beside, found


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("find_by_id", "keys_id"),
        ("find_by_downstream", "keys_downstream"),
    ],
)
def test_a_look_up_uses_its_own_index(table: Connection, name: str, index: str) -> None:
    found = scans(explain(table, name))
    assert set(found.values()) == {index}, found


def test_an_effect_is_found_by_the_providers_id_in_its_index(table: Connection) -> None:
    found = scans(explain(table, "find_by_provider_id"))
    indexes = {"effects_provider", "jobs_provider", "effects_pkey", "made_provider", "keys_id"}
    # With no records at all, reading them all is as good; such a plan is made anew when there are some.
    assert set(found.values()) - {None} <= indexes, found
    assert None not in found.values() or PRIMARY not in allowed(table) or len(allowed(table)) > 1, found
    assert "effects_provider" in found.values()


@pytest.mark.parametrize("count", [1, 10, 300])
def test_renewing_many_leases_uses_the_primary_key(table: Connection, count: int) -> None:
    found = scans(explain(table, "renew", **lease_values(count)))
    assert found, "the table was not looked at"
    assert set(found.values()) <= allowed(table), found


READ = """
    select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)), 0)::bigint from pg_class as c
    where c.relnamespace = 'samekey'::regnamespace and c.relname like 'keys%' and c.relkind in ('r', 'i')
"""


@pytest.mark.parametrize("name", stores(*ONE_KEY, "renew"))
def test_a_plan_made_for_an_empty_table_is_not_kept_for_a_full_one(
    postgres_server: NamedServer, template: str, name: str
) -> None:
    """A connection lives longer than the plans that suit its table: the rows read tell what was done."""
    url = postgres_server.create_database(template)
    statement = Statement(QUERIES[name], {**VALUES, **lease_values(5)})
    driver = drivers_for(url).sync
    with psycopg.connect(url) as connection:
        for _ in range(20):  # enough for psycopg to prepare it and for the server to keep its plan
            session = driver.open(connection)
            session.execute(statement)
            session.rollback()
        connection.execute(FILL.replace("1 + n %% 5", "1 + n %% 1").encode(), [GROWN])
        connection.commit()
        session = driver.open(connection)
        session.execute(statement)
        read = connection.execute(READ).fetchall()[0][0]
        session.rollback()
    postgres_server.drop_database(url)
    assert read < 50, f"{name} read {read} rows and index entries to find at most five"


@pytest.fixture(scope="module")
def template(postgres_server: NamedServer) -> str:
    """A migrated database that nothing analyses behind our back."""
    url = postgres_server.create_database()
    migrated(url).sync.close()
    execute(url, "alter table samekey.keys set (autovacuum_enabled = off)")
    return url


@pytest.mark.parametrize("name", ["reserve", "atomic_commit", "atomic_outcome"])
def test_the_arbiter_of_a_conflict_is_the_primary_key(table: Connection, name: str) -> None:
    """Not the unique id: a clash there must be an error, never silently taken for a duplicate."""
    arbiters = [
        node["Conflict Arbiter Indexes"]
        for node in explain(table, name)
        if "Conflict Resolution" in node and node["Relation Name"] == "keys"
    ]
    assert arbiters == [[PRIMARY]]


def test_the_clock_is_read_once_and_not_for_every_row(table: Connection) -> None:
    """statement_timestamp() is stable, so it can be compared with an index; clock_timestamp() could not."""
    waited = QUERIES.expand("{in_time}")  # compared with no column
    for name in QUERIES:
        assert "clock_timestamp" not in QUERIES[name].sql.replace(waited, ""), name
    sql = "select from samekey.keys where state = 'in_progress' and locked_until <= {now} limit 10"
    text, _ = QUERIES.build("sweep", sql).rendered["numeric"]
    table.execute(f"prepare probe as {text}".encode())
    rows = table.execute("explain (format json) execute probe (null)").fetchall()
    table.execute("deallocate probe")
    plan = json.dumps(rows[0][0])
    assert re.search(r'"Index Name": "keys_lease"', plan) or "Seq Scan" in plan
