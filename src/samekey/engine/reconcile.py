"""Resolving unknown outcomes: by a provider's webhook, by a lookup, by an operator.

Whatever comes late, early, twice or out of order never moves a settled record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from ..core.program import BEGIN, Program
from ..core.record import Record
from ..core.states import State
from ..evidence import (
    Declined,
    Evidence,
    Executed,
    answer_in,
    check_evidence,
    decode_evidence,
    encode_evidence,
)
from ..stores.protocols import Actor, Finding
from ..stores.sql.operator import Operator, Waiting


class Resolution(StrEnum):
    """What became of a piece of evidence."""

    RESOLVED = "resolved"
    """It settled the operation."""
    DUPLICATE = "duplicate"
    """This event was seen before."""
    KEPT = "kept"
    """The operation is still running; the evidence waits in case its outcome becomes unknown."""
    TOO_EARLY = "too_early"
    """The operation is still running, and a key store keeps no evidence: have the provider send it again."""
    TOO_LATE = "too_late"
    """The operation is settled already and stays as it is."""
    NOT_FOUND = "not_found"
    """No such operation, not yet or no longer. Nothing was noted: the provider may send the event again."""


_RUNNING = (State.IN_PROGRESS, State.PENDING)
_UNSETTLED = (State.UNKNOWN, State.DEAD_LETTER)


class Resolver(Protocol):
    """Applies evidence to records."""

    @property
    def finding(self) -> Finding: ...

    def apply(self, record: Record, finding: Evidence, actor: Actor) -> Program[bool]:
        """Settles an unknown or dead record. False if somebody else was first, or has run it again since."""

    def receive(
        self, event_id: str, record: Record | None, finding: Evidence, actor: Actor
    ) -> Program[Resolution]:
        """One event of the provider's: applied if there is something to settle."""

    def apply_waiting(self, record: Record) -> Program[bool]:
        """Uses evidence that came while the operation was still running, where it was kept."""


class DirectResolver:
    """Applies evidence at once or not at all: a key store has nowhere to note an event.

    It needs none to be safe. An event that comes twice finds the record settled, and does not move it.
    """

    def __init__(self, finding: Finding) -> None:
        self.finding = finding

    def apply(self, record: Record, finding: Evidence, actor: Actor) -> Program[bool]:
        check_evidence(finding)
        attempt = record.attempt
        if isinstance(finding, Executed | Declined):
            answer, provider_id = answer_in(finding), finding.provider_id
            return self.finding.executed(record.id, answer, actor, provider_id=provider_id, attempt=attempt)
        return self.finding.not_executed(record.id, actor, attempt=attempt)

    def receive(
        self, event_id: str, record: Record | None, finding: Evidence, actor: Actor
    ) -> Program[Resolution]:
        if record is None:
            return Resolution.NOT_FOUND
        if record.state in _RUNNING:
            return Resolution.TOO_EARLY
        if record.state not in _UNSETTLED:
            return Resolution.TOO_LATE
        applied = yield from self.apply(record, finding, actor)
        return Resolution.RESOLVED if applied else Resolution.TOO_LATE

    def apply_waiting(self, record: Record) -> Program[bool]:
        yield from ()
        return False


class NotingResolver(DirectResolver):
    """Notes each event once, and keeps what comes too early. Applied and noted in one transaction."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self._operator = operator

    def receive(
        self,
        event_id: str,
        record: Record | None,
        finding: Evidence,
        actor: Actor,
    ) -> Program[Resolution]:
        stored = encode_evidence(finding)
        if record is None:
            return Resolution.NOT_FOUND
        yield BEGIN
        early = record.state in _RUNNING
        fresh = yield from self._operator.note_evidence(event_id, record.id, stored, applied=not early)
        if not fresh:
            return Resolution.DUPLICATE
        if early:
            return Resolution.KEPT
        if record.state not in _UNSETTLED:
            return Resolution.TOO_LATE
        applied = yield from self.apply(record, finding, actor)
        return Resolution.RESOLVED if applied else Resolution.TOO_LATE

    def apply_waiting(self, record: Record) -> Program[bool]:
        yield BEGIN
        waiting = yield from self._operator.waiting_evidence(record.id, since=record.created_at)
        chosen = _choose(waiting, record)
        if chosen is None:
            return False
        event_id, finding = chosen
        yield from self._operator.use_evidence(event_id)
        actor = Actor("webhook", f"event {event_id}, received before the outcome became unknown")
        return (yield from self.apply(record, finding, actor))


def _choose(waiting: list[Waiting], record: Record) -> tuple[str, Evidence] | None:
    """The event that says most. That it happened is true for good, whichever attempt did it. That it did not,
    or was declined, tells nothing about an attempt that began after the event came."""
    about_now: list[tuple[str, Evidence]] = []
    for event in waiting:
        finding = decode_evidence(event.outcome)
        if isinstance(finding, Executed):
            return event.event_id, finding
        if event.received_at >= record.last_run_at:
            about_now.append((event.event_id, finding))
    declined = [found for found in about_now if isinstance(found[1], Declined)]
    return next(iter(declined or about_now), None)
