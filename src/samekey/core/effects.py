"""Effects, and what a provider's word about one of them means for its operation.

An effect is one thing that an operation does outside the store: the leased call, an effect phase, a job.
Pure: what is known goes in, one of a closed set of verdicts comes out. Nothing here is guessed: a word that
fits no effect, or more than one, moves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from .program import Row, Value
from .record import CLOCK_TOLERANCE_MS, OpenEffect, Question, Record, run_of
from .states import Mode, State


class EffectKind(StrEnum):
    """What makes the outside call."""

    LEASED = "leased"
    PHASE = "phase"
    JOB = "job"


class Says(StrEnum):
    """What a piece of evidence says about its effect."""

    EXECUTED = "executed"
    DECLINED = "declined"
    NOT_EXECUTED = "not_executed"


@dataclass(frozen=True, slots=True)
class SentStep:
    """One downstream key that a leased handler was given, and the provider's id that it noted after it."""

    step: str
    downstream_key: str | None
    """None: it noted an id of the provider's and never asked for a key."""
    provider_id: str | None = None
    source: str | None = None
    """Whom it was sent to, where the handler says so: each step may go to another provider."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a leased handler may have sent, as it is noted with the outcome."""

    steps: tuple[SentStep, ...] = ()

    @property
    def made(self) -> tuple[SentStep, ...]:
        """Those of which the provider's id is known."""
        return tuple(one for one in self.steps if one.provider_id is not None)

    def values(self) -> dict[str, Value]:
        """The parameters of the statements that note it. No key, or no id, is an empty text."""
        return {
            "source": self.steps[-1].source if self.steps else None,
            "steps": [one.step for one in self.steps],
            "step_keys": [one.downstream_key or "" for one in self.steps],
            "step_ids": [one.provider_id or "" for one in self.steps],
            "step_list": self._steps(),
            "made_list": self._made(),
        }

    def _steps(self) -> str | None:
        steps = [[one.step, one.downstream_key, one.provider_id, one.source] for one in self.steps]
        return json.dumps(steps) if steps else None

    def _made(self) -> str | None:
        """What the provider has made, by its ids: each with its step, its key and whom it was sent to."""
        made = [[one.provider_id, one.step, one.downstream_key, one.source] for one in self.made]
        return json.dumps(made) if made else None


NOTHING_SENT = Sent()


@dataclass(frozen=True, slots=True)
class KnownEffect:
    """One effect as the store has noted it. Times are milliseconds by the store's clock."""

    step: str
    kind: EffectKind
    place: str
    """A phase's position, a job's id, the number of a leased handler's step."""
    attempt: str
    """The attempt that sent it last."""
    source: str | None
    """Whom it was sent to, where the code says so."""
    downstream_key: str | None
    provider_id: str | None
    sends: int
    """How often it was begun. None: a job that waits for its first run, so nothing was sent."""
    sent_at: int | None
    """When it was begun last."""
    outcome: str | None
    """Set once its end is known."""
    job_state: str | None = None
    job_answers: bool = False
    former_ids: tuple[str, ...] = ()
    """The provider's ids that other attempts of its operation have noted."""

    @property
    def run(self) -> str:
        return run_of(self.attempt)

    @property
    def was_sent(self) -> bool:
        return self.sends > 0


def decode_effect(row: Row) -> KnownEffect:
    """A key store gives one value more: the ids that other attempts have noted, as JSON."""
    step, kind, place, attempt, source, key, provider_id, sends, sent_at, outcome, *more = row
    job_state, answers, *former = more
    assert isinstance(sends, int)
    assert sent_at is None or isinstance(sent_at, int)
    return KnownEffect(
        str(step),
        EffectKind(str(kind)),
        str(place),
        str(attempt),
        _text(source),
        _text(key),
        _text(provider_id),
        sends,
        sent_at,
        _text(outcome),
        _text(job_state),
        answers == 1,
        tuple(json.loads(str(former[0]))) if former else (),
    )


