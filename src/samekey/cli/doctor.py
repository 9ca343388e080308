"""``samekey doctor``: look at a live store and say what is wrong, and what to do.

Exit codes: 0 healthy, 1 there are findings, 2 the store could not be looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import typer

from ..core.policy import milliseconds
from ..errors import ConfigurationError, SchemaMismatch
from ..idempotency import Idempotency
from ..ops.doctor import examine, lease_advice, so_many, span
from ..ops.symptoms import Diagnosis, Symptoms
from ..stores.redis.check import server_facts, weaknesses_of
from ..stores.redis.finding import RedisFinding
from ..stores.redis.scripts import RedisStatements
from .options import Schema, Timeout, Url
from .output import REFUSED, Json, print_facts, quietly, sentences
from .speech import print_json, say
from .target import OperatorStore, open_store

MEASURED = 10_000
"""Runs whose durations are looked at: enough for a 99th percentile, read in a moment."""
REDIS_FACTS = frozenset(
    {"redis_version", "valkey_version", "maxmemory_policy", "aof_enabled", "appendfsync", "used_memory_human"}
)
PROBES = 3
"""Looks at the store's clock; the quickest is the truest."""


def doctor_command(
    url: Url,
    schema: Schema = "samekey",
    timeout: Timeout = 30,
    as_json: Json = False,
) -> None:
    """Look at a live store and say what is wrong, and what to do about it.

    Given your Idempotency, module:name, it looks at leases and lookups too.
    """
    with sentences(), open_store(url, schema, timeout, checked=False) as store:
        if not _tell(store, as_json=as_json):
            raise typer.Exit(REFUSED)


def tell_about(idempotency: Idempotency, *, as_json: bool = False) -> bool:
    """The same for an ``Idempotency`` that is there already. Whether all is well."""
    return _tell(OperatorStore.of(idempotency), as_json=as_json)


def _tell(store: OperatorStore, *, as_json: bool) -> bool:
    symptoms = _read(store)
    findings = examine(symptoms)
    if as_json:
        _print_json(symptoms, findings)
    else:
        _print(symptoms, findings)
    return not any(finding.level == "problem" for finding in findings)


def _read(store: OperatorStore) -> Symptoms:
    dialect, idempotency = store.drivers.dialect, store.idempotency
    try:
        with quietly():
            store.ask(store.opened.check)
    except SchemaMismatch as problem:
        return Symptoms(dialect=dialect, schema_problem=str(problem))
    except ConfigurationError as problem:
        if store.has_tables:
            if "Grant " not in str(problem):
                raise  # it could not be looked at
            return Symptoms(dialect=dialect, rights_problem=str(problem))
        # A key store that is refused for being unsafe: just what the doctor is to tell about.
    symptoms = Symptoms(
        dialect=dialect,
        overview=store.ask(store.finding.overview),
        skew_ms=_skew(store),
        lease_ms=None if idempotency is None else milliseconds(idempotency.engine.policy.lease),
        lookups=None if idempotency is None else frozenset(idempotency.engine.lookups),
    )
    if store.has_tables:
        return replace(
            symptoms,
            missing=store.ask(store.operator.missing_parts),
            facts=store.ask(store.operator.server_facts) | _transactions(store),
            durations=store.ask(lambda: store.operator.durations(limit=MEASURED)),
            unknown_endpoints=store.ask(store.operator.unknown_endpoints),
            evidence=store.ask(store.effects.to_see_to),
        )
    return _read_redis(store, symptoms) if dialect == "redis" else symptoms


def _transactions(store: OperatorStore) -> dict[str, str]:
    """The oldest transaction on MySQL, which not everybody is shown. PostgreSQL tells it with its facts."""
    if store.drivers.dialect != "mysql":
        return {}
    try:
        oldest = store.ask(store.operator.open_transaction)
    except ConfigurationError:
        return {"open_transactions": "not shown to this user, who lacks the right PROCESS"}
    return {} if oldest is None else {"oldest_transaction": oldest}


