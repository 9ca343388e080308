"""The programs of upkeep on Redis: sweep leases that ran out, forget or bury what is past retention.

What is due is found in the partitions' indexes, and each record is looked at again when it is changed: any
number of nodes may do it at once. Settled records also go by themselves, a day after their retention, if
nobody comes.
"""

from __future__ import annotations

from ...core.program import Program
from ...core.record import Answer, Record
from ..protocols import KEEP_MS
from ..readable import Tell, records
from .finding import due
from .scripts import RedisStatements


class RedisUpkeep:
    """Upkeep of a store that keeps keys only."""

    def __init__(self, statements: RedisStatements) -> None:
        self._statements = statements

    def sweep(self, *, batch: int, tell: Tell | None = None, now: int | None = None) -> Program[list[Record]]:
        """Moves records whose lease ran out, each by its mode; gives them as they are now."""
        bases = yield from due(self._statements, "leases", batch, now)
        if not bases:
            return []
        rows = yield self._statements.statement("sweep", now, at=bases)
        return records(rows, tell)

    def to_sweep(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many records a sweep would move, by mode. Changes nothing."""
        return (yield from self._counted("count_sweep", now))

    def reap(
        self, *, batch: int, keep_ms: int = KEEP_MS, soft: bool = False, now: int | None = None
    ) -> Program[int]:
        """Deletes or buries settled records past retention, each as it says itself; gives how many."""
        bases = yield from due(self._statements, "settled", batch, now)
        if not bases:
            return 0
        rows = yield self._statements.statement("reap", now, at=bases, keep_ms=keep_ms, soft=int(soft))
        return len(rows)

    def to_reap(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many records are past retention, by state. Changes nothing."""
        return (yield from self._counted("count_reap", now))

    def _counted(self, name: str, now: int | None) -> Program[dict[str, int]]:
        rows = yield self._statements.statement(name, now, at=None)
        counts: dict[str, int] = {}
        for what, count in rows:
            counts[str(what)] = counts.get(str(what), 0) + int(count or 0)
        return dict(sorted(counts.items()))

    # Deferred work needs a transaction, so nothing is ever pending here.

    def abandoned(
        self, *, timeout_ms: int, batch: int, now: int | None = None
    ) -> Program[list[tuple[str, str, str]]]:
        """None: a key store has no deferred work."""
        yield from ()
        return []

    def to_time_out(self, *, timeout_ms: int, now: int | None = None) -> Program[int]:
        """None: a key store has no deferred work."""
        yield from ()
        return 0

    def time_out(
        self, scope: str, key: str, operation_id: str, answer: Answer, *, now: int | None = None
    ) -> Program[bool]:
        """False: a key store has no deferred work."""
        yield from ()
        return False
