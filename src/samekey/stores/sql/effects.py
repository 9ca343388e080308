"""The programs of effects and evidence: what was sent, what providers have said of it, and what came of that.

An effect of phased work is noted with its intent, a job's with the job, both before anything is sent. What a
leased handler was given is noted with its outcome. So what stands here is what may have been sent, and
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...core.effects import EffectKind, KnownEffect, Says
from ...core.phases import decode_phases
from ...core.program import BEGIN, Program, Row, at_home, home_of
from ...core.record import Record, decode_record
from ...core.states import State
from ..protocols import Actor
from ..readable import never_empty
from .operator import Operator, act_as, act_end
from .overruling import Moved, overrule
from .queries import Queries


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """A provider's event as it is kept. Times are milliseconds."""

    source: str
    event_id: str
    operation_id: str | None
    about: str | None
    """The downstream key that it names."""
    provider_id: str | None
    outcome: bytes
    says: str
    """What ``outcome`` says, in a word."""
    state: str
    """``waiting``, ``used``, ``late``, ``ambiguous`` or ``conflict``: it contradicts what stands."""
    occurred_at: int
    received_at: int
    of_this_life: bool = False
    """Whether it is known to be about this life of the key, all of which have the same downstream keys."""


STOPPED_BY_WORD: Final = "StoppedByWord"
"""The error code of phased work that sends nothing more because of a word that has no place in it."""
OVER: Final = ("used", "late", "conflict")
"""States of an event that changes nothing any more."""