@dataclass(frozen=True, slots=True)
class Word:
    """One event of a provider's, as far as placing it needs to know."""

    says: Says
    source: str
    about: str | None
    """The downstream key that it names; None where it names the operation alone."""
    provider_id: str | None
    occurred_at: int
    """When it happened, by the provider's clock, which may be wrong; but never after it was received, by
    ours."""
    event_id: str = ""
    among: tuple[str | None, ...] = ()
    """The downstream keys of the effects that have its id of the provider's, where it came by that."""
    knows_us: bool = False
    """Whether it came by our own id or key of the operation, which no stranger has."""
    of_this_life: bool = False
    """Whether it is known to be about this life of the key: all of them have the same downstream keys."""


# What becomes of a word


@dataclass(frozen=True, slots=True)
class Settle:
    """It settles this effect; None: the leased call."""

    word: Word
    effect: KnownEffect | None


@dataclass(frozen=True, slots=True)
class Keep:
    """It cannot be used yet and waits."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Nobody can tell which effect it is about."""


@dataclass(frozen=True, slots=True)
class TooLate:
    """What it is about is settled, or is a former attempt or life. It changes nothing, now or ever."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """It names an effect that was sent to somebody else."""


Verdict: TypeAlias = Settle | Keep | Unplaced | TooLate | Foreign

_RUNNING = (State.IN_PROGRESS, State.PENDING)
_OVER = (State.COMPLETED, State.EXPIRED)
_HAPPENED = (Says.EXECUTED, Says.DECLINED)
_LEASED = (Mode.LEASED, Mode.REPEATABLE)
ANSWERED: Final = "answered_"
"""How the error code of an outcome begins whose handler has given an answer that says no, against a
provider's yes of which it had not known."""
NOT_NOTED: Final = "not_noted"
"""The error code of an attempt whose outcome is unknown, and so is what it may have sent."""
RELEASED: Final = "released"
"""The error code of a later life of a key that is free again, because nothing was sent in it."""
UNTOLD: Final = ("lease_ended", NOT_NOTED)
"""The error codes of attempts of which nobody has noted what they may have sent."""


def judge(
    word: Word,
    record: Record,
    effects: Sequence[KnownEffect],
    others: Sequence[Word] = (),
    past: Collection[str | None] = (),
) -> Verdict:
    """What this word means now. ``others`` are those that wait: where a leased handler has sent several
    steps, these are settled together or not at all; and nothing but a yes settles what another word says has
    happened. ``past`` are the provider's ids that former lives of the key have noted, with None for those
    that are forgotten."""
    if _of_former_life(word, record, effects, past) or _has_sent_nothing(word, record, effects):
        return TooLate()
    contradicted = any(one.says is Says.EXECUTED for one in others)
    certain = [one for one in others if not _of_which_life(one, record, effects, past)]
    verdict = _judge(word, record, effects, certain)
    if isinstance(verdict, Settle):
        if verdict.word.says is not Says.EXECUTED and contradicted:
            return Keep()
        if _of_which_life(word, record, effects, past):
            return Keep()
    return verdict


def _has_sent_nothing(word: Word, record: Record, effects: Sequence[KnownEffect]) -> bool:
    """Whether this life of the key was released before it had sent anything, in its only attempt: a word by
    the key that a former life had too is about that one."""
    released = record.state is State.FAILED_RETRYABLE and record.error_code == RELEASED
    only = record.life > 1 and record.attempts == 1 and not any(one.was_sent for one in effects)
    return released and only and not word.of_this_life


def placed(word: Word, record: Record, effects: Sequence[KnownEffect]) -> Word:
    """The word with the effect that it is about, where it names that otherwise than by its key and it is
    known: which one it is shows best when the word comes."""
    kind = {Mode.PHASED: EffectKind.PHASE, Mode.DEFERRED: EffectKind.JOB}.get(record.mode)
    if word.about is not None or kind is None:
        return word
    effect = _one_of(word, [one for one in effects if one.kind is kind])
    return word if effect is None else replace(word, about=effect.downstream_key)


