"""The plans of the outbox's statements: a table full of done jobs costs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from samekey.core.program import Value
from tests.outbox.world import Outbox

DONE, LIVE = 20_000, 1_000
PARAMETERS: dict[str, dict[str, Value]] = {
    "take_jobs": {
        **{
            "token": "t",
            "lease_ms": 1000,
            "name": "quick",
            "batch": 10,
            "suspects": 0,
            "patience_ms": 0,
            "until": 500,
        },
        **{"full": ["x"], "full_list": '["x"]', "here": ["live-7"], "here_list": '["live-7"]'},
    },
    "look_ahead": {"name": "quick", "ahead": 100},
    "due_jobs": {},
    "enter_jobs": {
        **{"attempts": ["a", "b"], "ids": ["live-1", "live-2"]},
        **{"attempt_list": '["a", "b"]', "id_list": '["live-1", "live-2"]'},
    },
    "renew_jobs": {
        "attempts": ["a", "b"],
        "ids": ["live-1", "live-2"],
        "attempt_list": '["a", "b"]',
        "id_list": '["live-1", "live-2"]',
        "lease_ms": 1000,
    },
    "entered_jobs": {"id": "live-1"},
    "finish_job": {"id": "live-1", "attempt": "a", "provider_id": None},
}


# MariaDB's plans are looked at in tests/stores/test_mariadb.py.
pytestmark = pytest.mark.parametrize("outbox", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def full(outbox: Outbox) -> Outbox:
    """Many done jobs, few live ones, and no statistics."""
    columns = (
        "id, operation_id, scope, key, tenant, name, payload, answers, state, attempts, due_at, created_at"
    )
    values = "?, '', '', '', '', 'quick', ?, 0, ?, 0, ?, 0"
    if outbox.dialect == "postgres":
        outbox.ask("alter table {jobs} set (autovacuum_enabled = off)")
        for state, count in (("done", DONE), ("live", LIVE)):
            outbox.ask(
                f"insert into {{jobs}} ({columns}) select ? || n, '', '', '', '', 'quick', '', 0, ?, 0, n, 0 "
                "from generate_series(1, ?::bigint) as n",
                f"{state}-",
                state,
                count,
            )
    else:
        series = "with recursive s(n) as (select 1 union all select n + 1 from s where n < ?)"
        for state, count in (("done", DONE), ("live", LIVE)):
            selected = values.replace("?", "{}").format("? || n", "x''", "?", "n")
            outbox.ask(
                f"insert into {{jobs}} ({columns}) {series} select {selected} from s",
                count,
                f"{state}-",
                state,
            )
    return outbox


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def explain(outbox: Outbox, name: str, *, analyse: bool = False) -> list[dict[str, Any]]:
    sql, parameters = outbox.idempotency.engine.queries.statement(name, None, **PARAMETERS[name]).render(
        "format"
    )
    with psycopg.connect(outbox.url) as connection:
        options = "analyze, format json" if analyse else "format json"
        (found,) = connection.execute(f"explain ({options}) {sql}".encode(), parameters).fetchone() or ()
        connection.rollback()
    plan = found if isinstance(found, list) else json.loads(found)
    return list(nodes(plan[0]["Plan"]))


@pytest.mark.parametrize("name", PARAMETERS)
def test_statements_keep_to_their_index(full: Outbox, name: str) -> None:
    if full.dialect == "sqlite":
        query, parameters = full.idempotency.engine.queries.statement(name, None, **PARAMETERS[name]).render(
            "qmark"
        )
        details = [row[3] for row in full.ask(f"explain query plan {query}", *parameters)]
        assert not any(detail.startswith("SCAN samekey_jobs") and "INDEX" not in detail for detail in details)
        due = dict.fromkeys(("take_jobs", "look_ahead", "due_jobs"), "samekey_jobs_due")
        wanted = (due | {"entered_jobs": "samekey_jobs_operation"}).get(name, "autoindex")
        assert any(wanted in detail for detail in details), details
        return
    for analysed in (False, True):
        if analysed:
            full.ask("analyze {jobs}")
        found = explain(full, name)
        assert not [node for node in found if node["Node Type"] == "Seq Scan"], found
        indexes = {node["Index Name"] for node in found if "Index Name" in node}
        by_name = {
            "take_jobs": {"jobs_due", "jobs_pkey"},
            "look_ahead": {"jobs_due"},
            "due_jobs": {"jobs_due"},
            "entered_jobs": {"jobs_operation"},
        }
        assert indexes == by_name.get(name, {"jobs_pkey"})


def test_a_batch_reads_and_locks_no_more_than_it_takes(full: Outbox) -> None:
    if full.dialect == "sqlite":
        assert len(full.take(batch=10)) == 10
        return
    full.ask("analyze {jobs}")
    found = explain(full, "take_jobs", analyse=True)
    (locked,) = [node for node in found if node["Node Type"] == "LockRows"]
    assert (locked["Actual Rows"], locked["Actual Loops"]) == (10, 1)
    (scanned,) = [node["Actual Rows"] for node in found if node.get("Index Name") == "jobs_due"]
    assert scanned <= 12
    ahead = explain(full, "look_ahead", analyse=True)
    # How far it looks for tenants that still have a place.
    assert [node["Actual Rows"] for node in ahead if node.get("Index Name") == "jobs_due"] == [101]


def test_the_oldest_due_jobs_come_first(full: Outbox) -> None:
    assert {job.id for job in full.take(batch=3)} == {"live-1", "live-2", "live-3"}
