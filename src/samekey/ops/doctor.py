"""The doctor's judgement: symptoms of a store in, findings with advice out. Pure: others read the symptoms.

Each threshold is a few times what a healthy deployment with the default rhythm shows, so that a finding means
that somebody should look, not that something was slow once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..stores.protocols import MANY, Overview
from .doctor_servers import LAYOUT, check_server
from .doctor_tables import check_tables
from .symptoms import Diagnosis, Symptoms

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
PILE: Final = 10_000
"""Fewer records past retention are an hour's work that waits for the next pass."""


@dataclass(frozen=True, slots=True)
class LeaseAdvice:
    """How long operations take, and the lease that follows, in milliseconds."""

    runs: int
    p50: int
    p99: int
    longest: int
    shortest_lease: int
    longest_lease: int


def examine(symptoms: Symptoms) -> list[Diagnosis]:
    """Everything that is wrong, the gravest first."""
    if symptoms.schema_problem is not None:
        advice = LAYOUT if symptoms.dialect == "redis" else "samekey migrate URL"
        return [Diagnosis("tables", "problem", symptoms.schema_problem, advice)]
    if symptoms.rights_problem is not None:
        return [
            Diagnosis("rights", "problem", symptoms.rights_problem, "the grants on the page of this store")
        ]
    assert symptoms.overview is not None
    found = [
        *_workers(symptoms.overview),
        *_outcomes(symptoms, symptoms.overview),
        *_growth(symptoms, symptoms.overview),
        *_lease(symptoms),
        *_clock(symptoms),
        *check_tables(symptoms),
        *check_server(symptoms),
    ]
    if symptoms.dialect == "redis":
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


def so_many(past_retention: int) -> str:
    """How many records are past retention, as far as they are counted."""
    return f"{past_retention:,}" + (" or more" if past_retention >= MANY else "")


def _late(since: int | None, now: int, limit: int) -> int | None:
    """How late something is, if that is later than it should be."""
    return now - since if since is not None and now - since > limit else None


def _workers(seen: Overview) -> Iterator[Diagnosis]:
    late = _late(seen.oldest_due, seen.now, JOBS_LATE)
    if late is not None:
        yield Diagnosis(
            "no_worker",
            "problem",
            f"Jobs are waiting, the oldest due for {span(late)}: no worker seems to run, or none keeps up.",
            "samekey worker module:idempotency",
        )
    late = _late(seen.oldest_other_end, seen.now, LEASES_LATE)
    if late is not None:
        count = seen.ended_leases - seen.ended_phased
        yield Diagnosis(
            "no_sweeper",
            "problem",
            f"{_many(count, 'record')} in progress with a lease that ended, the oldest {span(late)} ago: no "
            "sweeper seems to run.",
            "samekey worker module:idempotency, or for now: samekey sweep",
        )
    late = _late(seen.oldest_phased_end, seen.now, PHASED_LATE)
    if late is not None:
        yield Diagnosis(
            "no_completer",
            "problem",
            f"{_many(seen.ended_phased, 'abandoned phased operation')}, the oldest {span(late)} ago: no "
            "completer seems to run, or none that knows their definition.",
            "samekey worker module:idempotency, with the versions that these operations began with",
        )
    late = _late(seen.oldest_asking, seen.now, ASKING_LATE)
    if late is not None:
        yield Diagnosis(
            "no_reconciler",
            "problem",
            f"An unknown outcome should have been asked about {span(late)} ago: no reconciler seems to run.",
            "samekey worker module:idempotency, or for now: samekey reconcile module:idempotency",
        )
    late = _late(seen.oldest_expiry, seen.now, RETENTION_LATE)
    if late is not None:
        yield Diagnosis(
            "no_reaper",
            "problem",
            f"Records past retention: {so_many(seen.past_retention)}, the oldest for {span(late)}: no reaper "
            "seems to run, so the table grows.",
            "samekey worker module:idempotency, or for now: samekey reap",
        )


def _outcomes(symptoms: Symptoms, seen: Overview) -> Iterator[Diagnosis]:
    old = _late(seen.oldest_unknown, seen.now, UNKNOWN_OLD)
    if old is not None:
        yield Diagnosis(
            "old_unknown",
            "problem",
            f"{_many(seen.unknown, 'operation')} with an unknown outcome, the oldest for {span(old)}: "
            "whoever retries is told to wait.",
            "samekey keys list --state unknown, then samekey keys show ID",
        )
    if seen.dead_letters or seen.dead_jobs:
        yield Diagnosis(
            "dead_letters",
            "problem",
            f"Dead letters: {_many(seen.dead_letters, 'operation')} and {_many(seen.dead_jobs, 'job')}. "
            "Nothing more is tried until somebody decides.",
            "samekey dead list, then samekey dead show ID",
        )
    if symptoms.evidence:
        count = symptoms.evidence
        yield Diagnosis(
            "evidence",
            "problem",
            f"Events that somebody must see to: {count.get('conflict', 0)} contradict an answer, "
            f"{count.get('ambiguous', 0)} fit more than one operation, {count.get('waiting', 0)} could not "
            "be placed.",
            "samekey evidence list, then samekey keys show ID",
        )
    waiting = _late(seen.oldest_pending, seen.now, PENDING_OLD)
    if waiting is not None:
        yield Diagnosis(
            "old_pending",
            "problem",
            f"{_many(seen.pending, 'accepted operation')} not finished, the oldest for {span(waiting)}.",
            "samekey keys list --state pending; is a worker running that knows their jobs?",
        )
    if symptoms.lookups is not None and None not in symptoms.lookups:
        missing = [name for name in symptoms.unknown_endpoints if name not in symptoms.lookups]
        if missing:
            yield Diagnosis(
                "no_lookup",
                "problem",
                f"Outcomes are unknown at {', '.join(missing)}, and there is no lookup to find them out.",
                '@idempotency.lookup("POST /…") in your application',
            )


def _growth(symptoms: Symptoms, seen: Overview) -> Iterator[Diagnosis]:
    if seen.past_retention > max(PILE, min(seen.records // 2, MANY - 1)):
        yield Diagnosis(
            "growing",
            "problem",
            f"{so_many(seen.past_retention)} of {seen.records:,} records are past retention: the reaper "
            "cannot keep up.",
            "samekey reap, then run the reaper more often, or keep keys for a shorter time",
        )


def _lease(symptoms: Symptoms) -> Iterator[Diagnosis]:
    advice = lease_advice(symptoms.durations)
    if advice is None:
        return
    lease = DEFAULT_LEASE if symptoms.lease_ms is None else symptoms.lease_ms
    measured = f"99 % of {advice.runs:,} runs took less than {span(advice.p99)}"
    if lease < 2 * advice.p99:
        whose = "the default lease" if symptoms.lease_ms is None else "the lease"
        yield Diagnosis(
            "short_lease",
            "problem" if symptoms.lease_ms is not None else "note",
            f"{measured}; {whose} of {span(lease)} is short for that: a paused process loses it too soon.",
            f"a lease of {span(advice.shortest_lease)} to {span(advice.longest_lease)}",
        )


def _clock(symptoms: Symptoms) -> Iterator[Diagnosis]:
    if abs(symptoms.skew_ms) > SKEW:
        which = "ahead of" if symptoms.skew_ms > 0 else "behind"
        yield Diagnosis(
            "clock_skew",
            "problem",
            f"The store's clock is {span(abs(symptoms.skew_ms))} {which} this machine's. Leases live by the "
            "store's, but logs will not fit together and fresh requests may be taken for stale.",
            "run NTP on both machines",
        )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
