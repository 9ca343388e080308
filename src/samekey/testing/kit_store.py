"""A store made empty, or older: what tests do between two requests in place of waiting."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ..core.program import BEGIN, Program, Statement
from ..stores.sql.queries import Queries

TIMES: Final = {
    "keys": ("created_at", "last_run_at", "completed_at", "locked_until", "expires_at"),
    "inputs": ("created_at",),
    "phases": ("intent_at", "done_at"),
    "jobs": ("created_at", "run_at", "due_at", "done_at"),
    "effects": ("sent_at", "settled_at"),
    "evidence": ("occurred_at", "received_at", "looked_at"),
    "audit": ("at",),
}
"""Every moment that is kept. Moving them all into the past is the same as moving the clock on."""


def age(queries: Queries, by: timedelta) -> Program[None]:
    """Everything that the store holds happened that much earlier."""
    yield BEGIN
    for table, columns in TIMES.items():
        moved = ", ".join(f"{column} = {column} - :by" for column in columns)
        milliseconds = round(by.total_seconds() * 1000)
        yield _statement(queries, f"update {{{table}}} set {moved}", by=milliseconds)  # noqa: S608 - ours
    yield _statement(queries, "delete from {limits}")  # they count by the minute


def empty(queries: Queries) -> Program[None]:
    """Nothing is left in the store: no key, no job, no line of the audit."""
    yield BEGIN
    # The keys first: what their triggers leave behind goes with the rest.
    for table in ("keys", "jobs", "inputs", "phases", "effects", "made", "evidence", "limits", "audit"):
        yield _statement(queries, f"delete from {{{table}}}")  # noqa: S608 - names of ours


def _statement(queries: Queries, sql: str, **values: int) -> Statement:
    return Statement(queries.build("of a test", sql), values)
