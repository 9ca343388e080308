"""Upkeep: leases that ran out, and records that are old. Safe on many nodes at once.

Nothing depends on it for correctness: a claim ends a lease itself, and expiry is checked when a record is
read.
"""

from __future__ import annotations

from ...core.program import Program
from ...core.record import Answer, Record
from ..protocols import KEEP_MS
from ..readable import Tell, records
from ..statements import Statements


class DynamoUpkeep:
    """``samekey.stores.protocols.Tending`` for DynamoDB."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def sweep(self, *, batch: int, tell: Tell | None = None, now: int | None = None) -> Program[list[Record]]:
        rows = yield self._statements.statement("sweep", now, batch=batch)
        return records(rows, tell)

    def to_sweep(self, *, now: int | None = None) -> Program[dict[str, int]]:
        rows = yield self._statements.statement("count_sweep", now)
        return {str(mode): int(count) for mode, count in rows}  # type: ignore[arg-type]

    def reap(
        self, *, batch: int, keep_ms: int = KEEP_MS, soft: bool = False, now: int | None = None
    ) -> Program[int]:
        statement = self._statements.statement("reap", now, batch=batch, keep_ms=keep_ms, soft=int(soft))
        return len((yield statement))

    def to_reap(self, *, now: int | None = None) -> Program[dict[str, int]]:
        rows = yield self._statements.statement("count_reap", now)
        return {str(state): int(count) for state, count in rows}  # type: ignore[arg-type]

    # A key store carries no deferred work, so nothing is ever pending.

    def abandoned(
        self, *, timeout_ms: int, batch: int, now: int | None = None
    ) -> Program[list[tuple[str, str, str]]]:
        yield from ()
        return []

    def to_time_out(self, *, timeout_ms: int, now: int | None = None) -> Program[int]:
        yield from ()
        return 0

    def time_out(
        self, scope: str, key: str, operation_id: str, answer: Answer, *, now: int | None = None
    ) -> Program[bool]:
        yield from ()
        return False
