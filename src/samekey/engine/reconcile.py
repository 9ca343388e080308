"""Resolving unknown outcomes: by a provider's webhook, by a lookup, by an operator.

Whatever comes late, early, twice or out of order never moves a settled record.
"""

from __future__ import annotations

from enum import StrEnum

from ..core.program import BEGIN, Program
from ..core.record import Record
from ..core.states import State
from ..evidence import (
    Declined,
    Evidence,
    Executed,
    decode_evidence,
    encode_evidence,
)
from ..response import answer_of
from ..stores.sql.keys import Keys
from ..stores.sql.operator import Actor, Operator


class Resolution(StrEnum):
    """What became of a piece of evidence."""

    RESOLVED = "resolved"
    """It settled the operation."""
    DUPLICATE = "duplicate"
    """This event was seen before."""
    KEPT = "kept"
    """The operation is still running; the evidence waits in case its outcome becomes unknown."""
    TOO_LATE = "too_late"
    """The operation is settled already and stays as it is."""
    NOT_FOUND = "not_found"
    """No such operation, or it was reaped."""


class Resolver:
    """Applies evidence to records."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.operator = Operator(keys)

    def apply(self, record: Record, finding: Evidence, actor: Actor) -> Program[bool]:
        """Settles an unknown or dead record. False if somebody else was first."""
        if isinstance(finding, Executed | Declined):
            answer = answer_of(finding.response)
            return self.operator.executed(record.id, answer, actor, provider_id=finding.provider_id)
        return self.operator.not_executed(record.id, actor)

    def receive(
        self,
        event_id: str,
        record: Record | None,
        finding: Evidence,
        actor: Actor,
    ) -> Program[Resolution]:
        """One event of the provider's: noted once, applied if there is something to settle."""
        yield BEGIN
        unsettled = record is not None and record.state in (State.UNKNOWN, State.DEAD_LETTER)
        operation_id = None if record is None else record.id
        early = record is not None and record.state in (State.IN_PROGRESS, State.PENDING)
        fresh = yield from self.operator.note_evidence(
            event_id, operation_id, encode_evidence(finding), applied=not early
        )
        if not fresh:
            return Resolution.DUPLICATE
        if record is None:
            return Resolution.NOT_FOUND
        if early:
            return Resolution.KEPT
        if not unsettled:
            return Resolution.TOO_LATE
        applied = yield from self.apply(record, finding, actor)
        return Resolution.RESOLVED if applied else Resolution.TOO_LATE

    def apply_waiting(self, record: Record) -> Program[bool]:
        """Uses evidence that came while the operation was still running."""
        yield BEGIN
        waiting = yield from self.operator.waiting_evidence(record.id)
        if waiting is None:
            return False
        event_id, outcome = waiting
        yield from self.operator.use_evidence(event_id)
        actor = Actor("webhook", f"event {event_id}, received before the outcome became unknown")
        return (yield from self.apply(record, decode_evidence(outcome), actor))
