"""The doctor's judgement: figures of a store in, findings with advice out. Pure: others read the figures.

Each threshold is a few times what a healthy deployment with the default rhythm shows, so that a finding means
that somebody should look, not that something was slow once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ..core.program import Dialect
from ..stores.protocols import Overview

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

JOBS_LATE: Final = MINUTE
"""A worker takes a due job at once, or within a few seconds of polling."""
LEASES_LATE: Final = 3 * MINUTE
"""The sweeper looks every minute; a retry would have moved its own key sooner."""
PHASED_LATE: Final = MINUTE
"""The completer looks every five seconds."""
ASKING_LATE: Final = 5 * MINUTE
"""The reconciler looks every half minute."""
RETENTION_LATE: Final = 3 * HOUR
"""The reaper runs hourly."""
UNKNOWN_OLD: Final = HOUR
"""Most providers can tell within minutes; after an hour somebody should ask by hand."""
PENDING_OLD: Final = HOUR
"""Accepted work that nobody has finished for so long is noticed by its client first."""
SKEW: Final = 2 * SECOND
"""Leases do not mind, they live by the store's clock; logs and checks of request times do."""
ENOUGH_RUNS: Final = 20
"""Below that a 99th percentile says nothing."""
SHORTEST_LEASE: Final = 15 * SECOND
"""The heartbeat comes three times in a lease; a shorter one would take a pause for a death."""
DEFAULT_LEASE: Final = 60 * SECOND
OLDEST_POSTGRES: Final = 13
"""The first with ``pg_current_xact_id_if_assigned``, which settles a lost acknowledgement of COMMIT."""
PILE: Final = 10_000
"""Fewer records past retention are an hour's work that waits for the next pass."""