def _judge(word: Word, record: Record, effects: Sequence[KnownEffect], others: Sequence[Word]) -> Verdict:
    if is_before(word, record):
        # About a former operation of this key, which had the same downstream keys, or by a clock that is far
        # off. Where nothing is left of a former one, or it names what this one has made, nobody can tell: an
        # operator sees it.
        former = record.life > 1 and not _names_its_own(word, record, effects)
        return TooLate() if former or record.state in _OVER else Unplaced()
    if record.mode is Mode.PHASED:
        return _judge_phase(word, record, [e for e in effects if e.kind is EffectKind.PHASE])
    if record.mode is Mode.DEFERRED and any(e.kind is EffectKind.JOB for e in effects):
        return _judge_job(word, record, [e for e in effects if e.kind is EffectKind.JOB])
    return _judge_leased(word, record, [e for e in effects if e.kind is EffectKind.LEASED], others)


def choose(
    words: Sequence[Word], record: Record, effect: KnownEffect, past: Collection[str | None] = ()
) -> Word | None:
    """The word that counts about an effect whose run is under way and which has no result: the one that says
    most."""
    about = [w for w in words if w.about == effect.downstream_key and not _is_foreign(w, effect)]
    present = [w for w in about if not is_before(w, record) and _of_this_life(w, record, [effect], past)]
    believed = [word for word in present if _believable(word, record, effect)]
    return min(believed, key=lambda word: list(Says).index(word.says), default=None)


def _judge_leased(
    word: Word, record: Record, effects: Sequence[KnownEffect], others: Sequence[Word]
) -> Verdict:
    """A leased handler's steps are noted with its outcome. Where a process died before that, nobody knows
    which it had sent, unless the word names the plain key: a handler that asks for that one gets no other."""
    noted = [effect for effect in effects if effect.run == record.run]
    keys: dict[str | None, KnownEffect] = {
        effect.downstream_key: effect for effect in noted if effect.downstream_key is not None
    }
    about = keys.get(word.about)
    meant = noted if about is None else [about]
    if meant and all(_is_foreign(word, effect) for effect in meant):
        return _unknown_voice(word, record)
    if record.state in _OVER or (record.mode is Mode.ATOMIC and record.state is State.FAILED_RETRYABLE):
        return TooLate()
    if record.state in _RUNNING or _answered_otherwise(word, record):
        return Keep()
    if len(keys) > 1:
        return Unplaced() if about is None else _judge_several(word, record, keys, others)
    if about is None and not _is_the_call(word, record, noted):
        return Unplaced()
    if word.says is Says.EXECUTED:
        return Settle(word, None)
    if word.says is Says.NOT_EXECUTED and record.state is State.FAILED_RETRYABLE:
        return TooLate()  # nothing new, whichever attempt it is about
    return _in_doubt(_about_last_call(word, record, effects)) or Settle(word, None)


def _is_the_call(word: Word, record: Record, noted: Sequence[KnownEffect]) -> bool:
    """Whether a word that names none of the keys that were noted is about the one call there is. Where the
    handler's outcome was never noted, nor is it known how many it has made: a word about one of several must
    not settle them all."""
    if word.about is None:
        return bool(noted) or record.mode not in _LEASED or record.error_code not in UNTOLD
    return all(one.downstream_key is None for one in noted) and word.about == record.downstream_key()


def _judge_several(
    word: Word, record: Record, keys: dict[str | None, KnownEffect], others: Sequence[Word]
) -> Verdict:
    """Settled once every step is known to have happened, with the word about the last one; or once every step
    is known not to have happened."""
    heard: dict[str | None, Word] = {}
    for one in (*others, word):
        if one.about not in keys or is_before(one, record):
            continue
        known = keys[one.about].provider_id
        latest = one.says is Says.EXECUTED or _about_now(
            one, record, record.attempts, record.last_run_at, known, keys[one.about].former_ids
        )
        if latest and (one.about not in heard or one.says is Says.EXECUTED):
            heard[one.about] = one
    if len(heard) < len(keys):
        return Keep()
    last = heard[max(keys.values(), key=lambda effect: int(effect.place)).downstream_key]
    said = {one.says for one in heard.values()}
    if said in ({Says.EXECUTED}, {Says.NOT_EXECUTED}):
        return Settle(last, None)
    return Keep()


