"""A pass over a large table touches only what is due: the plans of upkeep, and the rows that they read.

A quarter of a million records, a few thousand of them due, and as many jobs, all done. The plan must not
depend on what the planner knows: the statements run with their generic plan, on tables that were analysed and
on some that never were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lab.servers.postgres import NamedServer
from samekey.core.program import Statement, Value
from samekey.stores.sql.queries import queries_for
from tests.chosen import whole
from tests.operator.world import World

QUERIES = queries_for("postgres")
ROWS, DUE = 250_000, 1_000
BATCH = 500
FILL = """
    insert into samekey.keys (
        scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt, attempts,
        locked_until, reconcile_after, created_at, last_run_at, expires_at, answer_version,
        ttl_ms, ttl_from, after_expiry
    )
    select '7:=tenant', 'key ' || n, 'id ' || n, '=tenant', 'POST /', '\\x00', '1',
        (array['in_progress', 'completed', 'completed', 'unknown', 'failed_retryable', 'pending',
               'expired'])[1 + n %% 7],
        'leased', 'attempt ' || n, 1, due, due, n, due, due, 1, 1, 'completion',
        (array['new', 'ask'])[1 + n / 7 %% 2]
    from (
        select n, case when n <= %s then n else 4102444800000 + n end as due
        from generate_series(1, %s) as n
    ) as numbers
"""
FILL_JOBS = """
    insert into samekey.jobs (
        id, operation_id, scope, key, tenant, name, payload, answers, state, attempts, due_at, created_at,
        sends
    )
    select 'job ' || n, 'id ' || n, '7:=tenant', 'key ' || n, '=tenant', 'settle', '\\x00', 1, 'done', 1, n,
        n, case when n %% 7 <> 5 then 1 else 0 end
    from generate_series(1, %s) as n
"""
VALUES: dict[str, Value] = {
    "now": 1_000_000_000,
    "batch": BATCH,
    "keep_ms": 1,
    "lease_ms": 1,
    "without": ["-"],
    "timeout_ms": 0,
    "limit": 10_000,
    "ids": ["id 1", "id 2"],
}


@pytest.fixture(scope="module", params=["never analysed", pytest.param("analysed", marks=whole)])
def table(request: pytest.FixtureRequest, postgres_server: NamedServer) -> Iterator[psycopg.Connection[Any]]:
    url = postgres_server.create_database()
    World(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        # Nothing behind our back: the statistics are part of what is tested.
        connection.execute("alter table samekey.keys set (autovacuum_enabled = off)")
        connection.execute("alter table samekey.jobs set (autovacuum_enabled = off)")
        # The triggers would make as many rows of audit, which nobody reads here.
        connection.execute("alter table samekey.keys disable trigger user")
        connection.execute(FILL, [7 * DUE, ROWS])
        connection.execute(FILL_JOBS, [ROWS])
        if request.param == "analysed":
            connection.execute("vacuum analyze samekey.keys, samekey.jobs")
        yield connection
    postgres_server.drop_database(url)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


def explain(connection: psycopg.Connection[Any], name: str) -> tuple[list[dict[str, Any]], float]:
    """The nodes of a statement that was really run and rolled back, and its time in milliseconds."""
    sql, parameters = Statement(QUERIES[name], VALUES).render("numeric")
    literals = ", ".join(
        "null" if v is None else f"array{list(v)}" if isinstance(v, list) else str(v) for v in parameters
    )
    connection.execute("set plan_cache_mode to force_generic_plan")
    connection.execute(f"prepare probe as {sql}".encode())
    try:
        with connection.transaction(force_rollback=True):
            text = f"explain (analyze, format json) execute probe ({literals})"
            [[found]] = connection.execute(text.encode()).fetchall()
    finally:
        connection.execute("deallocate probe")
    return [*nodes_of(found[0]["Plan"])], float(found[0]["Execution Time"])


def read_by(nodes: list[dict[str, Any]]) -> int:
    """Rows that scans produced or threw away."""
    scans = [node for node in nodes if "Scan" in node["Node Type"]]
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in scans
    )


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("sweep", {"keys_lease", "keys_id"}),
        ("reap", {"keys_expiry", "jobs_operation", "keys_id"}),
        ("reap_tombstones", {"keys_tombstones", "jobs_operation", "keys_id"}),
        ("bury_answers", {"keys_burial", "jobs_operation", "keys_id"}),
        ("bury_softly", {"keys_expiry", "jobs_operation", "keys_id"}),
        ("take_unknown", {"keys_reconcile", "keys_id"}),
    ],
)
def test_a_batch_reads_what_is_due_and_no_more(
    table: psycopg.Connection[Any], name: str, indexes: set[str]
) -> None:
    nodes, milliseconds = explain(table, name)
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert indexes <= {node.get("Index Name") for node in nodes}
    # The batch, once by each index: found, looked up among the jobs, changed. A bitmap counts its rows twice.
    assert read_by(nodes) <= 2 * len(indexes) * BATCH
    changed = nodes[0]
    assert changed["Actual Rows"] == BATCH
    assert milliseconds < 500, "a thousand times less than a slow machine needs for the whole table"


@pytest.mark.parametrize("name", ["sweep_unbegun", "find_abandoned"])
def test_nothing_reads_the_whole_table(table: psycopg.Connection[Any], name: str) -> None:
    nodes, _ = explain(table, name)
    scanned = [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert not [node for node in scanned if node["Relation Name"] in {"keys", "jobs"}]
    # Of the due ones some are of other states, and are passed over.
    assert read_by(nodes) <= 7 * DUE + 4 * BATCH


@pytest.mark.parametrize("name", ["reap_jobs", "reap_phases", "reap_inputs"])
def test_the_parts_are_found_by_index(table: psycopg.Connection[Any], name: str) -> None:
    table.execute("set enable_seqscan to off")  # the tables are empty, and a scan of nothing is cheapest
    try:
        nodes, _ = explain(table, name)
    finally:
        table.execute("reset enable_seqscan")
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]


def test_a_whole_pass_leaves_the_rest(table: psycopg.Connection[Any]) -> None:
    [[before]] = table.execute(
        "select count(*) from samekey.keys where expires_at > 4102444800000"
    ).fetchall()
    with table.transaction(force_rollback=True):
        total = 0
        for name in ("bury_answers", "reap", "reap_tombstones"):
            sql, parameters = Statement(QUERIES[name], VALUES).render("numeric")
            literals = ", ".join(str(value) for value in parameters)
            table.execute(f"prepare pass as {sql}".encode())
            while gone := len(table.execute(f"execute pass ({literals})".encode()).fetchall()):
                total += gone
            table.execute("deallocate pass")
        assert total == 4 * DUE
        [[after]] = table.execute(
            "select count(*) from samekey.keys where expires_at > 4102444800000"
        ).fetchall()
    assert after == before
