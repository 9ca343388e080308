"""A dry run of ``keys resolve``: what would come of it, refusals included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.disputes import check_set_aside
from ..core.program import Program
from ..core.record import Record
from ..core.states import State
from ..evidence import Evidence, Executed
from ..stores.protocols import Actor
from .target import OperatorStore


class _Rehearsed(Exception):
    """Takes back what was written, and says what it came to."""

    def __init__(self, became: State | None) -> None:
        self.became = became


def rehearse(
    store: OperatorStore, act: Callable[[], Program[bool]], operation_id: str, despite: Sequence[str]
) -> None:
    """An act on a dead letter, taken back: ``Contradicted`` as in earnest. A store that cannot take back is
    only asked what waits."""

    def rehearsal() -> Program[None]:
        yield from act()
        raise _Rehearsed(None)

    if not store.has_tables:
        check_set_aside(store.ask(lambda: store.finding.disputed_by(operation_id)), despite)
        return
    try:
        store.act(rehearsal)
    except _Rehearsed:
        pass


def rehearsed(
    store: OperatorStore, record: Record, evidence: Evidence, who: Actor, despite: Sequence[str]
) -> State | None:
    """It is done, looked at and taken back. None where a store cannot take back, or somebody else was faster;
    ``Contradicted`` as in earnest."""

    def rehearsal() -> Program[None]:
        applied = yield from store.resolver.apply(record, evidence, who, despite=despite)
        now = yield from store.finding.by_id(record.id)
        raise _Rehearsed(now.state if applied and now is not None else None)

    if not store.has_tables:
        if not isinstance(evidence, Executed):
            check_set_aside(store.ask(lambda: store.finding.disputed_by(record.id)), despite)
        return None
    try:
        store.act(rehearsal)
    except _Rehearsed as ended:
        return ended.became
    return None
