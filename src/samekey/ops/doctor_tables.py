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
HISTORY: Final = 1_000_000
"""Changes that MySQL has not cleared away. Some thousands are ordinary."""
ROOM: Final = 1 << 30
"""Bytes that are empty, in a table or a file; less is not worth an operator's time."""
LONG_TRANSACTION: Final = 15 * 60
"""Seconds. No request takes so long; and as long as it lasts, nothing that is deleted can be cleared away."""
CROWDED: Final = 0.9
"""Of ``max_connections``: the next deployment, or the next incident, takes the rest."""


def check_tables(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """What is wrong with the tables, and with those who use the database beside us."""
    yield from _missing(symptoms)
    yield from _bloat(symptoms)
    yield from _room(symptoms)
    yield from _company(symptoms)


def _missing(symptoms: Symptoms) -> Iterator[Diagnosis]:
    triggers = [name for name in symptoms.missing if name.startswith(TRIGGERS)]
    indexes = [name for name in symptoms.missing if name not in triggers]
    mend = "samekey migrate --print-sql has its definition"
    how = ": create index concurrently" if symptoms.dialect == "postgres" else ""
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
            mend + how,
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


def _room(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """Where there is no vacuum: MySQL purges by itself, and neither it nor SQLite gives room back."""
    facts = symptoms.facts
    waiting = int(facts.get("not_cleared", 0))
    if waiting > HISTORY:
        yield Diagnosis(
            "bloat",
            "problem",
            f"{waiting:,} changes are not cleared away yet (the history list): reading gets slower.",
            "see what holds purge up: an old transaction, in any database of this server",
        )
    for name in sorted(facts):
        table = name.removeprefix("free_room ")
        free, used = int(facts[name]) if table != name else 0, int(facts.get(f"used_room {table}", 0))
        if free > max(ROOM, used // 2):
            yield Diagnosis(
                "room",
                "note",
                f"{free >> 20:,} MB of {table} are empty, since much was deleted. They are used again, but "
                "not given back.",
                f"optimize table {table}" if symptoms.dialect == "mysql" else "vacuum, while nobody writes",
            )


def _company(symptoms: Symptoms) -> Iterator[Diagnosis]:
    facts, mysql = symptoms.facts, symptoms.dialect == "mysql"
    oldest = facts.get("oldest_transaction", "0 s")
    if int(oldest.partition(" ")[0]) >= LONG_TRANSACTION:
        yield Diagnosis(
            "long_transaction",
            "problem",
            f"A transaction has been open for {oldest}. Until it ends nothing can be "
            f"{'purged' if mysql else 'vacuumed'}, and migrations wait.",
            f"{'kill SESSION' if mysql else 'pg_terminate_backend(session)'}, after asking whose it is",
        )
    used, most = int(facts.get("connections", 0)), int(facts.get("max_connections", 0))
    if most and used >= CROWDED * most:
        yield Diagnosis(
            "connections",
            "problem",
            f"{used} of {most} connections are in use: soon nobody can connect, and requests get 503.",
            "a pooler, or a smaller pool_size; each process has up to twice its pool_size",
        )
