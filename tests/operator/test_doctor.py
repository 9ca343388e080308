"""The doctor's judgement, figure by figure; it needs no store."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from samekey.ops.doctor import ENOUGH_RUNS, examine, lease_advice, span
from samekey.ops.symptoms import Symptoms
from samekey.stores.protocols import Overview
from tests.operator.world import DAY, HOUR, MINUTE, SECOND

NOW = 1_800_000_000_000
HEALTHY = Overview(
    now=NOW,
    records=100_000,
    unknown=2,
    oldest_unknown=NOW - 10 * MINUTE,
    dead_letters=0,
    ended_leases=1,
    oldest_lease_end=NOW - 20 * SECOND,
    past_retention=800,
    live_jobs=12,
    oldest_due=NOW - SECOND,
    dead_jobs=0,
    pending=12,
    oldest_expiry=NOW - 50 * MINUTE,
    ended_phased=0,
    oldest_phased_end=NOW + MINUTE,
    oldest_other_end=NOW - 20 * SECOND,
    oldest_asking=NOW - 20 * SECOND,
    oldest_pending=NOW - MINUTE,
)
POSTGRES = {
    "server_version_num": "160003",
    "in_recovery": "0",
    "fsync": "on",
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "60000",
    "default_transaction_isolation": "read committed",
    "dead_rows keys": "5000",
    "live_rows keys": "100000000",
    "autovacuum": "on",
    "connections": "12",
    "max_connections": "100",
    "oldest_transaction": "4 s, session 7 (shop, active)",
}


def codes(**changes: Any) -> list[str]:
    """What is found when a healthy store is changed in one way."""
    own = {field.name for field in dataclasses.fields(Symptoms)}
    overview = {name: value for name, value in changes.items() if name not in own}
    given = {name: value for name, value in changes.items() if name in own}
    figures = Symptoms(
        **{
            "dialect": "postgres",
            "facts": POSTGRES,
            "overview": dataclasses.replace(HEALTHY, **overview),
            **given,
        }
    )
    return [finding.code for finding in examine(figures)]


def facts(**changes: str) -> dict[str, str]:
    return {**POSTGRES, **changes}


def test_a_healthy_store() -> None:
    assert codes() == []
    assert codes(dialect="sqlite", facts={"journal_mode": "wal"}) == []


def test_an_empty_store() -> None:
    nothing = {
        name.name: 0 if name.type == "int" else None
        for name in dataclasses.fields(Overview)
        if name.name != "now"
    }
    assert codes(**nothing) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"oldest_due": NOW - 2 * MINUTE}, "no_worker"),
        ({"oldest_other_end": NOW - 5 * MINUTE}, "no_sweeper"),
        ({"oldest_phased_end": NOW - 2 * MINUTE, "ended_phased": 1}, "no_completer"),
        ({"oldest_asking": NOW - 10 * MINUTE}, "no_reconciler"),
        ({"oldest_expiry": NOW - 5 * HOUR}, "no_reaper"),
        ({"oldest_unknown": NOW - 2 * HOUR}, "old_unknown"),
        ({"dead_letters": 1}, "dead_letters"),
        ({"dead_jobs": 1}, "dead_letters"),
        ({"oldest_pending": NOW - 2 * HOUR}, "old_pending"),
        ({"past_retention": 60_000}, "growing"),
        ({"facts": facts(**{"dead_rows keys": "95000000"})}, "bloat"),
        ({"facts": facts(**{"dead_rows jobs": "200000", "live_rows jobs": "10"})}, "bloat"),
        ({"facts": facts(autovacuum="off")}, "no_autovacuum"),
        ({"facts": facts(unvacuumed="jobs")}, "no_autovacuum"),
        ({"facts": facts(connections="91")}, "connections"),
        ({"facts": facts(oldest_transaction="950 s, session 7 (cron, idle)")}, "long_transaction"),
        ({"missing": ["keys_lease"]}, "missing_index"),
        ({"missing": ["note_change"]}, "missing_trigger"),
        ({"skew_ms": 5000}, "clock_skew"),
        ({"skew_ms": -5000}, "clock_skew"),
        ({"facts": facts(server_version_num="120010")}, "old_server"),
        ({"facts": facts(in_recovery="1")}, "standby"),
        ({"facts": facts(fsync="off")}, "fsync_off"),
        ({"facts": facts(synchronous_commit="off")}, "asynchronous_commit"),
        ({"facts": facts(idle_in_transaction_session_timeout="0")}, "no_idle_timeout"),
        ({"facts": facts(default_transaction_isolation="serializable")}, "isolation"),
        ({"dialect": "sqlite", "facts": {"journal_mode": "delete"}}, "no_wal"),
        ({"unknown_endpoints": {"POST /a": 1}, "lookups": frozenset({"POST /b"})}, "no_lookup"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_thing_that_can_be_wrong(changes: dict[str, Any], code: str) -> None:
    assert codes(**changes) == [code]


def test_every_finding_says_what_to_do() -> None:
    figures = Symptoms(
        dialect="postgres",
        overview=dataclasses.replace(
            HEALTHY, dead_letters=1, oldest_due=1, oldest_expiry=1, oldest_unknown=1
        ),
        facts=facts(fsync="off", synchronous_commit="off"),
    )
    findings = examine(figures)
    assert len(findings) == 6
    assert all(finding.says.endswith(".") and finding.advice for finding in findings)
    assert [finding.level for finding in findings] == ["problem"] * 5 + ["note"]


def test_a_default_lookup_serves_all() -> None:
    assert codes(unknown_endpoints={"POST /a": 1}, lookups=frozenset({None})) == []
    assert codes(unknown_endpoints={"POST /a": 1}, lookups=None) == []


def test_tables_that_do_not_fit_are_all_that_is_said() -> None:
    [finding] = examine(Symptoms(dialect="postgres", schema_problem="The tables are missing."))
    assert (finding.code, finding.level, finding.advice) == ("tables", "problem", "samekey migrate URL")


# ------------------------------------------------------------------ the lease


def test_the_lease_follows_from_the_99th_percentile() -> None:
    advice = lease_advice([1000] * 985 + [20_000] * 14 + [90_000])
    assert advice is not None
    assert (advice.runs, advice.p50, advice.p99, advice.longest) == (1000, 1000, 20_000, 90_000)
    assert (advice.shortest_lease, advice.longest_lease) == (40_000, 60_000)


def test_few_runs_say_nothing_and_quick_ones_need_no_short_lease() -> None:
    assert lease_advice([5] * (ENOUGH_RUNS - 1)) is None
    advice = lease_advice([5] * ENOUGH_RUNS)
    assert advice is not None and advice.shortest_lease == advice.longest_lease == 15_000


def test_a_lease_that_is_too_short() -> None:
    slow = [40_000] * 100
    assert codes(durations=slow, lease_ms=60_000) == ["short_lease"]
    assert codes(durations=slow, lease_ms=90_000) == []
    [finding] = examine(Symptoms(dialect="sqlite", overview=HEALTHY, durations=slow))
    assert (finding.code, finding.level) == ("short_lease", "note"), "it only knows the default"
    assert finding.advice == "a lease of 1 min 20 s to 2 min"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (1500, "1.5 s"),
        (59_900, "59.9 s"),
        (60_000, "1 min"),
        (80_000, "1 min 20 s"),
        (3 * HOUR + 5 * MINUTE, "3 h 5 min"),
        (2 * DAY + 3 * HOUR, "2 d 3 h"),
    ],
)
def test_durations_as_people_say_them(ms: int, text: str) -> None:
    assert span(ms) == text


# --- MySQL and MariaDB ----------------------------------------------------------------------------


SOUND_MYSQL = {
    "read_only": "0",
    "innodb_flush_log_at_trx_commit": "1",
    "log_bin": "1",
    "sync_binlog": "1",
}


@pytest.mark.parametrize(
    ("fact", "value", "code"),
    [
        ("read_only", "1", "standby"),
        ("innodb_flush_log_at_trx_commit", "2", "lazy_flush"),
        ("sync_binlog", "0", "lazy_binlog"),
    ],
)
def test_what_a_mysql_server_should_not_be_set_to(fact: str, value: str, code: str) -> None:
    assert codes(dialect="mysql", facts=SOUND_MYSQL) == []
    assert codes(dialect="mysql", facts={**SOUND_MYSQL, fact: value}) == [code]


def test_without_a_binary_log_it_need_not_be_flushed() -> None:
    assert codes(dialect="mysql", facts={**SOUND_MYSQL, "log_bin": "0", "sync_binlog": "0"}) == []
