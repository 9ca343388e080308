"""``python -m bench.plans``: what operators list and the background deletes, on a large table of PostgreSQL.

It fills a throwaway server, runs each statement for real in a transaction that is taken back, and shows which
indexes led to its rows, how many it read and how long it took. It ends with 1 if one of them read a large
table from end to end. ``tests/operator/test_listing_plans.py`` does the same with fewer rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from lab.servers.postgres import PostgresServer, Setting
from samekey.core.claim import scope_of
from samekey.core.program import Statement
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.looking import LOOKED_THROUGH
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for

QUERIES: Final = queries_for("postgres")
LATER: Final = 4_102_444_800_000
"""A time that has not come, in milliseconds."""
NOW: Final = 1_000_000_000
TENANTS: Final = 200
RARE: Final = 1000
"""One record of so many has a state that somebody looks for."""
DUE: Final = 7000
"""The first records: their time is over."""
LIMIT, BATCH = 50, 500

FILLS: Final = {
    "keys": """
        insert into samekey.keys (
            scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt,
            attempts, locked_until, reconcile_after, created_at, last_run_at, completed_at, expires_at,
            answer_version, answer_status, answer_headers, answer_body, downstream, ttl_ms, ttl_from,
            after_expiry
        )
        select length(tenant) || ':' || tenant, 'key ' || n, md5(n::text), tenant,
            case when n = %(rows)s / 2 then 'POST /rare' else 'POST /' || n %% 20 end, '\\x00', '1', state,
            case when state = 'pending' then 'deferred'
                when state = 'in_progress' and n %% 3 = 0 then 'phased' else 'leased' end,
            'attempt ' || n, 1, case when state = 'in_progress' then due end,
            case when state = 'unknown' then due end, n, due, case when state = 'completed' then due + 9 end,
            due, 1, 201, '[]', '{"id": "pay_8Qw1", "amount": 1999}', md5('d' || n), 1, 'completion',
            case when n <= %(due)s and n / 7 %% 2 = 0 then 'ask' else 'new' end
        from (
            select n, '=tenant ' || n %% %(tenants)s as tenant,
                case when n <= %(due)s then n else %(later)s + n end as due,
                case when n <= %(due)s then (array['in_progress', 'completed', 'completed', 'unknown',
                        'failed_retryable', 'pending', 'expired'])[1 + n %% 7]
                    else coalesce((array['unknown', 'dead_letter', 'failed_retryable', 'pending',
                        'in_progress', 'expired'])[1 + n %% %(rare)s], 'completed') end as state
            from generate_series(1, %(rows)s) as n
        ) as numbers
    """,
    # One line for each key that is there, and one for each that is gone.
    "audit": """
        insert into samekey.audit (at, operation_id, scope, key, tenant, from_state, to_state, actor)
        select n, md5(n::text), length(tenant) || ':' || tenant, 'key ' || n, tenant,
            case when n %% 2 = 0 then 'in_progress' end, 'completed', 'request'
        from (
            select n, '=tenant ' || n %% %(tenants)s as tenant from generate_series(1, %(rows)s / 2) as n
            union all
            select n, '=gone' from generate_series(%(rows)s / 2 + 1, %(rows)s) as n
        ) as numbers
    """,
    "effects": """
        insert into samekey.effects (
            operation_id, step, kind, place, attempt, tenant, downstream_key, provider_id, sends
        )
        select md5(n::text), '', 'leased', '0', 'a', '=t', md5('d' || n), 'ch_' || n, 1
        from generate_series(1, %(rows)s / 2) as n
    """,
    "jobs": """
        insert into samekey.jobs (
            id, operation_id, scope, key, tenant, name, payload, answers, state, attempts, due_at, created_at,
            done_at, alone, provider_id
        )
        select 'job ' || n, md5(n::text), 's', 'k', '=t', 'settle ' || n %% 5, '\\x00', 1,
            case n %% 10000 when 0 then 'dead' when 1 then 'live' else 'done' end, 1,
            case when n %% 10000 = 1 and n > %(due)s then %(later)s else n end, n, n,
            case when n <= %(due)s then 1 else 0 end, 'job_' || n
        from generate_series(1, %(rows)s / 10) as n
    """,
    "phases": """
        insert into samekey.phases (operation_id, position, name, kind, done, intent_at)
        select md5(n::text), 1, 'charge', 'effect', 1, n from generate_series(1, %(rows)s / 10) as n
    """,
    "inputs": """
        insert into samekey.inputs (operation_id, name, version, payload, created_at)
        select md5(n::text), 'ride', 1, '\\x00', n from generate_series(2, %(rows)s / 10, 2) as n
    """,
    "evidence": """
        insert into samekey.evidence (
            source, event_id, operation_id, outcome, says, state, occurred_at, received_at
        )
        select 'stripe', 'evt_' || n, md5(n::text), '\\x00', 'executed',
            case n %% 10000 when 0 then 'waiting' when 1 then 'ambiguous' else 'used' end, n, n
        from generate_series(1, %(rows)s / 10) as n
    """,
    "made": """
        insert into samekey.made (operation_id, step, attempt, tenant, provider_id)
        select md5(n::text), '', 'a', '=t', 'former_' || n from generate_series(1, %(rows)s / 10) as n
    """,
}


def _tenant(tenant: str) -> dict[str, Any]:
    first, call = scope_of(tenant), scope_of(f"@{tenant}")
    ends = {"last_scope": first + "\x7f", "last_call": call + "\x7f"}
    return {"tenant": tenant, "first_scope": first, "first_call": call, **ends}


@dataclass(frozen=True, slots=True)
class Case:
    """A statement as somebody runs it, and how many rows it may read of a table with ``rows`` records."""

    what: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    most: int = 8 * BATCH
    share: int = 0
    """One row of so many may be read besides: what is counted, or one tenant's."""

    def allowed(self, rows: int) -> int:
        return self.most + (rows // self.share if self.share else 0)


SEVENTH: Final = _tenant("=tenant 7")
ONE: Final = {
    "operation_id": "c4ca4238a0b923820dcc509a6f75849b",
    "scope": SEVENTH["first_scope"],
    "key": "key 7",
}

LISTINGS: Final = (
    Case("the newest", "list_keys"),
    Case("completed", "list_keys", {"state": "completed"}),
    Case("in progress", "list_keys", {"state": "in_progress"}, share=RARE // 4),
    Case("unknown", "list_keys", {"state": "unknown"}),
    Case("dead letters", "list_keys", {"state": "dead_letter"}),
    Case("failed", "list_keys", {"state": "failed_retryable"}),
    Case("pending", "list_keys", {"state": "pending"}),
    Case("unknown of an endpoint", "list_keys", {"state": "unknown", "endpoint": "POST /0"}, share=RARE // 4),
    Case("of ten milliseconds", "list_keys", {"created_after": 90_000, "created_before": 90_010}),
    Case("of a tenant", "list_keys", SEVENTH, share=TENANTS // 4),
    Case("of a tenant, by key", "list_keys", {**SEVENTH, "key": "key 7"}),
    Case(
        "by endpoint, among the newest", "look_through_keys", {"endpoint": "POST /rare"}, 3 * LOOKED_THROUGH
    ),
    Case("by key, among the newest", "look_through_keys", {"key": "key 77"}, 3 * LOOKED_THROUGH),
    Case("how far that came", "looked_through_to", {}, 3 * LOOKED_THROUGH),
    Case("by the beginning of an id", "ids_like", {"first": "c4ca4238", "last": "c4ca4238\x7f"}),
    Case("by the provider's id", "noted_by_provider", {"provider_id": "ch_77"}),
    Case(
        "by the provider's id, of a tenant", "find_by_provider_id", {"provider_id": "ch_77", "tenant": "=t"}
    ),
    Case("by a downstream key", "find_by_downstream", {"downstream": "nobody's"}),
    Case("by id", "find_by_id", {"id": ONE["operation_id"]}),
    Case("what it sent", "effects_of", ONE),
    Case("what former attempts have made", "made_of", ONE),
    Case("its phases", "phases_of", ONE),
    Case("its jobs", "jobs_of", ONE),
    Case("what was said of it", "shown_evidence", ONE),
    Case("its timeline", "timeline", ONE),
    Case("its timeline, by tenant and key", "timeline_of_key", {**SEVENTH, "key": "key 7"}),
    Case("its timeline, by id", "timeline_of_operation", ONE),
    Case("its former lives", "former_lives", ONE),
    Case("what is left of it", "unfinished", ONE),
    Case("the audit, page by page", "audited_keys", {"before": 150_000, "limit": BATCH}),
    Case(
        "the keys, page by page", "stored_keys", {"scope": SEVENTH["first_scope"], "key": "", "limit": BATCH}
    ),
    Case("dead jobs", "list_dead_jobs"),
    Case("evidence that waits", "unused_evidence", share=10_000),
    Case("evidence to see to", "evidence_to_see_to", share=10_000),
    Case("the doctor's figures", "overview", {}, 12 * DUE, share=RARE // 10),
    Case("endpoints of unknown outcomes", "unknown_endpoints", share=RARE // 4),
    Case("how long runs took", "durations", {"limit": 10_000}, 4 * 10_000),
    Case("one answer, to try the encryption", "newest_answer"),
)
UPKEEP: Final = (
    Case("sweeper", "sweep"),
    Case("sweeper, phased", "sweep_unbegun", {}, 4 * DUE),
    Case("sweep --dry-run", "count_sweep", {}, 4 * DUE),
    Case("reaper", "reap", {}, 8 * BATCH),
    Case("reaper, tombstones", "reap_tombstones", {}, 8 * BATCH),
    Case("reaper, answers to bury", "bury_answers", {}, 8 * BATCH),
    Case("reaper --soft", "bury_softly", {}, 8 * BATCH),
    Case("reap --dry-run", "count_reap", {}, 8 * DUE),
    Case("reaper, jobs left alone", "reap_lone_jobs"),
    *(
        Case(f"reaper, {part} of {BATCH} answers", f"reap_{part}")
        for part in ("jobs", "phases", "inputs", "effects", "evidence")
    ),
    Case("reaper, ids that stay", "bury_ids"),
    Case(
        "reaper, the audit's next slice",
        "audit_slice",
        {"after": 100_000, "before": NOW, "batch": 5000},
        20_000,
    ),
    Case("reaper, that slice", "prune_audit", {"after": 0, "last": 5000, "before": NOW}, 20_000),
    Case("pending that nobody began", "find_abandoned", {}, 4 * DUE),
    Case("reconciler", "take_unknown"),
    Case("reconciler, stranded evidence", "stranded_evidence", share=2_000),
    Case("completer", "take_abandoned", {"known": ["ride/1"]}, 8 * DUE),
    Case("worker, what is due", "due_jobs", {}, 4 * BATCH),
    Case("worker, a batch", "take_jobs", {"name": "settle 1", "until": None}, 4 * BATCH),
)
NOTHING: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("state", "tenant", "key", "endpoint", "created_after", "created_before", "source")),
    **dict.fromkeys(("first_scope", "last_scope", "first_call", "last_call"), ""),
    **{name: ["-"] for name in ("full", "here", "without")},
    **dict.fromkeys(("ahead", "timeout_ms", "patience_ms", "suspects"), 0),
    **dict.fromkeys(("keep_ms", "lease_ms"), 1),
    **{"now": NOW, "batch": BATCH, "limit": LIMIT, "looked": LOOKED_THROUGH, "token": "t"},
}
SMALL: Final = 10_000
"""Rows of a table that may be read whole."""


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """All tables. The indexes are made afterwards, which is several times faster."""
    connection.execute("alter table samekey.keys disable trigger user")
    indexes = connection.execute(
        "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index"
        " where indrelid in (select oid from pg_class where relnamespace = 'samekey'::regnamespace)"
        " and not indisprimary"
    ).fetchall()
    for name, _ in indexes:
        connection.execute(f"drop index {name}".encode())
    given = {"rows": rows, "rare": RARE, "tenants": TENANTS, "due": DUE, "later": LATER}
    for text in FILLS.values():
        connection.execute(text.encode(), given)
    for _, definition in indexes:
        connection.execute(definition.encode())
    connection.execute(f"vacuum analyze {', '.join(f'samekey.{table}' for table in FILLS)}".encode())


@dataclass(frozen=True, slots=True)
class Found:
    """What a statement did."""

    case: Case
    indexes: tuple[str, ...]
    read: int
    """Rows that scans produced or threw away."""
    whole: tuple[str, ...]
    """Tables that were read from end to end and are not small."""
    milliseconds: float


def explain(connection: psycopg.Connection[Any], case: Case, *, generic: bool) -> Found:
    """Runs it, and takes it back. ``generic``: planned without its values, as prepared statements are."""
    given = {**NOTHING, "ids": _ids(), "id_list": "[]", **case.given}
    sql, parameters = Statement(QUERIES[case.name], given).render("numeric")
    connection.execute(f"set plan_cache_mode to force_{'generic' if generic else 'custom'}_plan".encode())
    connection.execute(f"prepare probe as {sql}".encode())
    try:
        with connection.transaction(force_rollback=True):
            places = f" ({', '.join(['%s'] * len(parameters))})" if parameters else ""
            cursor = psycopg.ClientCursor(connection)
            text = cursor.mogrify(f"explain (analyze, format json) execute probe{places}", [*parameters])
            [[found]] = connection.execute(text.encode()).fetchall()
    finally:
        connection.execute("deallocate probe")
    nodes = [node for node in _nodes(found[0]["Plan"]) if node["Actual Loops"]]
    scans = [(node, _read(node)) for node in nodes if "Scan" in node["Node Type"]]
    return Found(
        case,
        tuple(sorted({node["Index Name"] for node in nodes if "Index Name" in node})),
        sum(read for _, read in scans),
        tuple(
            sorted(
                {
                    node["Relation Name"]
                    for node, read in scans
                    if node["Node Type"] == "Seq Scan" and read > SMALL
                }
            )
        ),
        float(found[0]["Execution Time"]),
    )


def _ids() -> list[str]:
    from hashlib import md5

    return [md5(str(n).encode(), usedforsecurity=False).hexdigest() for n in range(10_000, 10_000 + BATCH)]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _read(node: dict[str, Any]) -> int:
    rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(rows * node["Actual Loops"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    settings: dict[str, Setting] = {
        **{"fsync": True, "max_wal_size": "8GB", "maintenance_work_mem": "1GB", "shared_buffers": "512MB"}
    }
    failed = False
    with PostgresServer(settings=settings) as server:
        url = server.create_database()
        drivers = drivers_for(url, timeout=60)
        run(drivers.sync, lambda: migrate(QUERIES))
        drivers.sync.close()
        with psycopg.connect(url, autocommit=True) as connection:
            began = time.monotonic()
            fill(connection, options.rows)
            [[size]] = connection.execute("select pg_database_size(current_database())").fetchall()
            print(
                f"{options.rows:,} records and what belongs to them, {size >> 20:,} MB, made in "
                f"{time.monotonic() - began:.0f} s; {os.cpu_count()} cores",
                flush=True,
            )
            for case in (*LISTINGS, *UPKEEP):
                found = explain(connection, case, generic=False)
                bad = bool(found.whole) or found.read > case.allowed(options.rows)
                failed |= bad
                print(
                    f"{case.what:36} {case.name:22} {found.read:>10,} rows {found.milliseconds:>9,.1f} ms  "
                    f"{', '.join(found.indexes)}{'  READS TOO MUCH' if bad else ''}",
                    flush=True,
                )
    sys.exit(failed)


if __name__ == "__main__":
    main()