Level = Literal["problem", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and what to do about it. A note alone does not make a store unhealthy."""

    code: str
    level: Level
    says: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that the doctor looks at. Where the tables do not fit, only ``schema_problem`` is set."""

    dialect: Dialect
    schema_problem: str | None = None
    overview: Overview | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    weaknesses: Sequence[tuple[str, str, str]] = ()
    """Of a key store: what can make it forget, as code, sentence and advice."""
    durations: Sequence[int] = ()
    """How long recent operations ran, in milliseconds."""
    skew_ms: int = 0
    """The store's clock less this machine's."""
    lease_ms: int | None = None
    """As configured, where the doctor was shown the application."""
    unknown_endpoints: Mapping[str, int] = field(default_factory=dict)
    evidence: Mapping[str, int] = field(default_factory=dict)
    """Events of providers that nobody but a person can place, by why."""
    lookups: frozenset[str | None] | None = None
    """Endpoints that have a lookup (None: every other), where the doctor was shown the application."""


@dataclass(frozen=True, slots=True)
class LeaseAdvice:
    """How long operations take, and the lease that follows, in milliseconds."""

    runs: int
    p50: int
    p99: int
    longest: int
    shortest_lease: int
    longest_lease: int


def examine(figures: Figures) -> list[Finding]:
    """Everything that is wrong, the gravest first."""
    if figures.schema_problem is not None:
        advice = _LAYOUT if figures.dialect == "redis" else "samekey migrate URL"
        return [Finding("tables", "problem", figures.schema_problem, advice)]
    assert figures.overview is not None
    found = [
        *_workers(figures.overview),
        *_outcomes(figures, figures.overview),
        *_growth(figures, figures.overview),
        *_lease(figures),
        *_clock(figures),
        *_SERVERS.get(figures.dialect, _nothing)(figures),
    ]
    if figures.dialect == "redis":
        # Settled records go by themselves there.
        found = [finding for finding in found if finding.code not in ("no_reaper", "growing")]
    return sorted(found, key=lambda finding: finding.level != "problem")


def lease_advice(durations: Sequence[int]) -> LeaseAdvice | None:
    """Two to three times the 99th percentile of measured durations; None with too few of them."""
    if len(durations) < ENOUGH_RUNS:
        return None
    ordered = sorted(durations)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return LeaseAdvice(
        runs=len(ordered),
        p50=ordered[math.ceil(0.5 * len(ordered)) - 1],
        p99=p99,
        longest=ordered[-1],
        shortest_lease=max(2 * p99, SHORTEST_LEASE),
        longest_lease=max(3 * p99, SHORTEST_LEASE),
    )


def span(ms: int) -> str:
    """A duration as people say it: its two largest units."""
    if ms < SECOND:
        return f"{ms} ms"
    if ms < MINUTE:
        return f"{ms / SECOND:.1f}".removesuffix(".0") + " s"
    if ms < HOUR:
        minutes, rest = divmod(ms, MINUTE)
        return f"{minutes} min" if rest < SECOND else f"{minutes} min {rest // SECOND} s"
    minutes, hours, days = ms // MINUTE, ms // HOUR, ms // (24 * HOUR)
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min"


def _late(since: int | None, now: int, limit: int) -> int | None:
    """How late something is, if that is later than it should be."""
    return now - since if since is not None and now - since > limit else None


def _workers(seen: Overview) -> Iterator[Finding]:
    late = _late(seen.oldest_due, seen.now, JOBS_LATE)
    if late is not None:
        yield Finding(
            "no_worker",
            "problem",
            f"Jobs are waiting, the oldest due for {span(late)}: no worker seems to run, or none keeps up.",
            "samekey worker module:idempotency",
        )
    late = _late(seen.oldest_other_end, seen.now, LEASES_LATE)
    if late is not None:
        count = seen.ended_leases - seen.ended_phased
        yield Finding(
            "no_sweeper",
            "problem",
            f"{_many(count, 'record')} in progress with a lease that ended, the oldest {span(late)} ago: no "
            "sweeper seems to run.",
            "samekey worker module:idempotency, or for now: samekey sweep",
        )
    late = _late(seen.oldest_phased_end, seen.now, PHASED_LATE)
    if late is not None:
        yield Finding(
            "no_completer",
            "problem",
            f"{_many(seen.ended_phased, 'abandoned phased operation')}, the oldest {span(late)} ago: no "
            "completer seems to run, or none that knows their definition.",
            "samekey worker module:idempotency, with the versions that these operations began with",
        )
    late = _late(seen.oldest_asking, seen.now, ASKING_LATE)
    if late is not None:
        yield Finding(
            "no_reconciler",
            "problem",
            f"An unknown outcome should have been asked about {span(late)} ago: no reconciler seems to run.",
            "samekey worker module:idempotency, or for now: samekey reconcile module:idempotency",
        )
    late = _late(seen.oldest_expiry, seen.now, RETENTION_LATE)
    if late is not None:
        yield Finding(
            "no_reaper",
            "problem",
            f"{_many(seen.past_retention, 'record')} past retention, the oldest for {span(late)}: no reaper "
            "seems to run, so the table grows.",
            "samekey worker module:idempotency, or for now: samekey reap",
        )


def _outcomes(figures: Figures, seen: Overview) -> Iterator[Finding]:
    old = _late(seen.oldest_unknown, seen.now, UNKNOWN_OLD)
    if old is not None:
        yield Finding(
            "old_unknown",
            "problem",
            f"{_many(seen.unknown, 'operation')} with an unknown outcome, the oldest for {span(old)}: "
            "whoever retries is told to wait.",
            "samekey keys list --state unknown, then samekey keys show ID",
        )
    if seen.dead_letters or seen.dead_jobs:
        yield Finding(
            "dead_letters",
            "problem",
            f"Dead letters: {_many(seen.dead_letters, 'operation')} and {_many(seen.dead_jobs, 'job')}. "
            "Nothing more is tried until somebody decides.",
            "samekey dead list, then samekey dead show ID",
        )
    if figures.evidence:
        count = figures.evidence
        yield Finding(
            "evidence",
            "problem",
            f"Events that somebody must see to: {count.get('conflict', 0)} contradict an answer, "
            f"{count.get('ambiguous', 0)} fit more than one operation, {count.get('waiting', 0)} could not "
            "be placed.",
            "samekey evidence list, then samekey keys show ID",
        )
    waiting = _late(seen.oldest_pending, seen.now, PENDING_OLD)
    if waiting is not None:
        yield Finding(
            "old_pending",
            "problem",
            f"{_many(seen.pending, 'accepted operation')} not finished, the oldest for {span(waiting)}.",
            "samekey keys list --state pending; is a worker running that knows their jobs?",
        )
    if figures.lookups is not None and None not in figures.lookups:
        missing = [name for name in figures.unknown_endpoints if name not in figures.lookups]
        if missing:
            yield Finding(
                "no_lookup",
                "problem",
                f"Outcomes are unknown at {', '.join(missing)}, and there is no lookup to find them out.",
                '@idempotency.lookup("POST /…") in your application',
            )


def _growth(figures: Figures, seen: Overview) -> Iterator[Finding]:
    if seen.past_retention > max(PILE, seen.records // 2):
        yield Finding(
            "growing",
            "problem",
            f"{seen.past_retention:,} of {seen.records:,} records are past retention: the reaper cannot keep "
            "up.",
            "samekey reap, then run the reaper more often, or keep keys for a shorter time",
        )
    dead = int(figures.facts.get("dead_rows", 0))
    if dead > max(10 * PILE, seen.records):
        yield Finding(
            "bloat",
            "problem",
            f"{dead:,} dead rows in the table of keys and {seen.records:,} live ones: autovacuum cannot keep "
            "up.",
            "vacuum the table, and lower autovacuum_vacuum_scale_factor for it",
        )


def _lease(figures: Figures) -> Iterator[Finding]:
    advice = lease_advice(figures.durations)
    if advice is None:
        return
    lease = DEFAULT_LEASE if figures.lease_ms is None else figures.lease_ms
    measured = f"99 % of {advice.runs:,} runs took less than {span(advice.p99)}"
    if lease < 2 * advice.p99:
        whose = "the default lease" if figures.lease_ms is None else "the lease"
        yield Finding(
            "short_lease",
            "problem" if figures.lease_ms is not None else "note",
            f"{measured}; {whose} of {span(lease)} is short for that: a paused process loses it too soon.",
            f"a lease of {span(advice.shortest_lease)} to {span(advice.longest_lease)}",
        )


def _clock(figures: Figures) -> Iterator[Finding]:
    if abs(figures.skew_ms) > SKEW:
        which = "ahead of" if figures.skew_ms > 0 else "behind"
        yield Finding(
            "clock_skew",
            "problem",
            f"The store's clock is {span(abs(figures.skew_ms))} {which} this machine's. Leases live by the "
            "store's, but logs will not fit together and fresh requests may be taken for stale.",
            "run NTP on both machines",
        )


def _postgres(figures: Figures) -> Iterator[Finding]:
    facts = figures.facts
    major = int(facts.get("server_version_num", "0")) // 10_000
    if 0 < major < OLDEST_POSTGRES:
        yield Finding(
            "old_server",
            "problem",
            f"This is PostgreSQL {major}; a lost acknowledgement of COMMIT cannot be settled before "
            f"{OLDEST_POSTGRES}.",
            f"PostgreSQL {OLDEST_POSTGRES} or newer",
        )
    if facts.get("in_recovery") == "1":
        yield Finding(
            "standby",
            "problem",
            "This server is a standby: nothing can be claimed on it, and it may lag behind.",
            "a URL of the primary, say with target_session_attrs=read-write",
        )
    if facts.get("fsync") == "off":
        yield Finding(
            "fsync_off",
            "problem",
            "fsync is off: after a crash of the machine the database may have forgotten keys whose answers "
            "were sent, and their retries run again.",
            "fsync = on",
        )
    if facts.get("synchronous_commit") == "off":
        yield Finding(
            "asynchronous_commit",
            "note",
            "synchronous_commit is off. samekey switches it on for its own commits, so keys are safe; your "
            "other transactions are not.",
            "synchronous_commit = on, unless you mean it",
        )
    if facts.get("idle_in_transaction_session_timeout") == "0":
        yield Finding(
            "no_idle_timeout",
            "note",
            "idle_in_transaction_session_timeout is off. samekey sets it for atomic handlers; other "
            "transactions that hang hold their locks for ever.",
            "idle_in_transaction_session_timeout = '5min'",
        )
    isolation = facts.get("default_transaction_isolation", "read committed")
    if isolation != "read committed":
        yield Finding(
            "isolation",
            "note",
            f"default_transaction_isolation is {isolation}. samekey's own connections do not mind; atomic "
            "handlers on a connection of yours are refused.",
            "read committed for the role that runs atomic handlers",
        )


def _sqlite(figures: Figures) -> Iterator[Finding]:
    mode = figures.facts.get("journal_mode", "wal")
    if mode != "wal":
        yield Finding(
            "no_wal",
            "problem",
            f"The journal mode is {mode}, not wal: duplicates wait for writers. On a network file system WAL "
            "cannot be had, and SQLite's locks cannot be trusted either.",
            "a local disk, or PostgreSQL",
        )


_LAYOUT: Final = "the URL that the application uses"
_ONLY_NOTED: Final = frozenset({"fsync", "unseen"})
"""A second of claims that a crash of the machine may lose, and what could not be looked at."""


def _redis(figures: Figures) -> Iterator[Finding]:
    for code, says, advice in figures.weaknesses:
        yield Finding(code, "note" if code in _ONLY_NOTED else "problem", says, advice)


def _mysql(figures: Figures) -> Iterator[Finding]:
    facts = figures.facts
    if facts.get("read_only", "0") not in ("0", "OFF"):
        yield Finding(
            "standby",
            "problem",
            "This server is read-only, as replicas are: nothing can be claimed on it, and it may lag behind.",
            "a URL of the primary",
        )
    if facts.get("innodb_flush_log_at_trx_commit", "1") != "1":
        yield Finding(
            "lazy_flush",
            "problem",
            "innodb_flush_log_at_trx_commit is not 1: after a crash the database may have forgotten keys "
            "whose answers were sent, and their retries run again.",
            "innodb_flush_log_at_trx_commit = 1",
        )
    if facts.get("log_bin", "0") not in ("0", "OFF") and facts.get("sync_binlog", "1") != "1":
        yield Finding(
            "lazy_binlog",
            "note",
            "sync_binlog is not 1: after a crash the replicas may lack what this server has committed.",
            "sync_binlog = 1",
        )


def _nothing(figures: Figures) -> Iterator[Finding]:
    yield from ()


_SERVERS: Final = {"postgres": _postgres, "sqlite": _sqlite, "mysql": _mysql, "redis": _redis}
"""What each kind of server may be set to that it should not be."""


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
