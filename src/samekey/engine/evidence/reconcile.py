"""Applying evidence: a provider's webhook, a lookup's finding, an operator's word.

Evidence is about one effect of one attempt of one operation. ``core/judging.py`` says what it means; here it
is carried out, in one transaction with the note that it was used. Whatever comes late, early, twice or out of
order never moves a settled record, and what could not be used is not used up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, assert_never

from ...core.agreement import Aftermath, aftermath, is_no_news
from ...core.effects import EffectKind, KnownEffect, Says, Word, asked_about, unburied
from ...core.judging import Foreign, Keep, Settle, TooLate, Unplaced, choose, judge
from ...core.phases import encode_value
from ...core.placing import life_found, names_what_is_done, placed
from ...core.program import BEGIN, Program
from ...core.record import Record
from ...core.states import Mode, State
from ...core.texts import LONGEST
from ...core.whose import Whose
from ...errors import ConfigurationError
from ...evidence import Declined, Evidence, Executed, answer_for, check_about, encode_evidence, says, value_in
from ...stores.protocols import Actor, Searching
from ...stores.sql.effects import OVER, Effects, ProviderEvent
from ...stores.sql.operator import Operator
from ...stores.sql.overruling import Moved
from .asked import check_life, check_step, told_by
from .said import (
    FoundWord,
    Misfit,
    Resolution,
    Said,
    finding_of,
    heard,
    is_readable,
    is_usable,
    kept_as,
    left_to_others,
    tell_conflict,
)

logger = logging.getLogger("samekey")


NOTHING_OPEN: Final = (
    "None of its effects is open, so there is nothing that this could be the result of. Executed(None) has "
    "its run go on from its recovery point; an answer would leave the phases after that undone."
)

_NOT_GONE_ON: Final = (
    "The dead job %s of operation %s is done, since a provider says what became of it. What its function "
    "does beside that call was not done: have it take `found` if there is such a thing."
)

AFTER_ALL: Final = " (after all)"
"""Ends the name of an event that says yes where one of that name has said no before."""

_UNSETTLED = (State.UNKNOWN, State.DEAD_LETTER)


def _fits(finding: Evidence, record: Record) -> bool:
    """Whether it is a record about which something can be found out. Of a leased call that is free to run
    again because somebody believed that nothing had happened, that something has."""
    happened = isinstance(finding, Executed | Declined) and record.mode in (Mode.LEASED, Mode.REPEATABLE)
    return record.state in _UNSETTLED or (happened and record.state is State.FAILED_RETRYABLE)


def _is_new(said: Said, earlier: ProviderEvent) -> bool:
    """Whether an event has said no before: that it happened is never passed over, whatever the provider calls
    its events."""
    return isinstance(said.evidence, Executed) and earlier.says != Says.EXECUTED


class NotingResolver:
    """Notes each event once by source and id, keeps what cannot be used yet, and applies in one
    transaction."""

    def __init__(self, operator: Operator, effects: Effects) -> None:
        self.finding: Searching = operator
        self._operator = operator
        self._effects = effects
        self.takers: Callable[[], Sequence[str]] = lambda: ()
        """The jobs of this process whose functions take what was found out."""

    def apply(
        self, record: Record, finding: Evidence, actor: Actor, *, despite: Sequence[str] = ()
    ) -> Program[bool]:
        check_about(finding, record)
        yield BEGIN
        found = yield from self._effects.locked(record.id)
        if found is None:
            return False
        effects = yield from self._effects.of(record.id)
        check_life(finding, record, effects, *(yield from self._past(found[1])))
        if found[1].attempt != record.attempt or not _fits(finding, found[1]):
            return False  # a yes of a lookup's is an event then
        dead_job = record.mode is Mode.DEFERRED and found[1].state is State.DEAD_LETTER
        if dead_job and says(finding) is Says.NOT_EXECUTED:
            return False  # its handler must not run again: its job is tried again
        if record.open_effect not in (None, asked_about(found[1], effects).open_effect):
            return False  # it was asked about another one, or about one of which less was known
        overruled = False
        if not isinstance(finding, Executed):
            overruled = yield from self._effects.overrule(record.id, despite)
        done = yield from self._applied(found, effects, finding, actor)
        if overruled and not done:
            raise Moved  # what was set aside is not, if nothing came of it
        return done

    def _applied(
        self, found: tuple[int, Record], effects: Sequence[KnownEffect], finding: Evidence, actor: Actor
    ) -> Program[bool]:
        now, record = found
        check_step(finding, record, effects)
        open_phases = [e for e in effects if e.kind is EffectKind.PHASE and e.was_sent and e.outcome is None]
        if record.mode is Mode.PHASED and len(open_phases) == 1:
            return (yield from self._settle(record, open_phases[0], effects, finding, actor, None))
        if record.mode is Mode.PHASED and isinstance(finding, Executed | Declined):
            if isinstance(finding, Executed) and not (yield from self._effects.has_input(record.id)):
                # There is nothing left that could go on, and nobody knows its answer; but it has happened.
                return (
                    yield from self._operator.executed(
                        record.id, None, actor, provider_id=finding.provider_id, attempt=record.attempt
                    )
                )
            if isinstance(finding, Declined) or finding.response is not None:
                raise ConfigurationError(NOTHING_OPEN)
            return (yield from self._effects.go_on(record, actor))
        job = next((e for e in effects if e.kind is EffectKind.JOB and e.job_answers), None)
        if job is not None and job.job_state == "dead" and isinstance(finding, Executed | Declined):
            # As after an event: where its function takes what was found, it does the rest with that.
            said = told_by(actor, finding, job)
            if not (yield from self._settle(record, job, effects, finding, actor, said.source)):
                return False
            yield from self._note(said, record, now, "used")
            return True
        return (yield from self._settle(record, None, effects, finding, actor, None))

    def receive(self, said: Said, operation_id: str) -> Program[Resolution | Misfit]:
        yield BEGIN
        found = yield from self._effects.locked(operation_id)
        if found is None:
            return Resolution.NOT_FOUND
        now, record = found
        said = said.about_this(record)
        effects = yield from self._effects.of(operation_id)
        said = replace(said, about=placed(said.word(now), record, effects).about)
        earlier = yield from self._earlier(said, operation_id)
        if earlier is not None and earlier.state in OVER and _is_new(said, earlier):
            said = replace(said, event_id=said.event_id[: LONGEST - len(AFTER_ALL)] + AFTER_ALL)
            earlier = yield from self._earlier(said, operation_id)
        if earlier is not None and earlier.state in OVER:
            return Resolution.DUPLICATE
        if earlier is not None and earlier.says == Says.EXECUTED and not isinstance(said.evidence, Executed):
            return Resolution.UNPLACED  # it takes back that it happened: that is for an operator to believe
        if earlier is not None and earlier.of_this_life:
            said = replace(said, by_operation=True)  # it has named this very operation before
        if earlier is not None and earlier.about != said.about:
            if said.about is None:
                said = replace(said, about=earlier.about)  # it has named its effect before
            else:
                yield from self._effects.mark(earlier, "late")  # it names its effect now, and is noted anew
        unsettled = yield from self._effects.unsettled(operation_id)
        others = [heard(one) for one in unsettled if one != earlier]
        word = placed(said.word(now if earlier is None else earlier.received_at), record, effects)
        said = replace(said, about=word.about)
        record, past = yield from self._past(record)
        as_it_was = unburied(record) if isinstance(said.evidence, Executed) else record
        verdict = judge(word, as_it_was, effects, others, past)
        if isinstance(verdict, Foreign):
            return Resolution.NOT_FOUND
        if as_it_was is not record and not isinstance(verdict, TooLate):
            yield from self._effects.dispute(as_it_was)
            record = replace(record, state=State.UNKNOWN)
        if isinstance(verdict, Settle) and not is_usable(verdict.word):
            verdict = Keep()
        match verdict:
            case TooLate():
                yield from self._note(said, record, now, (yield from self._late(word, record, effects, past)))
                yield from self._effects.go_on_undisputed(record.id, said.actor)
                return Resolution.TOO_LATE
            case Keep() | Unplaced():
                yield from self._note(said, record, now, "waiting")
                if said.fault is not None:
                    return Misfit(said.fault)
                if earlier is not None:
                    return Resolution.DUPLICATE
                return Resolution.KEPT if isinstance(verdict, Keep) else Resolution.UNPLACED
            case Settle():
                if not (yield from self._carry_out(verdict, record, effects, said.actor, said.source)):
                    raise Moved
                yield from self._note(said, record, now, "used")
                return Resolution.RESOLVED
            case _:
                assert_never(verdict)

    def apply_waiting(self, operation_id: str) -> Program[bool]:
        if not (yield from self._effects.unsettled(operation_id)):
            return False  # as most often: then nothing is locked
        yield BEGIN
        found = yield from self._effects.locked(operation_id)
        if found is None:
            return False
        record = found[1]
        unsettled = yield from self._effects.unsettled(operation_id)
        effects = yield from self._effects.of(operation_id)
        # The event that says most comes first: that it happened, then that it was refused.
        words = sorted(map(heard, unsettled), key=lambda word: list(Says).index(word.says))
        record, past = yield from self._past(record)
        for word in words:
            if kept_as(word).state != "waiting":
                if not word.of_this_life and is_no_news(word, record, effects, past):
                    # It fits others too. To this one it tells nothing any more.
                    yield from self._effects.mark(kept_as(word), "used")
                continue
            verdict = judge(word, record, effects, [other for other in words if other is not word], past)
            if isinstance(verdict, TooLate):
                yield from self._effects.mark(
                    kept_as(word), (yield from self._late(word, record, effects, past))
                )
            if not isinstance(verdict, Settle) or not is_usable(verdict.word):
                continue
            used = kept_as(verdict.word)
            actor = Actor("webhook", f"event {used.event_id} of {used.source}, which had come early")
            if not (yield from self._carry_out(verdict, record, effects, actor, used.source)):
                return False
            for event in (kept_as(word), used):
                yield from self._effects.mark(event, "used")
            return True
        yield from self._effects.go_on_undisputed(operation_id, Actor("webhook", "what it said was late"))
        yield from self._effects.looked_at(operation_id)
        return False

    def _earlier(self, said: Said, operation_id: str) -> Program[ProviderEvent | None]:
        """What was noted of this event before."""
        return self._effects.event(said.source, said.event_id, operation_id, said.about, said.names_id)

    def _late(
        self, word: Word, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
    ) -> Program[Aftermath]:
        """What becomes of a word that changes nothing any more. A contradiction is told."""
        heard_of = yield from self._effects.heard_of(record.id)
        found = aftermath(word, record, effects, past, heard_of)
        if found is Aftermath.CONFLICT:
            tell_conflict(word, record)
        return found

    def kept_about(self, operation_id: str, step: str) -> Program[FoundWord | None]:
        """What was kept about an effect that the run has come to again, before it is tried again."""
        waiting = yield from self._effects.waiting(operation_id)
        if not waiting:
            return None
        effects = yield from self._effects.of(operation_id)
        effect = next((one for one in effects if one.step == step and one.was_sent), None)
        found = yield from self._effects.locked(operation_id)
        if effect is None or found is None:
            return None
        record, past = yield from self._past(found[1])
        words = [heard(event) for event in waiting]
        chosen = choose(words, record, effect, past)
        if chosen is not None and not is_readable(chosen):
            readable = [word for word in words if is_readable(word)]
            chosen = choose(readable, record, effect, past)
            if chosen is None or chosen.says is not Says.EXECUTED:
                raise left_to_others(operation_id, max(event.received_at for event in waiting))
        if chosen is None or not is_usable(chosen):
            return None  # it keeps its operation from sending all the same
        return FoundWord(finding_of(chosen), kept_as(chosen))

    def is_mere_doubt(self, operation_id: str) -> Program[bool]:
        """Whether every yes that waits about an operation names what one of its done effects has made. None
        of them is certain to be about another: what is safe to be sent again may be."""
        unsettled = yield from self._effects.unsettled(operation_id)
        effects = yield from self._effects.of(operation_id)
        return all(
            names_what_is_done(heard(event), effects) for event in unsettled if event.says == Says.EXECUTED
        )

    def life_found(self, operation_id: str, provider_id: str | None, *, since: bool) -> Program[Whose]:
        """Which life of its key has made what a lookup found. ``since``: it has asked from when on to
        look."""
        found = yield from self._effects.locked(operation_id)
        if found is None:
            return Whose.OURS
        record, past = yield from self._past(found[1])
        effects = yield from self._effects.of(operation_id)
        return life_found(provider_id, record, effects, past, since=since)

    def told_about(self, operation_id: str, about: str) -> Program[Executed | Declined | None]:
        """What is known of a job that is about to run, and that it need not send any more: what settled it
        when it was dead, or a yes that waits."""
        told = yield from self._effects.told_about(operation_id, about)
        effects = (yield from self._effects.of(operation_id)) if told else ()
        effect = next((one for one in effects if one.downstream_key == about), None)
        found = (yield from self._effects.locked(operation_id)) if told else None
        if effect is None or found is None:
            return None
        record, past = yield from self._past(found[1])
        words = [
            word
            for word in map(heard, told)
            if kept_as(word).state == "used" or choose([word], record, effect, past)
        ]
        believed = [
            word for word in words if is_readable(word) and (kept_as(word).state == "used" or is_usable(word))
        ]
        for finding in map(finding_of, sorted(believed, key=lambda word: list(Says).index(word.says))):
            if isinstance(finding, Executed | Declined):
                return finding
        unread = [kept_as(word).received_at for word in words if not is_readable(word)]
        if unread:
            raise left_to_others(operation_id, max(unread))
        return None

    def settled_at(self, operation_id: str, about: str) -> Program[int | None]:
        """When a job that is about to run was found done, if it was: only what takes that may run it."""
        told = yield from self._effects.told_about(operation_id, about)
        return max((event.received_at for event in told if event.state == "used"), default=None)

    def has_unread(self, operation_id: str) -> Program[bool]:
        waiting = yield from self._effects.waiting(operation_id)
        return not all(is_readable(heard(event)) for event in waiting)

    def _past(self, record: Record) -> Program[tuple[Record, Sequence[str | None]]]:
        """The provider's ids that are those of former lives; None among them where some are forgotten. And
        the record, with the number of lives that its key has had."""
        known: Sequence[str] = (yield from self.finding.past_ids(record.id)) if record.life > 1 else ()
        former = yield from self._operator.former_lives(record)
        if former < record.life:
            return record, known
        return replace(record, life=former + 1), (*known, None)

    def looked_at(self, operation_id: str) -> Program[None]:
        return self._effects.looked_at(operation_id)

    def stranded(self, *, batch: int) -> Program[list[str]]:
        return self._effects.stranded(batch=batch)

    def use(self, event: ProviderEvent) -> Program[None]:
        yield from self._effects.mark(event, "used")

    def note_ambiguous(self, said: Said, operation_id: str) -> Program[None]:
        yield BEGIN
        found = yield from self._effects.locked(operation_id)
        if found is None:
            return
        now, record = found[0], unburied(found[1])
        said = said.about_this(record)
        earlier = yield from self._earlier(said, operation_id)
        if earlier is None or earlier.state not in OVER:
            yield from self._note(said, record, now, "ambiguous")

    def note_candidate(self, said: Said, operation_id: str) -> Program[bool]:
        yield BEGIN
        found = yield from self._effects.locked(operation_id)
        if found is None:
            return False
        now, record = found
        said = said.about_this(unburied(record))
        effects = yield from self._effects.of(operation_id)
        word = placed(said.word(now), record, effects)
        record, past = yield from self._past(record)
        over = unburied(record).state in (State.COMPLETED, State.EXPIRED)
        if not over and not isinstance(judge(word, unburied(record), effects, (), past), TooLate):
            yield from self.note_ambiguous(said, operation_id)
            return True
        earlier = yield from self._earlier(said, operation_id)
        if earlier is not None and earlier.state in OVER:
            return False
        state = yield from self._late(word, record, effects, past)
        yield from self._note(replace(said, about=word.about), record, now, state)
        return state is Aftermath.CONFLICT

    def _note(self, said: Said, record: Record, now: int, state: str) -> Program[None]:
        """Notes what became of an event. A yes that waits, whatever it waits for, keeps its operation from
        being free."""
        event = ProviderEvent(
            said.source,
            said.event_id,
            record.id,
            said.about,
            said.names_id,
            encode_evidence(said.evidence),
            str(says(said.evidence)),
            state,
            now if said.occurred_at is None else said.occurred_at,
            0,
            said.of_this_life,
        )
        yield from self._effects.note(event)
        if state in ("conflict", "ambiguous"):
            yield from self._effects.keep_for_now(record.id)
        if state in ("waiting", "ambiguous") and isinstance(said.evidence, Executed):
            yield from self._effects.dispute(record)
        elif isinstance(said.evidence, Executed):
            yield from self._effects.undispute(record.id)

    def _carry_out(
        self, verdict: Settle, record: Record, effects: Sequence[KnownEffect], actor: Actor, source: str
    ) -> Program[bool]:
        finding = finding_of(verdict.word)
        return self._settle(record, verdict.effect, effects, finding, actor, source)

    def _settle(
        self,
        record: Record,
        effect: KnownEffect | None,
        effects: Sequence[KnownEffect],
        finding: Evidence,
        actor: Actor,
        source: str | None,
    ) -> Program[bool]:
        """Carries out what was found: the effect has its result, and the rest goes on."""
        if effect is None:
            if record.mode is Mode.PHASED and not isinstance(finding, Executed | Declined):
                return (yield from self._effects.not_sent_phase(record, None, actor))
            return (yield from self._settle_call(record, effects, finding, actor, source))
        said = says(finding)
        if effect.kind is EffectKind.PHASE:
            if not isinstance(finding, Executed | Declined):
                return (yield from self._effects.not_sent_phase(record, effect, actor))
            result = encode_value(value_in(finding), f"What was found out about {effect.step!r}")
            provider_id = finding.provider_id
            return (
                yield from self._effects.found_phase(
                    record, effect, result, said, actor, provider_id=provider_id, source=source
                )
            )
        if not isinstance(finding, Executed | Declined):
            raise ConfigurationError("A job that never happened is tried again: samekey dead retry.")
        provider_id = finding.provider_id
        goes_on = self._effects.job_goes_on(
            effect, record, said, actor, provider_id=provider_id, takers=self.takers()
        )
        if (yield from goes_on):
            return True
        if not (yield from self._effects.found_job(effect, record, said, provider_id=provider_id)):
            return False
        logger.warning(_NOT_GONE_ON, effect.step, record.id)
        if effect.job_answers and record.state is State.DEAD_LETTER:
            answer = answer_for(finding, record)
            return (
                yield from self._operator.executed(
                    record.id, answer, actor, provider_id=finding.provider_id, attempt=record.attempt
                )
            )
        yield from self._operator.note_act(record.id, actor)
        return True

    def _settle_call(
        self,
        record: Record,
        effects: Sequence[KnownEffect],
        finding: Evidence,
        actor: Actor,
        source: str | None,
    ) -> Program[bool]:
        attempt, operator = record.attempt, self._operator
        provider_id = None
        if isinstance(finding, Executed | Declined):
            provider_id = finding.provider_id
            answer = answer_for(finding, record)
            moved = yield from operator.executed(
                record.id, answer, actor, provider_id=provider_id, attempt=attempt
            )
        else:
            moved = yield from operator.not_executed(record.id, actor, attempt=attempt)
        if moved and record.mode in (Mode.LEASED, Mode.REPEATABLE):
            steps = [effect.step for effect in effects if effect.kind is EffectKind.LEASED]
            if not steps and provider_id is not None:
                yield from self._effects.note_call(record, provider_id, source)
                steps = [""]
            for step in steps:
                one = provider_id if len(steps) == 1 else None
                yield from self._effects.settle(
                    record.id, step, says(finding), provider_id=one, source=source
                )
        return moved
