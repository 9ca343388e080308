"""The doctor's judgement of the tables: what is missing, what bloats, and who is in the way of mending it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .symptoms import Diagnosis, Symptoms

TRIGGERS: Final = tuple(
    f"{prefix}{name}_" for prefix in ("", "samekey_") for name in ("note", "forget", "keep", "next")
)
"""How the names of triggers begin."""
DEAD: Final = 100_000
"""Fewer dead rows are what vacuum comes for next."""
LONG_TRANSACTION: Final = 15 * 60
"""Seconds. No request takes so long; and as long as it lasts, nothing that is deleted can be cleared away."""
CROWDED: Final = 0.9
"""Of ``max_connections``: the next deployment, or the next incident, takes the rest."""


def check_tables(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """What is wrong with the tables, and with those who use the database beside us."""
    yield from _missing(symptoms)
    yield from _bloat(symptoms)
    yield from _company(symptoms)


def _missing(symptoms: Symptoms) -> Iterator[Diagnosis]:
    triggers = [name for name in symptoms.missing if name.startswith(TRIGGERS)]
    indexes = [name for name in symptoms.missing if name not in triggers]
    mend = "samekey migrate --print-sql has its definition"
    if triggers:
        yield Diagnosis(
            "missing_trigger",
            "problem",
            f"Triggers are missing or disabled: {', '.join(triggers)}. Acts leave no trace in the audit, or "
            "what belongs to an operation stays behind.",
            mend,
        )
    if indexes:
        yield Diagnosis(
            "missing_index",
            "problem",
            f"Indexes are missing or not valid: {', '.join(indexes)}. Some statements read whole tables.",
            f"{mend}: create index concurrently",
        )


def _bloat(symptoms: Symptoms) -> Iterator[Diagnosis]:
    facts = symptoms.facts
    for name in sorted(facts):
        if not name.startswith("dead_rows "):
            continue
        table = name.removeprefix("dead_rows ")
        dead, live = int(facts[name]), int(facts.get(f"live_rows {table}", 0))
        if dead > max(DEAD, live // 2):
            yield Diagnosis(
                "bloat",
                "problem",
                f"{dead:,} dead rows in the table {table} and {live:,} live ones: autovacuum cannot keep up.",
                f"vacuum the table {table}; see what holds it up: an old transaction, a replication slot",
            )
    unvacuumed = facts.get("unvacuumed") or ("all" if facts.get("autovacuum") == "off" else None)
    if unvacuumed is not None:
        yield Diagnosis(
            "no_autovacuum",
            "problem",
            f"Autovacuum is off for these tables: {unvacuumed}. They only grow.",
            "autovacuum = on, and alter table … reset (autovacuum_enabled)",
        )


def _company(symptoms: Symptoms) -> Iterator[Diagnosis]:
    facts = symptoms.facts
    oldest = facts.get("oldest_transaction", "0 s")
    if int(oldest.partition(" ")[0]) >= LONG_TRANSACTION:
        yield Diagnosis(
            "long_transaction",
            "problem",
            f"A transaction has been open for {oldest}. Until it ends nothing can be vacuumed, and migrations"
            " wait.",
            "end it: pg_terminate_backend(session), after asking whose it is",
        )
    used, most = int(facts.get("connections", 0)), int(facts.get("max_connections", 0))
    if most and used >= CROWDED * most:
        yield Diagnosis(
            "connections",
            "problem",
            f"{used} of {most} connections are in use: soon nobody can connect, and requests get 503.",
            "a pooler, or a smaller pool_size; each process has up to twice its pool_size",
        )
