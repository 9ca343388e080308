"""The programs of upkeep: sweep leases that ran out, time out what nobody started, reap what is old.

Each works on a small batch and locks only the rows that it changes, skipping those that somebody else holds:
any number of nodes may run them, and no claim waits for them.
"""

from __future__ import annotations

import json

from ...core.program import BEGIN, Program
from ...core.record import Answer, Record, decode_record
from .keys import Keys, answer_values


class JobHeld(Exception):
    """A worker holds the operation's job, so the operation cannot be timed out now."""


class Upkeep:
    """Programs for one dialect."""

    def __init__(self, keys: Keys) -> None:
        self._queries = keys.queries

    def sweep(self, *, batch: int, now: int | None = None) -> Program[list[Record]]:
        """Moves records whose lease ran out, each by its mode; gives them as they are now."""
        rows = yield self._queries.statement("sweep", now, batch=batch)
        return [decode_record(row[1:]) for row in rows]

    def reap(self, *, batch: int, now: int | None = None) -> Program[int]:
        """Deletes settled records past retention, with all that belonged to them."""
        yield BEGIN
        rows = yield self._queries.statement("reap", now, batch=batch)
        yield from self._reap_parts([str(row[0]) for row in rows])
        return len(rows)

    def bury(self, *, batch: int, keep_ms: int, now: int | None = None) -> Program[int]:
        """Turns settled records past retention into tombstones, and deletes tombstones past theirs."""
        yield BEGIN
        rows = yield self._queries.statement("bury_answers", now, batch=batch, keep_ms=keep_ms)
        gone = yield self._queries.statement("reap_tombstones", now, batch=batch)
        yield from self._reap_parts([str(row[0]) for row in (*rows, *gone)])
        return len(rows) + len(gone)

    def _reap_parts(self, ids: list[str]) -> Program[None]:
        if not ids:
            return
        for name in ("reap_jobs", "reap_phases", "reap_inputs"):
            yield self._queries.statement(name, None, ids=ids, id_list=json.dumps(ids))

    def abandoned(
        self, *, timeout_ms: int, batch: int, now: int | None = None
    ) -> Program[list[tuple[str, str, str]]]:
        """Pending operations that have waited too long: scope, key and operation id."""
        rows = yield self._queries.statement("find_abandoned", now, timeout_ms=timeout_ms, batch=batch)
        return [(str(scope), str(key), str(operation_id)) for scope, key, operation_id in rows]

    def time_out(
        self, scope: str, key: str, operation_id: str, answer: Answer, *, now: int | None = None
    ) -> Program[bool]:
        """Closes a pending operation with a stored failure and cancels its job in the same transaction.

        ``JobHeld`` if a worker has taken the job meanwhile: then the worker's result will count.
        """
        yield BEGIN
        yield self._queries.statement("cancel_jobs", now, operation_id=operation_id)
        rows = yield self._queries.statement("count_live_jobs", now, operation_id=operation_id)
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
        return bool(rows)
