"""Taking jobs by hand, as a worker does that is then never heard of again."""

from __future__ import annotations

import secrets
from typing import Any

from samekey.core.program import Program
from samekey.stores.sql.jobs import Job, Jobs, Taking


def take(
    jobs: Jobs, *, batch: int = 100, lease_ms: int = 60_000, now: int | None = None, **options: Any
) -> Program[list[Job]]:
    """Jobs of any kind that are due. Their functions are not entered."""
    taken: list[Job] = []
    due = yield from jobs.due(now=now)
    for name in sorted((name for name in due if due[name] <= 0), key=lambda name: due[name]):
        if len(taken) < batch:
            wanted = Taking(name, batch - len(taken), **options)
            taken += yield from jobs.take(secrets.token_hex(16), wanted, lease_ms=lease_ms, now=now)
    return taken


def begin(jobs: Jobs, *, now: int | None = None, **options: Any) -> Program[list[Job]]:
    """The same, and their functions are entered; those that could not be are left out."""
    taken = yield from take(jobs, now=now, **options)
    if not taken:
        return []
    return (yield from jobs.enter(taken, now=now))
