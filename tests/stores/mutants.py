"""Stores with one statement broken. A suite that does not notice is not worth running."""

from __future__ import annotations

from typing import Final

from samekey.stores.sql.queries import Queries

MUTANTS: Final = [
    ("reserve", "on conflict (scope, key) do nothing", "on conflict (scope, key) do update set key = key"),
    ("reserve", ":lease_ms", "0"),
    ("retry", "attempt = :attempt,", ""),
    ("retry", "attempts = attempts + 1", "attempts = attempts"),
    ("resume", "attempt = :attempt,", ""),
    ("reuse", ":id, :tenant", "id, :tenant"),  # keep the old id
    ("reuse", "attempt = :seen", ":seen <> ''"),
    ("end_lease", "locked_until = null", "locked_until = locked_until"),
    ("end_lease", "'unknown'", "'failed_retryable'"),
    ("renew", "(scope, key, attempt) in", "(scope, key, scope) not in"),
    ("renew", "'in_progress'", "'in_progress', 'completed'"),
    ("complete", "and attempt = :attempt", ""),
    ("complete", "'unknown'", "'pending'"),
    ("complete", "coalesce(:provider_id, provider_id)", ":provider_id"),
    ("complete", "answer_body = :answer_body", "answer_body = x''"),
    ("fail", "and attempt = :attempt", ""),
    ("fail", "'in_progress', ", ""),
    ("lose", "and attempt = :attempt", ""),
    ("lose", "locked_until = null", "locked_until = locked_until"),
    ("release", "and attempt = :attempt", ""),
    ("release", "scope = :scope and", ""),
    ("expire", "and expires_at <= ", "and expires_at + 1 <= "),
    ("expire", "answer_body = null", "answer_body = answer_body"),
]
"""(statement, what is right in it, what to put there). SQLite's, where they are cheapest to run."""


def mutated(name: str, right: str, wrong: str) -> Queries:
    """The queries of SQLite with one of them broken."""
    queries = Queries("sqlite")
    sql = queries[name].sql
    assert right in sql, f"{name} no longer says {right!r}"
    queries._queries[name] = queries.build(name, sql.replace(right, wrong))
    return queries