def _judge_phase(word: Word, record: Record, effects: Sequence[KnownEffect]) -> Verdict:
    effect = _one_of(word, effects)
    if effect is None:
        # One that names no effect says nothing new once all that were sent have their results.
        known = word.about is None and all(one.outcome in _HAPPENED for one in effects if one.was_sent)
        if record.state in _OVER or (effects and known):
            return TooLate()
        # What is under way may end with an object of its own: then it was about what is done.
        under_way = record.state in _RUNNING and names_what_is_done(word, effects)
        return Keep() if under_way else Unplaced()
    if _is_foreign(word, effect):
        return _unknown_voice(word, record)
    if record.state in _OVER or effect.outcome in _HAPPENED:
        return TooLate()
    if any(_stands_instead(other, effect) for other in effects):
        # It was taken back, and another one was tried in its place: there is no room for both.
        return Unplaced() if word.says is Says.EXECUTED else TooLate()
    if record.state in _RUNNING:
        return Keep()
    if word.says is Says.NOT_EXECUTED and record.state is State.FAILED_RETRYABLE:
        return TooLate()
    return _in_doubt(_believable(word, record, effect)) or Settle(word, effect)


def _judge_job(word: Word, record: Record, effects: Sequence[KnownEffect]) -> Verdict:
    effect = _one_of(word, effects)
    if effect is None:
        live = any(one.job_state == "live" for one in effects)
        return Keep() if live and names_what_is_done(word, effects) else Unplaced()
    if _is_foreign(word, effect):
        return _unknown_voice(word, record)
    if effect.job_state == "dead" and effect.job_answers and _answered_otherwise(word, record):
        return Keep()
    if effect.job_state == "live":
        return Keep()  # its own next run says more: it also does the job's writes
    doubt = TooLate() if effect.job_state != "dead" else _in_doubt(_believable(word, record, effect))
    if doubt is not None:
        return doubt
    if word.says is Says.NOT_EXECUTED:
        return Keep()  # an operator has the job tried again: its handler must not run twice
    return Settle(word, effect)


def _one_of(word: Word, effects: Sequence[KnownEffect]) -> KnownEffect | None:
    sent = [effect for effect in effects if effect.was_sent]
    if word.about is not None:
        return next((effect for effect in sent if effect.downstream_key == word.about), None)
    made = [effect for effect in sent if _has_made(effect, word)]
    if not made:
        return sent[0] if len(sent) == 1 and len(effects) == 1 and not word.among else None
    # One object of the provider's may stand for several effects: it tells of the one that has no result yet.
    still = [effect for effect in made if not _is_done(effect) and not _sent_after(word, effect)]
    if still:
        return still[0] if len(still) == 1 else None
    made = [effect for effect in made if not _sent_after(word, effect)] or made
    # What has its result is meant only where nothing else can be: another one may be about the same object,
    # and have noted nothing yet.
    others = any(_may_share(word, effect) for effect in sent)
    return made[0] if len(made) == 1 and not others else None


def _has_made(effect: KnownEffect, word: Word) -> bool:
    """Whether the object that a word names is known to be this effect's."""
    named = word.provider_id is not None and word.provider_id in (effect.provider_id, *effect.former_ids)
    return named or effect.downstream_key in word.among


def _may_share(word: Word, effect: KnownEffect) -> bool:
    """Whether an object that another effect has made may be this one's too, which has no result: it was sent
    to the same provider, as far as the code says, and not certainly after what the word tells of."""
    if _is_over(effect) or effect.provider_id is not None or _is_foreign(word, effect):
        return False
    return not _sent_after(word, effect)


def _sent_after(word: Word, effect: KnownEffect) -> bool:
    """Whether it was sent only after what the word tells of, so that it cannot be meant."""
    return effect.sends == 1 and word.occurred_at < (effect.sent_at or 0) - CLOCK_TOLERANCE_MS


def names_what_is_done(word: Word, effects: Sequence[KnownEffect]) -> bool:
    """Whether a word that names no effect names the object of one that has its result: perhaps it tells of
    nothing else. It frees nothing, but it does not stop a send that is safe whatever the word means."""
    return word.about is None and any(_is_done(one) and _has_made(one, word) for one in effects)


def _is_done(effect: KnownEffect) -> bool:
    return effect.outcome in _HAPPENED or effect.job_state == "done"


