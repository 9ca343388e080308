"""The schema, version by version, as programs. Two migrators at once are safe: one waits, then finds the
work done.

A file ``migrations/0002_name.sql`` is version 2. Its first line may be ``-- min_compatible: 1``: the
oldest code version that still runs on that schema, so that old processes live on during a roll-out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ...core.program import BEGIN, Dialect, Program, Query, Statement
from ...errors import ConfigurationError, SchemaMismatch, StoreBusy
from .queries import SEES_TRIGGERS, Queries

_COMPATIBLE = re.compile(r"^-- min_compatible: (\d+)$", re.MULTILINE)


_PART = re.compile(
    r"^(create (?:unique )?index|create trigger(?: if not exists)?|    (?:unique )?key) (\w+)", re.MULTILINE
)
"""What a migration makes beside tables; MySQL's indexes stand within them."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One version of the schema."""

    version: int
    name: str
    min_compatible: int
    sql: str


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All versions of a dialect's schema, oldest first."""
    folder = files(__package__).joinpath(dialect, "migrations")
    found = []
    for entry in folder.iterdir():
        if not entry.name.endswith(".sql"):
            continue
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        sql = entry.read_text("utf-8")
        compatible = _COMPATIBLE.search(sql)
        oldest = int(compatible[1]) if compatible else int(number)
        found.append(Migration(int(number), name, oldest, sql))
    return tuple(sorted(found, key=lambda migration: migration.version))


def code_version(dialect: Dialect) -> int:
    """The schema version that this code was written for."""
    return migrations(dialect)[-1].version


PATIENCE_MS = 500
"""How long a migration queues for a lock at a time. All traffic on the table queues behind it meanwhile."""


def migrate(queries: Queries) -> Program[list[Migration]]:
    """Brings the schema up to this code's version; gives what was applied, perhaps nothing.

    ``StoreBusy`` if somebody else holds a table for longer than a moment: nothing is done then, and nothing
    is left in the queue for the lock. Try again.
    """
    yield BEGIN
    if "migration_patience" in queries:
        yield Statement(queries["migration_patience"], {"patience_ms": str(PATIENCE_MS)})
    if "migration_lock" in queries:
        rows = yield _statement(queries["migration_lock"])
        if rows[0][0] == 0:
            raise StoreBusy("Another migration of this database is running. Wait for it and look again.")
    if "create_schema" in queries:
        rows = yield Statement(queries["schema_there"], {"schema_name": queries.schema})
        if not rows[0][0]:
            # Only then: the statement needs the right to create schemas even where it does nothing.
            yield _statement(queries["create_schema"])
    yield _statement(queries["create_versions"])
    rows = yield _statement(queries["schema_versions"])
    there = {row[0] for row in rows}
    applied = []
    for migration in migrations(queries.dialect):
        if migration.version in there:
            continue
        for sql in _statements(migration.sql):
            yield _statement(queries.build(migration.name, sql))
        yield Statement(
            queries["note_version"],
            {"version": migration.version, "min_compatible": migration.min_compatible},
        )
        applied.append(migration)
    if "migration_unlock" in queries:
        yield _statement(queries["migration_unlock"])
    return applied


def is_due(queries: Queries) -> Program[bool]:
    """Whether a migration is missing. Only looks: it waits for nobody who writes."""
    rows = yield Statement(queries["schema_exists"], {"schema_name": queries.schema})
    if not rows[0][0]:
        return True
    rows = yield _statement(queries["schema_versions"])
    there = {row[0] for row in rows}
    return any(migration.version not in there for migration in migrations(queries.dialect))


def waits_for(queries: Queries) -> Program[list[str]]:
    """Who may be in the way of a migration: for a person to read."""
    if "migration_waits_for" not in queries:
        return []
    rows = yield Statement(queries["migration_waits_for"], {"schema_name": queries.schema})
    return [f"session {pid!s} ({name!s}, {state!s}, for {age!s} s)" for pid, name, state, age in rows]


def check(queries: Queries) -> Program[None]:
    """Raises ``SchemaMismatch`` with a sentence that says what to do, or returns."""
    rows = yield Statement(queries["schema_exists"], {"schema_name": queries.schema})
    if not rows[0][0]:
        raise SchemaMismatch("The tables of samekey are missing. Create them: samekey migrate URL")
    rows = yield _statement(queries["schema_versions"])
    ours = code_version(queries.dialect)
    versions = {int(row[0]): int(row[1]) for row in rows}  # type: ignore[arg-type]
    there = max(versions, default=0)
    if there < ours:
        raise SchemaMismatch(
            f"The tables of samekey have version {there}, this code needs {ours}. "
            "Bring them up to date: samekey migrate URL"
        )
    if versions[there] > ours:
        raise SchemaMismatch(
            f"The tables of samekey have version {there}, which needs code of version "
            f"{versions[there]} or newer; this is {ours}. Upgrade samekey in this process."
        )
    if "missing_rights" in queries:
        rows = yield Statement(queries["missing_rights"], {"schema_name": queries.schema})
        if rows[0][0] is not None:
            raise ConfigurationError(
                f"This role lacks rights: permission denied to {rows[0][0]!s}. Grant them, as owner of the "
                f'tables: grant usage on schema "{queries.schema}" to ROLE; grant select, insert, update, '
                f'delete on all tables in schema "{queries.schema}" to ROLE.'
            )


def missing_parts(queries: Queries) -> Program[list[str]]:
    """Indexes and triggers that the migrations have made and that are gone, disabled or not valid."""
    rows = yield _statement(queries["parts_there"])
    there = {str(row[0]).lower() for row in rows}
    unseen = queries.dialect == "mysql" and SEES_TRIGGERS not in there
    made = [
        name
        for one in migrations(queries.dialect)
        for what, name in _PART.findall(one.sql)
        if not (unseen and "trigger" in what)
    ]
    return sorted(name for name in dict.fromkeys(made) if name.lower() not in there)


def script(queries: Queries) -> str:
    """All of the schema as SQL text, for those who migrate with another tool."""
    parts = []
    if "create_schema" in queries:
        parts.append(queries["create_schema"].sql)
    parts.append(queries["create_versions"].sql)
    for migration in migrations(queries.dialect):
        parts.extend(_statements(queries.expand(migration.sql)))
        note = queries["note_version"].sql
        note = note.replace(":version", str(migration.version))
        parts.append(note.replace(":min_compatible", str(migration.min_compatible)))
    if queries.dialect == "mysql":
        # Its client takes every semicolon for an end, also those inside a trigger.
        return "delimiter //\n\n" + "".join(f"{part}//\n\n" for part in parts) + "delimiter ;\n"
    return "".join(f"{part};\n\n" for part in parts)


def _statements(sql: str) -> list[str]:
    """A file's statements: each ends with a semicolon at the end of a line."""
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in "\n".join([*lines, ""]).split(";\n") if part.strip(" \n;")]


def _statement(query: Query) -> Statement:
    return Statement(query, {})