def _read_redis(store: OperatorStore, symptoms: Symptoms) -> Symptoms:
    statements = RedisStatements()
    finding = RedisFinding(statements)
    facts = store.ask(lambda: server_facts(statements))
    return replace(
        symptoms,
        facts={
            f"{server} {name}": value
            for server, found in facts.items()
            for name, value in found.items()
            if server and name in REDIS_FACTS
        },
        weaknesses=[(weakness.code, weakness.says, weakness.advice) for weakness in weaknesses_of(facts)],
        durations=store.ask(lambda: finding.durations(limit=MEASURED)),
        unknown_endpoints=store.ask(finding.unknown_endpoints),
    )


def _skew(store: OperatorStore) -> int:
    """The store's clock less ours, taken in the middle of the quickest of a few looks."""
    looks = []
    for _ in range(PROBES):
        before = time.time()
        theirs = store.now()
        after = time.time()
        looks.append((after - before, theirs - round((before + after) * 500)))
    return min(looks)[1]


# ------------------------------------------------------------------ telling


def _print(symptoms: Symptoms, findings: list[Diagnosis]) -> None:
    problems = sum(finding.level == "problem" for finding in findings)
    if problems:
        say(f"{problems} {'thing needs' if problems == 1 else 'things need'} attention.")
    else:
        say("All is well.")
    for finding in findings:
        say("")
        say(f"{'✗' if finding.level == 'problem' else '·'} {finding.says}")
        say(f"  → {finding.advice}")
    if symptoms.overview is not None:
        say("")
        print_facts(_facts(symptoms))


def _facts(symptoms: Symptoms) -> Iterator[tuple[str, str]]:
    seen = symptoms.overview
    assert seen is not None
    yield "records", f"{seen.records:,}"
    yield "pending", f"{seen.pending:,}"
    yield "unknown", _with_age(seen.unknown, seen.oldest_unknown, seen.now)
    yield "dead letters", f"operations {seen.dead_letters:,}, jobs {seen.dead_jobs:,}"
    yield "jobs waiting", f"{seen.live_jobs:,}"
    yield "past retention", so_many(seen.past_retention)
    advice = lease_advice(symptoms.durations)
    if advice is None:
        yield "durations", f"{len(symptoms.durations)} measured: too few to recommend a lease"
    else:
        yield (
            "durations",
            f"{advice.runs:,} measured: half under {span(advice.p50)}, 99 % under {span(advice.p99)}, "
            f"longest {span(advice.longest)}",
        )
        low, high = span(advice.shortest_lease), span(advice.longest_lease)
        yield (
            "lease",
            f"recommended {low if low == high else f'{low} to {high}'}"
            + ("" if symptoms.lease_ms is None else f", configured {span(symptoms.lease_ms)}"),
        )
    yield "clock", f"{symptoms.skew_ms:+} ms from this machine's"
    for name, value in sorted(symptoms.facts.items()):
        if name.startswith(("dead_rows ", "live_rows ", "used_room ", "free_room ")):
            continue  # a finding tells of those that matter
        yield name.replace("_", " "), f"{int(value):,}" if name.endswith("_bytes") else value


def _with_age(count: int, oldest: int | None, now: int) -> str:
    return f"{count:,}" if oldest is None else f"{count:,}, the oldest for {span(max(0, now - oldest))}"


def _print_json(symptoms: Symptoms, findings: list[Diagnosis]) -> None:
    advice = lease_advice(symptoms.durations)
    print_json(
        {
            "healthy": not any(finding.level == "problem" for finding in findings),
            "findings": [asdict(finding) for finding in findings],
            "figures": symptoms.overview and asdict(symptoms.overview),
            "facts": dict(symptoms.facts),
            "skew_ms": symptoms.skew_ms,
            "lease": advice and asdict(advice),
        }
    )