class Effects:
    """Programs on the effects and evidence tables of one dialect."""

    def __init__(self, operator: Operator, queries: Queries) -> None:
        self._operator = operator
        self._queries = queries

    def of(self, operation_id: str) -> Program[list[KnownEffect]]:
        """Everything that this operation may have sent, and its jobs that wait."""
        return self._operator.effects(operation_id)

    def note_call(self, record: Record, provider_id: str, source: str | None) -> Program[None]:
        """What a leased call has made is known from the provider alone."""
        yield self._queries.statement(
            "note_call",
            None,
            scope=record.scope,
            key=record.key,
            step="",
            place="0",
            downstream_key=None,
            provider_id=provider_id,
            source=source,
        )

    def locked(self, operation_id: str) -> Program[tuple[int, Record] | None]:
        """The record with the store's clock, and nobody else changes it until this transaction ends."""
        rows = yield self._queries.statement("lock_operation", None, operation_id=operation_id)
        if not rows:
            return None
        assert isinstance(rows[0][0], int)
        return rows[0][0], decode_record(rows[0][1:])

    # Evidence

    def event(
        self, source: str, event_id: str, operation_id: str, about: str | None, provider_id: str | None
    ) -> Program[ProviderEvent | None]:
        """What was noted of an event about this effect. One that names the operation alone, now or then, is
        the same event as one that names an effect of it, unless they name two objects of the provider's: one
        event may tell of several."""
        rows = yield self._queries.statement(
            "find_event", None, source=source, event_id=event_id, operation_id=operation_id
        )
        noted = [_event(row) for row in rows]
        alike = [
            one
            for one in noted
            if (about is not None and one.about == about)
            or (None in (about, one.about) and _one_object(provider_id, one.provider_id))
        ]
        return max(alike, key=lambda one: (one.state in OVER, one.about == about), default=None)

    def heard_of(self, operation_id: str) -> Program[list[str]]:
        """Objects of the provider's that events which are over have named."""
        rows = yield self._queries.statement("heard_of", None, operation_id=operation_id)
        return [str(row[0]) for row in rows]

    def note(self, event: ProviderEvent, *, now: int | None = None) -> Program[None]:
        """Keeps an event about one effect; what was noted of it about another stays."""
        yield self._queries.statement(
            "note_evidence",
            now,
            source=event.source,
            event_id=event.event_id,
            operation_id=event.operation_id or "",
            about=event.about or "",
            provider_id=event.provider_id,
            outcome=event.outcome,
            says=event.says,
            state=event.state,
            occurred_at=event.occurred_at,
            of_this_life=int(event.of_this_life),
        )

    def waiting(self, operation_id: str) -> Program[list[ProviderEvent]]:
        """Events about this operation that have not been used yet, oldest first."""
        rows = yield self._queries.statement("waiting_evidence", None, operation_id=operation_id)
        return [_event(row) for row in rows]

    def unsettled(self, operation_id: str) -> Program[list[ProviderEvent]]:
        """Those, and those that fit other operations as well."""
        rows = yield self._queries.statement("unsettled_evidence", None, operation_id=operation_id)
        return [_event(row) for row in rows]

    def dispute(self, record: Record) -> Program[None]:
        """For a record that is locked: a provider says that it happened, and that word waits. Until it is
        settled or dismissed, this key is never free, whoever would free it."""
        freed = record.state is State.FAILED_RETRYABLE
        yield self._queries.statement("dispute", None, operation_id=record.id, freed=int(freed))

    def undispute(self, operation_id: str) -> Program[None]:
        """A word of an operation that is locked does not wait any more: unless another does, it is as any
        other again."""
        yield self._queries.statement("undispute", None, operation_id=operation_id)

    def keep_for_now(self, operation_id: str) -> Program[None]:
        """Nobody takes a locked operation for over who had not seen the word that is noted now."""
        yield self._queries.statement("keep_for_now", None, operation_id=operation_id)

    def mark(self, event: ProviderEvent, state: str) -> Program[None]:
        """What became of an event, of an operation that is locked."""
        yield self._queries.statement(
            "mark_evidence",
            None,
            source=event.source,
            event_id=event.event_id,
            operation_id=event.operation_id or "",
            about=event.about or "",
            state=state,
        )
        if event.says == Says.EXECUTED and event.operation_id is not None:
            yield from self.undispute(event.operation_id)

    def overrule(self, operation_id: str, despite: Sequence[str]) -> Program[bool]:
        """An operator sets aside what providers say, of an operation that is locked."""
        return overrule(self._queries, operation_id, despite)

    def stranded(self, *, batch: int, now: int | None = None) -> Program[list[str]]:
        """Operations that are not running any more while evidence about them waits; those that were looked at
        longest ago first."""
        rows = yield self._queries.statement("stranded_evidence", now, batch=batch)
        return [str(row[0]) for row in rows]

    def looked_at(self, operation_id: str, *, now: int | None = None) -> Program[None]:
        yield self._queries.statement("evidence_looked_at", now, operation_id=operation_id)

    def unused(self, *, limit: int = 50) -> Program[list[ProviderEvent]]:
        """Events that somebody must see to, then those that wait for their operation; oldest first."""
        rows = yield self._queries.statement("unused_evidence", None, limit=limit)
        return [_event(row) for row in rows]

    def shown(self, operation_id: str) -> Program[list[ProviderEvent]]:
        """What an operator is shown of an operation: what waits, fits others as well, or contradicts it."""
        rows = yield self._queries.statement("shown_evidence", None, operation_id=operation_id)
        return [_event(row) for row in rows]

    def to_see_to(self, *, now: int | None = None) -> Program[dict[str, int]]:
        """How many events nobody but a person can place, by why."""
        rows = yield self._queries.statement("evidence_to_see_to", now)
        return {str(state): int(count) for state, count in rows}  # type: ignore[arg-type]

    def dismiss(
        self, source: str, event_id: str, actor: Actor, operation_id: str | None = None
    ) -> Program[bool]:
        """An operator has seen to an event that nobody could place: as far as it is about this operation, or,
        where it fits more than one, for all of them. It is audited with each."""
        yield BEGIN
        if operation_id is not None:
            return (yield from self._dismiss(source, event_id, operation_id, actor))
        rows = yield self._queries.statement("ambiguous_event", None, source=source, event_id=event_id)
        for row in rows:
            yield from self._dismiss(source, event_id, str(row[0]), actor)
        return bool(rows)

    def _dismiss(self, source: str, event_id: str, operation_id: str, actor: Actor) -> Program[bool]:
        yield from self.locked(operation_id)
        named = [one for one in (yield from self.shown(operation_id)) if one.source == source]
        told = [one for one in named if one.event_id == event_id]
        if not told:
            return False
        for event in told:
            yield from self.mark(event, "late")
        said = " and ".join(sorted({one.says for one in told}))
        reason = f"dismissed event {event_id} of {source}, which said {said}: {actor.reason}"
        yield from self._operator.note_act(operation_id, Actor(actor.name, reason))
        yield from self.go_on_undisputed(operation_id, Actor(actor.name, reason))
        return True

    # What was found out about one effect

    def found_phase(
        self,
        record: Record,
        effect: KnownEffect,
        result: bytes,
        said: str,
        actor: Actor,
        *,
        provider_id: str | None,
        source: str | None,
        now: int | None = None,
    ) -> Program[bool]:
        """It becomes the phase's result, and the run goes on. False if the record, or the phase, has
        moved."""
        assert effect.kind is EffectKind.PHASE
        yield BEGIN
        yield from act_as(self._queries, actor)
        moved = yield self._queries.statement("go_on", now, operation_id=record.id, attempt=record.attempt)
        written: Sequence[object] = ()
        if moved:
            written = yield self._queries.statement(
                "found_phase",
                now,
                operation_id=record.id,
                position=int(effect.place),
                name=effect.step,
                result=result,
                provider_id=provider_id,
            )
            if not written:
                raise Moved
            yield from self.settle(
                record.id, effect.step, said, provider_id=provider_id, source=source, now=now
            )
            if said == Says.EXECUTED:
                yield self._queries.statement(
                    "effect_settled",
                    now,
                    operation_id=record.id,
                    downstream_key=effect.downstream_key,
                    provider_id=provider_id,
                )
                yield from self.undispute(record.id)
        yield from act_end(self._queries)
        return bool(moved and written)

    def has_input(self, operation_id: str) -> Program[bool]:
        """Whether phased work can go on at all: what was buried cannot."""
        return bool((yield self._queries.statement("load_input", None, operation_id=operation_id)))

    def go_on(self, record: Record, actor: Actor, *, now: int | None = None) -> Program[bool]:
        """Phased work of which nothing is open goes on from its recovery point. False if it has moved."""
        yield BEGIN
        yield from act_as(self._queries, actor)
        moved = yield self._queries.statement("go_on", now, operation_id=record.id, attempt=record.attempt)
        yield from act_end(self._queries)
        return bool(moved)

    def go_on_undisputed(self, operation_id: str, actor: Actor) -> Program[None]:
        """Phased work that nothing but a provider's word had stopped goes on, once no such word is left: what
        may be called again is said by its effects' own rules."""
        found = yield from self.locked(operation_id)
        if found is None or found[1].state is not State.UNKNOWN or found[1].error_code != STOPPED_BY_WORD:
            return
        left = yield from self.unsettled(operation_id)
        if not any(event.says == Says.EXECUTED for event in left):
            yield from self.go_on(found[1], actor)

    def not_sent_phase(
        self, record: Record, effect: KnownEffect | None, actor: Actor, *, now: int | None = None
    ) -> Program[bool]:
        """The effect of a phase (None: whichever was meant) never happened: its intent goes. What else the
        operation has done stands, so it goes on from there; one that has done nothing may be retried."""
        yield BEGIN
        rows = yield self._queries.statement("load_phases", now, operation_id=record.id)
        if any(phase.done for phase in decode_phases(record.id, rows)):
            yield from act_as(self._queries, actor)
            moved = bool(
                (yield self._queries.statement("go_on", now, operation_id=record.id, attempt=record.attempt))
            )
            if moved:
                yield self._queries.statement("drop_intents", now, operation_id=record.id)
            yield from act_end(self._queries)
        else:
            moved = yield from self._operator.not_executed(record.id, actor, attempt=record.attempt, now=now)
        if moved and effect is not None:
            yield from self.settle(
                record.id, effect.step, "not_executed", provider_id=None, source=None, now=now
            )
        return moved

    def found_job(
        self,
        effect: KnownEffect,
        record: Record,
        said: str,
        *,
        provider_id: str | None,
        now: int | None = None,
    ) -> Program[bool]:
        """A dead job is done after all, without what its function does beside the call."""
        rows = yield self._queries.statement("found_job", now, id=effect.place, provider_id=provider_id)
        if rows:
            yield from self.settle(
                record.id, effect.step, said, provider_id=provider_id, source=None, now=now
            )
        return bool(rows)

    def job_goes_on(
        self,
        effect: KnownEffect,
        record: Record,
        said: str,
        actor: Actor,
        *,
        provider_id: str | None,
        takers: Sequence[str] = (),
        now: int | None = None,
    ) -> Program[bool]:
        """A dead job whose function takes what was found out is tried again, with that. False if it is none
        of these. ``takers``: jobs whose functions take it here, whatever the code did that enqueued one."""
        names = never_empty(takers)
        rows = yield self._queries.statement(
            "job_goes_on",
            now,
            id=effect.place,
            provider_id=provider_id,
            takers=names,
            takers_list=json.dumps(names),
        )
        if not rows:
            return False
        yield from act_as(self._queries, actor)
        if effect.job_answers and record.state is State.DEAD_LETTER:
            yield self._queries.statement("pending_again", now, operation_id=record.id)
        yield from act_end(self._queries)
        yield from self.settle(record.id, effect.step, said, provider_id=provider_id, source=None, now=now)
        return True

    def told_about(self, operation_id: str, about: str) -> Program[list[ProviderEvent]]:
        """What providers have said about one effect: what waits, and what was used."""
        rows = yield self._queries.statement("told_about", None, operation_id=operation_id, about=about)
        return [_event(row) for row in rows]

    def settle(
        self,
        operation_id: str,
        step: str,
        said: str,
        *,
        provider_id: str | None,
        source: str | None,
        now: int | None = None,
    ) -> Program[None]:
        """The end of an effect is known."""
        yield self._queries.statement(
            "settle_effect",
            now,
            operation_id=operation_id,
            step=step,
            said=said,
            provider_id=provider_id,
            source=source,
        )


def _one_object(first: str | None, second: str | None) -> bool:
    """Whether two ids of the provider's may be of one object, as far as they are known."""
    return None in (first, second) or first == second


def _event(row: Row) -> ProviderEvent:
    """No operation, or no effect, is an empty text there: both are part of what tells events apart."""
    event = ProviderEvent(*row)  # type: ignore[arg-type]
    outcome = at_home(event.outcome, home_of("outcome", event.source, event.event_id))
    return replace(
        event,
        outcome=outcome,
        operation_id=event.operation_id or None,
        about=event.about or None,
        of_this_life=bool(event.of_this_life),
    )
