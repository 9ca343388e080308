"""The programs of upkeep: sweep leases that ran out, time out what nobody started, reap what is old.

Each works on a small batch and locks only the rows that it changes, skipping those that somebody else holds:
any number of nodes may run them, and no claim waits for them. The audit table names them as who acted.
"""

from __future__ import annotations

import json

from ...core.program import BEGIN, Program
from ...core.record import Answer, Record
from ..keys import answer_values
from ..protocols import KEEP_MS, Actor
from ..readable import Tell, records
from .keys import SqlKeys
from .operator import act_as, act_end

SWEEPER = Actor("sweeper")
"""The reason is the record's own: why its lease ended is in its error code."""
REAPER = Actor("reaper", "retention is over")


class JobHeld(Exception):
    """A worker has begun the operation's job, so the operation cannot be timed out."""


class Upkeep:
    """Programs for one dialect."""

    def __init__(self, keys: SqlKeys) -> None:
        self._queries = keys.queries

    def sweep(self, *, batch: int, tell: Tell | None = None, now: int | None = None) -> Program[list[Record]]:
        """Moves records whose lease ran out, each by its mode; gives them as they are now."""
        yield BEGIN
        yield from act_as(self._queries, SWEEPER)
        rows = [*(yield self._queries.statement("sweep", now, batch=batch))]
        if len(rows) < batch:
            rows += yield self._queries.statement("sweep_unbegun", now, batch=batch - len(rows))
        yield from act_end(self._queries)
        return records(rows, tell)

    def to_sweep(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many records a sweep would move, by mode. Changes nothing."""
        rows = yield self._queries.statement("count_sweep", now)
        return {str(mode): int(count) for mode, count in rows}  # type: ignore[arg-type]

    def reap(
        self, *, batch: int, keep_ms: int = KEEP_MS, soft: bool = False, now: int | None = None
    ) -> Program[int]:
        """Deletes or buries settled records past retention, each as it says itself; gives how many.

        ``keep_ms``: how long a tombstone is kept, but for those of ``gone``, which stay; and a job that ended
        after its operation was gone. ``soft``: bury all.
        """
        yield BEGIN
        yield from act_as(self._queries, REAPER)
        buried = [*(yield self._queries.statement("bury_answers", now, batch=batch, keep_ms=keep_ms))]
        left, deleted = batch - len(buried), 0
        if left and soft:
            buried += yield self._queries.statement("bury_softly", now, batch=left, keep_ms=keep_ms)
        elif left:
            deleted = len((yield self._queries.statement("reap", now, batch=left)))
        yield from self._reap_parts([str(row[0]) for row in buried])
        yield from act_end(self._queries)
        left = batch - len(buried) - deleted
        yield from act_as(self._queries, Actor("reaper", "the tombstone's time is over"))
        forgotten = (yield self._queries.statement("reap_tombstones", now, batch=left)) if left else ()
        yield from act_end(self._queries)
        left -= len(forgotten)
        jobs = (
            (yield self._queries.statement("reap_lone_jobs", now, batch=left, keep_ms=keep_ms))
            if left
            else ()
        )
        return len(buried) + deleted + len(forgotten) + len(jobs)

    def to_reap(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many records are past retention, by state. Changes nothing."""
        rows = yield self._queries.statement("count_reap", now)
        return {str(state): int(count) for state, count in rows}  # type: ignore[arg-type]

    def _reap_parts(self, ids: list[str]) -> Program[None]:
        if not ids:
            return
        # What the provider has made is known as a former life's to whatever follows.
        for name in ("bury_ids", "reap_jobs", "reap_phases", "reap_inputs", "reap_effects", "reap_evidence"):
            yield self._queries.statement(name, None, ids=ids, id_list=json.dumps(ids))

    def prune_audit(
        self, *, older_ms: int, after: int, batch: int, count_only: bool = False, now: int | None = None
    ) -> Program[tuple[int, int]]:
        """One slice of the audit, from the line ``after`` on: what is older goes, but for the story of an
        operation that is still there, and the ends of its key's former lives. Gives how many, and the line to
        go on after (0: that was all)."""
        yield BEGIN
        rows = yield self._queries.statement("clock", now)
        before = int(rows[0][0]) - older_ms  # type: ignore[arg-type]
        rows = yield self._queries.statement("audit_slice", now, after=after, before=before, batch=batch)
        last, newest, old = rows[0]
        if last is None:
            return 0, 0
        assert isinstance(last, int) and isinstance(newest, int) and isinstance(old, int)
        if old and not count_only:
            yield self._queries.statement("prune_audit", now, after=after, last=last, before=before)
        return old, last if newest < before else 0

    def note_pruning(self, actor: Actor) -> Program[None]:
        """Who has shortened the audit, and why."""
        yield self._queries.statement("note_pruning", None, actor=actor.name, reason=actor.reason)

    def abandoned(
        self, *, timeout_ms: int, batch: int, now: int | None = None
    ) -> Program[list[tuple[str, str, str]]]:
        """Pending operations that have waited too long: scope, key and operation id."""
        rows = yield self._queries.statement("find_abandoned", now, timeout_ms=timeout_ms, batch=batch)
        return [(str(scope), str(key), str(operation_id)) for scope, key, operation_id in rows]

    def to_time_out(self, *, timeout_ms: int, now: int | None = None) -> Program[int]:
        """How many pending operations have waited too long. Changes nothing."""
        rows = yield self._queries.statement("count_abandoned", now, timeout_ms=timeout_ms)
        return int(rows[0][0])  # type: ignore[arg-type]

    def time_out(
        self, scope: str, key: str, operation_id: str, answer: Answer, *, now: int | None = None
    ) -> Program[bool]:
        """Closes a pending operation with a stored failure and cancels its job in the same transaction.

        ``JobHeld`` if a worker has taken the job meanwhile, even if it has let it go again: what was begun
        may have happened, and the worker's result will count.
        """
        yield BEGIN
        yield from act_as(self._queries, Actor("reaper", "nobody started it in time"))
        yield self._queries.statement("cancel_jobs", now, operation_id=operation_id)
        rows = yield self._queries.statement("count_begun", now, operation_id=operation_id)
        if rows[0][0]:
            raise JobHeld
        rows = yield self._queries.statement(
            "time_out",
            now,
            scope=scope,
            key=key,
            operation_id=operation_id,
            **answer_values(answer),
        )
        yield from act_end(self._queries)
        return bool(rows)
