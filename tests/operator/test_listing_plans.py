"""What an operator lists, and what the reaper prunes, is found by an index: plans on a large table, and the
rows that they read. ``SAMEKEY_PLAN_ROWS=5000000`` makes it larger; the rows that are read stay the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lab.servers.postgres import NamedServer
from samekey.core.claim import scope_of
from samekey.core.program import Statement
from samekey.stores.sql.queries import queries_for
from tests.chosen import whole
from tests.operator.test_upkeep_plans import nodes_of, read_by
from tests.operator.world import World

pytestmark = whole

QUERIES = queries_for("postgres")
ROWS = int(os.environ.get("SAMEKEY_PLAN_ROWS", "200000"))
TENANTS, RARE, LIMIT, LOOKED, SLICE = 200, 1000, 50, 10_000, 5000
FILL = """
    insert into samekey.keys (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt, attempts,
        created_at, last_run_at, expires_at, answer_version, downstream, ttl_ms, ttl_from, after_expiry
    )
    select length(tenant) || ':' || tenant, 'key ' || n, md5(n::text), tenant,
        case when n = %(rows)s / 2 then 'POST /rare' else 'POST /' || n %% 20 end, '\\x00', '1',
        case n %% %(rare)s when 0 then 'unknown' when 1 then 'dead_letter' when 2 then 'failed_retryable'
            when 3 then 'pending' else 'completed' end,
        'leased', 'attempt ' || n, 1, n, n, 4102444800000 + n, 1, md5('d' || n), 1, 'completion', 'new'
    from (
        select n, '=tenant ' || n %% %(tenants)s as tenant from generate_series(1, %(rows)s) as n
    ) as numbers
"""
FILL_AUDIT = """
    insert into samekey.audit (at, operation_id, scope, key, tenant, to_state, actor)
    select n, md5(n::text), 'gone', 'key ' || n, '=gone', 'completed', 'request'
    from generate_series(1, %s) as n
"""
FILL_EFFECTS = """
    insert into samekey.effects (operation_id, step, kind, place, attempt, tenant, provider_id, sends)
    select md5(n::text), '', 'leased', '0', 'a', '=t', 'ch_' || n, 1 from generate_series(1, %s) as n
"""
NOTHING: dict[str, Any] = {
    **dict.fromkeys(("now", "state", "tenant", "key", "endpoint", "created_after", "created_before")),
    **dict.fromkeys(("first_scope", "last_scope", "first_call", "last_call"), ""),
    "limit": LIMIT,
    "looked": LOOKED,
}


@pytest.fixture(scope="module")
def table(postgres_server: NamedServer) -> Iterator[psycopg.Connection[Any]]:
    url = postgres_server.create_database()
    World(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter table samekey.keys disable trigger user")
        connection.execute(FILL, {"rows": ROWS, "rare": RARE, "tenants": TENANTS})
        connection.execute(FILL_AUDIT, [ROWS])
        connection.execute(FILL_EFFECTS, [ROWS // 2])
        connection.execute("vacuum analyze samekey.keys, samekey.audit, samekey.effects")
        connection.execute("set plan_cache_mode to force_custom_plan")
        yield connection
    postgres_server.drop_database(url)


def explained(connection: psycopg.Connection[Any], name: str, **given: Any) -> list[dict[str, Any]]:
    sql, parameters = Statement(QUERIES[name], {**NOTHING, **given}).render("numeric")
    connection.execute(f"prepare probe as {sql}".encode())
    try:
        with connection.transaction(force_rollback=True):
            places = ", ".join(["%s"] * len(parameters))
            cursor = psycopg.ClientCursor(connection)
            text = cursor.mogrify(f"explain (analyze, format json) execute probe ({places})", [*parameters])
            [[found]] = connection.execute(text.encode()).fetchall()
    finally:
        connection.execute("deallocate probe")
    return [*nodes_of(found[0]["Plan"])]


def scope(tenant: str) -> dict[str, str]:
    first, call = scope_of(tenant), scope_of(f"@{tenant}")
    return {
        "tenant": tenant,
        **{
            "first_scope": first,
            "last_scope": first + "\x7f",
            "first_call": call,
            "last_call": call + "\x7f",
        },
    }


@pytest.mark.parametrize(
    ("name", "given", "most"),
    [
        ("list_keys", {}, 2 * LIMIT),
        ("list_keys", {"state": "completed"}, 3 * LIMIT),
        ("list_keys", {"state": "unknown"}, 2 * LIMIT),
        ("list_keys", {"state": "dead_letter"}, 2 * LIMIT),
        ("list_keys", {"state": "failed_retryable"}, 2 * LIMIT),
        ("list_keys", {"state": "unknown", "endpoint": "POST /0"}, 2 * ROWS // RARE),
        ("list_keys", {"created_after": ROWS // 2, "created_before": ROWS // 2 + 10}, 2 * LIMIT),
        ("list_keys", scope("=tenant 7"), 3 * LIMIT * TENANTS),
        ("list_keys", {**scope("=tenant 7"), "key": "key 7"}, 2 * LIMIT),
        ("look_through_keys", {"endpoint": "POST /rare"}, 3 * LOOKED),
        ("looked_through_to", {}, 2 * LOOKED),
        ("ids_like", {"first": "c4ca4238", "last": "c4ca4238\x7f"}, 20),
        ("noted_by_provider", {"provider_id": "ch_77"}, 20),
        ("find_by_downstream", {"downstream": "nobody's"}, 20),
        ("audit_slice", {"after": ROWS // 2, "before": ROWS, "batch": SLICE}, 4 * SLICE),
        ("prune_audit", {"after": 0, "last": SLICE, "before": ROWS}, 4 * SLICE),
        ("list_dead_jobs", {}, 20),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_it_reads_what_it_shows(
    table: psycopg.Connection[Any], name: str, given: dict[str, Any], most: int
) -> None:
    nodes = explained(table, name, **given)
    scanned = [node for node in nodes if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    assert {node["Relation Name"] for node in scanned} <= {"jobs", "made"}, "which are empty here"
    assert read_by(nodes) <= most
