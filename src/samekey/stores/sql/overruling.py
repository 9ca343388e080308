"""Setting aside what providers say: by an operator, event by event, before an act that says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.disputes import Yes, check_set_aside, yes_of
from ...core.effects import Says
from ...core.program import Program
from .queries import Queries


class Moved(Exception):
    """The record moved between looking and writing: what was written goes, and it is looked at again."""


def waiting_yeses(queries: Queries, operation_id: str) -> Program[list[Yes]]:
    """The events by which providers say that something of this operation happened, and that wait."""
    rows = yield queries.statement("unsettled_evidence", None, operation_id=operation_id)
    return [yes_of(row) for row in rows if row[6] == Says.EXECUTED]


def overrule(
    queries: Queries,
    operation_id: str,
    despite: Sequence[str],
    concerns: Callable[[Yes], bool] = lambda _: True,
) -> Program[bool]:
    """Before an act that has something of an operation sent again, or says that it did not happen; the
    operation is locked. ``Contradicted`` if an event that it ``concerns`` is not named in ``despite``.
    Whether any was set aside: if the act then changes nothing, this must be taken back (``Moved``)."""
    waiting = [one for one in (yield from waiting_yeses(queries, operation_id)) if concerns(one)]
    check_set_aside(waiting, despite)
    for one in waiting:
        yield queries.statement(
            "mark_evidence",
            None,
            source=one.source,
            event_id=one.event_id,
            operation_id=operation_id,
            about=one.about or "",
            state="late",
        )
    if waiting:
        yield queries.statement("undispute", None, operation_id=operation_id)
    return bool(waiting)