def _is_over(effect: KnownEffect) -> bool:
    """Done, or provably never sent, or given up: a word about another one's object does not mean it."""
    given_up = effect.job_state in ("discarded", "cancelled")
    return _is_done(effect) or given_up or effect.outcome == Says.NOT_EXECUTED


def unburied(record: Record) -> Record:
    """The tombstone of what never had an answer, as it was before the reaper came: to a yes it must not
    matter whether that was by. What had been sent may be forgotten. After ``gone`` nothing runs in any
    case."""
    failed = record.completed_at is None and record.after_expiry != "gone"
    if record.state is State.EXPIRED and failed:
        return replace(record, state=State.FAILED_RETRYABLE, error_code=NOT_NOTED)
    return record


def is_before(word: Word, record: Record) -> bool:
    """Whether it happened before the operation began, in whichever life of its key, and however often it has
    run; but that this very operation happened, by its own id, is true whatever a clock says."""
    certain = word.of_this_life and word.says is Says.EXECUTED
    return not certain and word.occurred_at < record.since_ms


def _of_former_life(
    word: Word, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> bool:
    """Whether it names what a former life of the key has made, and this one has not: a debit may bounce days
    after the operation that it belongs to is forgotten."""
    return not word.of_this_life and is_past(word.provider_id, record, effects, past)


def is_past(
    provider_id: str | None, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> bool:
    """Whether a former life of the key has made this, and this life has not, whoever names it."""
    return provider_id is not None and provider_id in past and not _is_its_own(provider_id, record, effects)


def is_former(
    provider_id: str | None, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> bool | None:
    """The same of what was found by the key that all lives have. None: nobody can tell, since it is not
    named, or what former lives have made is forgotten."""
    if record.life == 1:
        return False
    if is_past(provider_id, record, effects, past):
        return True
    if provider_id is None:
        return None
    return None if None in past and not _is_its_own(provider_id, record, effects) else False


def _of_which_life(
    word: Word, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> bool:
    """Whether nobody can tell: what a former life has made is forgotten, and it had the same downstream
    keys. Then only what this life has made itself is certainly its own."""
    return None in past and not (word.of_this_life or _names_its_own(word, record, effects))


def _of_this_life(
    word: Word, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> bool:
    return not (_of_former_life(word, record, effects, past) or _of_which_life(word, record, effects, past))


def _names_its_own(word: Word, record: Record, effects: Sequence[KnownEffect]) -> bool:
    """Whether it names what this life of the key has made."""
    return word.provider_id is not None and _is_its_own(word.provider_id, record, effects)


def _is_its_own(provider_id: str, record: Record, effects: Sequence[KnownEffect]) -> bool:
    its_own = {record.provider_id, *(effect.provider_id for effect in effects)}
    its_own.update(*(effect.former_ids for effect in effects))
    return provider_id in its_own


def _is_foreign(word: Word, effect: KnownEffect) -> bool:
    return effect.source is not None and effect.source != word.source


def _unknown_voice(word: Word, record: Record) -> Unplaced | Foreign:
    """Somebody else than the provider that it was sent to, who knows the operation's id or the key that it
    was sent with. That it happened is never passed over: it was sent there too, or the provider has another
    name; an operator sees it."""
    knows = word.knows_us or word.about is not None
    heeded = knows and word.says is Says.EXECUTED and record.state not in _OVER
    return Unplaced() if heeded else Foreign()


def _answered_otherwise(word: Word, record: Record) -> bool:
    """Whether the handler has given an answer that says no, and this says yes: somebody must look at both."""
    code = record.error_code or ""
    return word.says is Says.EXECUTED and code.startswith(ANSWERED)


def _stands_instead(other: KnownEffect, effect: KnownEffect) -> bool:
    return (
        other.place == effect.place
        and other.step != effect.step
        and other.was_sent
        and other.outcome != Says.NOT_EXECUTED
    )


def _in_doubt(about_now: bool | None) -> TooLate | Keep | None:
    """What becomes of a word that is not certainly about the last send; None: it is."""
    if about_now is None:
        return Keep()
    return None if about_now else TooLate()


def _believable(word: Word, record: Record, effect: KnownEffect) -> bool | None:
    """That it happened is true for good, whichever attempt did it."""
    if word.says is Says.EXECUTED:
        return True
    assert effect.sent_at is not None
    return _about_now(word, record, effect.sends, effect.sent_at, effect.provider_id, effect.former_ids)


def _about_now(
    word: Word,
    record: Record,
    sends: int,
    sent_at: int,
    provider_id: str | None,
    former: Collection[str | None] = (),
) -> bool | None:
    """Whether a "no" is about the last send; None: nobody can tell, as within the clocks' tolerance, and
    doubt never runs anything. It tells nothing about one that began
    after it, nor does a "no" about what a former attempt has made. Where there was one send only, in the one
    life of its key, a word about this operation is about that, whatever the time and whichever of its objects
    the provider names; but where the attempt has noted one, it must name one, or the operation itself. What
    had a life before had the same downstream keys: there a "no" counts that names what this life has made, or
    this life itself."""
    named = word.provider_id
    known = named is not None and named == provider_id
    if named is not None and not known and named in former:
        return False
    if named is None and provider_id is not None and not word.of_this_life:
        return None  # something was made: perhaps this is about a try before it, under the same key
    this_life = known or record.life == 1 or word.of_this_life
    if sends <= 1:
        return True if this_life else None
    if word.occurred_at < sent_at - CLOCK_TOLERANCE_MS:
        return False
    another = named is not None and provider_id is not None and not known
    if another or not this_life:
        return None
    return True if word.occurred_at > sent_at + CLOCK_TOLERANCE_MS else None


def asked_about(record: Record, effects: Sequence[KnownEffect]) -> Record:
    """The record as a lookup gets it: with the effect whose end is to be found out, where that is one."""
    record = replace(record, asking=Question())
    if record.mode is Mode.PHASED:
        still = [one for one in effects if one.kind is EffectKind.PHASE and one.was_sent and not one.outcome]
    else:
        still = [one for one in effects if one.kind is EffectKind.LEASED and one.run == record.run]
    if len(still) != 1:
        return record
    (one,) = still
    found = OpenEffect(one.step, one.downstream_key, one.provider_id, one.source)
    return replace(record, open_effect=found)


def another_step(provider_id: str | None, record: Record, effects: Sequence[KnownEffect]) -> str | None:
    """The step that has this id of the provider's, if that is another than the one that is to be found out:
    of phased work the open one, of a leased handler's several the last."""
    if provider_id is None:
        return None
    if record.mode is Mode.PHASED:
        noted = [one for one in effects if one.kind is EffectKind.PHASE]
        meant = [one for one in noted if one.was_sent and not one.outcome]
    else:
        noted = [one for one in effects if one.kind is EffectKind.LEASED and one.run == record.run]
        meant = sorted(noted, key=lambda one: int(one.place))[-1:]
    if any(provider_id in (one.provider_id, *one.former_ids) for one in meant):
        return None
    others = [one for one in noted if one not in meant]
    return next((o.step for o in others if provider_id in (o.provider_id, *o.former_ids)), None)


def certainly_about(
    word: Word, record: Record, effect: KnownEffect | None, effects: Sequence[KnownEffect]
) -> bool:
    """Whether a "no" is about the last send, and that was the only one that its answer could stand for."""
    if effect is not None and effect.kind is not EffectKind.LEASED:
        return _names(word, effect.provider_id) and _believable(word, record, effect) is True
    noted = [one for one in effects if one.kind is EffectKind.LEASED and one.run == record.run]
    if len(noted) > 1:
        return False  # a handler that was refused by one may have gone to another
    known = next((one.provider_id for one in noted), record.provider_id)
    return _names(word, known) and _about_last_call(word, record, effects) is True


def _names(word: Word, provider_id: str | None) -> bool:
    """Whether it names no other object of the provider's than the one that is known."""
    return None in (word.provider_id, provider_id) or word.provider_id == provider_id


def _about_last_call(word: Word, record: Record, effects: Sequence[KnownEffect]) -> bool | None:
    """The same of a leased call, by what it has noted."""
    known = next((one.provider_id for one in effects if one.run == record.run), record.provider_id)
    former = {one.provider_id for one in effects if one.run != record.run}
    former.update(*(one.former_ids for one in effects))
    return _about_now(word, record, record.attempts, record.last_run_at, known, former)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
