"""Applying evidence on key stores, which keep no events: each act is one statement, and nothing waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from ...core.agreement import Aftermath, aftermath
from ...core.disputes import Yes, check_set_aside
from ...core.effects import Says, unburied
from ...core.judging import Foreign, Keep, Settle, TooLate, Unplaced, judge
from ...core.program import Program
from ...core.record import Record
from ...core.states import State
from ...errors import Contradicted
from ...evidence import Declined, Evidence, Executed, answer_for, check_about, says
from ...stores.protocols import Actor, Searching
from ...stores.sql.overruling import Moved
from .asked import check_life, check_step
from .said import Misfit, Resolution, Said, tell_conflict

MOST_FREED: Final = 64
"""Attempts of one operation that events may free on a key store, where the record keeps them all: it must
stay small. After that an operator decides."""


class DirectResolver:
    """For key stores: each act is one statement, and nothing is kept.

    There is one effect, the leased call. A repeated event finds the record settled; one that has freed an
    attempt is kept with the record, and frees no other.
    """

    def __init__(self, finding: Searching) -> None:
        self.finding = finding

    def apply(
        self,
        record: Record,
        finding: Evidence,
        actor: Actor,
        *,
        despite: Sequence[str] = (),
        source: str | None = None,
        event: str | None = None,
    ) -> Program[bool]:
        check_about(finding, record)
        if event is None:  # an event has named its effect, and was judged by that
            effects = yield from self.finding.effects(record.id)
            past = (yield from self.finding.past_ids(record.id)) if record.life > 1 else ()
            check_life(finding, record, effects, record, past)
            check_step(finding, record, effects)
        attempt = record.attempt
        disputes: list[Yes] | None = None
        if not isinstance(finding, Executed):
            disputes = yield from self.finding.disputed_by(record.id)
            check_set_aside(disputes, despite)
        if isinstance(finding, Executed | Declined):
            answer, provider_id = answer_for(finding, record), finding.provider_id
            return (
                yield from self.finding.executed(
                    record.id,
                    answer,
                    actor,
                    provider_id=provider_id,
                    source=source,
                    attempt=attempt,
                    despite=disputes,
                )
            )
        return (
            yield from self.finding.not_executed(
                record.id, actor, attempt=attempt, event=event, despite=disputes or ()
            )
        )

    def receive(self, said: Said, operation_id: str) -> Program[Resolution | Misfit]:
        found = yield from self.finding.clocked(operation_id)
        if found is None:
            return Resolution.NOT_FOUND
        now, record = found
        said = said.about_this(record)
        freed_by = yield from self.finding.freed_by(operation_id)
        if said.digest in freed_by and says(said.evidence) is Says.NOT_EXECUTED:
            return Resolution.DUPLICATE
        effects = yield from self.finding.effects(operation_id)
        past = (yield from self.finding.past_ids(operation_id)) if record.life > 1 else ()
        as_it_was = unburied(record) if isinstance(said.evidence, Executed) else record
        verdict = judge(said.word(now), as_it_was, effects, (), past)
        if isinstance(verdict, Foreign):
            return Resolution.NOT_FOUND
        if as_it_was is not record and not isinstance(verdict, TooLate):
            yield from self._dispute(record, said)
            raise Moved  # it is unknown now, and judged as such
        if said.fault is not None and not isinstance(verdict, TooLate):
            yield from self._dispute(record, said)
            return Misfit(said.fault)
        match verdict:
            case Settle():
                if len(freed_by) >= MOST_FREED and says(said.evidence) is Says.NOT_EXECUTED:
                    return Resolution.UNPLACED
                try:
                    moved = yield from self.apply(
                        record, said.evidence, said.actor, source=said.source, event=said.digest
                    )
                except Contradicted:
                    return Resolution.UNPLACED
                if not moved:
                    raise Moved
                return Resolution.RESOLVED
            case Keep():
                yield from self._dispute(record, said)
                running = record.state is State.IN_PROGRESS
                return Resolution.TOO_EARLY if running else Resolution.UNPLACED
            case Unplaced():
                yield from self._dispute(record, said)
                return Resolution.UNPLACED
            case TooLate():
                if aftermath(said.word(now), record, effects, past) is Aftermath.CONFLICT:
                    tell_conflict(said.word(now), record)  # there is no place to keep it
                return Resolution.TOO_LATE
            case _:
                assert_never(verdict)

    def apply_waiting(self, operation_id: str) -> Program[bool]:
        yield from ()
        return False

    def has_unread(self, operation_id: str) -> Program[bool]:
        yield from ()
        return False

    def stranded(self, *, batch: int) -> Program[list[str]]:
        yield from ()
        return []

    def looked_at(self, operation_id: str) -> Program[None]:
        yield from ()

    def note_ambiguous(self, said: Said, operation_id: str) -> Program[None]:
        """Nothing is kept, but a yes keeps this operation from running again."""
        found = yield from self.finding.clocked(operation_id)
        if found is not None and unburied(found[1]).state not in (State.COMPLETED, State.EXPIRED):
            yield from self._dispute(found[1], said)

    def note_candidate(self, said: Said, operation_id: str) -> Program[bool]:
        yield from self.note_ambiguous(said, operation_id)
        found = yield from self.finding.clocked(operation_id)
        return found is not None and unburied(found[1]).state not in (State.COMPLETED, State.EXPIRED)

    def _dispute(self, record: Record, said: Said) -> Program[None]:
        if not isinstance(said.evidence, Executed):
            return
        yes = Yes(said.source, said.event_id, said.about, said.names_id)
        if not (yield from self.finding.dispute(record.id, yes, attempt=record.attempt)):
            raise Moved
