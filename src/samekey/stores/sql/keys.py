"""The key table of a SQL store: the programs of every store, on the statements of one dialect."""

from __future__ import annotations

from ...core.program import Program
from ...core.record import Lease
from ...errors import StoreBusy
from ..keys import Keys as AnyKeys
from .queries import Queries


class SqlKeys(AnyKeys):
    """Programs on the key table of one dialect."""

    def __init__(self, queries: Queries) -> None:
        super().__init__(queries)
        self.queries = queries

    def give_back(self, lease: Lease, claim_id: str, *, now: int | None = None) -> Program[bool]:
        """``StoreBusy`` while nobody can tell whether the claim is there: it may be done and not be seen."""
        given = yield from super().give_back(lease, claim_id, now=now)
        if not given and "kept_waiting" in self.queries:
            waiting = yield self.queries.statement("kept_waiting", now)
            if waiting:
                raise StoreBusy(
                    "Commits wait for a synchronous standby, so a claim may be done and not be seen."
                )
        return given
