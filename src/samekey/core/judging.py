"""What a provider's word about an effect means for its operation.

Pure: what is known goes in, one of a closed set of verdicts comes out. Nothing here is guessed: whose a word
is, is said by the table (``core/whose.py``), and what fits no effect, or more than one, moves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from .effects import ANSWERED, UNTOLD, EffectKind, KnownEffect, Says, Word
from .placing import (
    HAPPENED,
    effect_of,
    is_before,
    is_foreign,
    life_of,
    names_what_is_done,
    send_of,
    send_of_call,
)
from .record import Record
from .states import Mode, State
from .whose import Whose


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
_LEASED = (Mode.LEASED, Mode.REPEATABLE)


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
    that are not known."""
    life = life_of(word, record, effects, past)
    if life is Whose.NOT_OURS:
        return TooLate()
    if life is Whose.UNTOLD and is_before(word, record):
        return TooLate() if record.state in _OVER else Unplaced()
    certain = [one for one in others if life_of(one, record, effects, past) is Whose.OURS]
    verdict = _judge(word, record, effects, certain)
    if isinstance(verdict, Settle):
        contradicted = any(one.says is Says.EXECUTED for one in others)
        if verdict.word.says is not Says.EXECUTED and contradicted:
            return Keep()
        if life is Whose.UNTOLD:
            return Keep()
    return verdict


def _judge(word: Word, record: Record, effects: Sequence[KnownEffect], others: Sequence[Word]) -> Verdict:
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
    about = [w for w in words if w.about == effect.downstream_key and not is_foreign(w, effect)]
    present = [w for w in about if life_of(w, record, [effect], past) is Whose.OURS]
    believed = [word for word in present if send_of(word, effect) is Whose.OURS]
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
    if meant and all(is_foreign(word, effect) for effect in meant):
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
    return _in_doubt(send_of_call(word, record, effects)) or Settle(word, None)


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
        if one.about not in keys:
            continue
        step = replace(keys[one.about], sends=record.attempts, sent_at=record.last_run_at)
        latest = send_of(one, step) is Whose.OURS
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
    effect = effect_of(word, effects)
    if effect is None:
        # One that names no effect says nothing new once all that were sent have their results.
        known = word.about is None and all(one.outcome in HAPPENED for one in effects if one.was_sent)
        if record.state in _OVER or (effects and known):
            return TooLate()
        # What is under way may end with an object of its own: then it was about what is done.
        under_way = record.state in _RUNNING and names_what_is_done(word, effects)
        return Keep() if under_way else Unplaced()
    if is_foreign(word, effect):
        return _unknown_voice(word, record)
    if record.state in _OVER or effect.outcome in HAPPENED:
        return TooLate()
    if any(_stands_instead(other, effect) for other in effects):
        # It was taken back, and another one was tried in its place: there is no room for both.
        return Unplaced() if word.says is Says.EXECUTED else TooLate()
    if record.state in _RUNNING:
        return Keep()
    if word.says is Says.NOT_EXECUTED and record.state is State.FAILED_RETRYABLE:
        return TooLate()
    return _in_doubt(send_of(word, effect)) or Settle(word, effect)


def _judge_job(word: Word, record: Record, effects: Sequence[KnownEffect]) -> Verdict:
    effect = effect_of(word, effects)
    if effect is None:
        live = any(one.job_state == "live" for one in effects)
        return Keep() if live and names_what_is_done(word, effects) else Unplaced()
    if is_foreign(word, effect):
        return _unknown_voice(word, record)
    if effect.job_state == "dead" and effect.job_answers and _answered_otherwise(word, record):
        return Keep()
    if effect.job_state == "live":
        return Keep()  # its own next run says more: it also does the job's writes
    doubt = TooLate() if effect.job_state != "dead" else _in_doubt(send_of(word, effect))
    if doubt is not None:
        return doubt
    if word.says is Says.NOT_EXECUTED:
        return Keep()  # an operator has the job tried again: its handler must not run twice
    return Settle(word, effect)


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


def _in_doubt(send: Whose) -> TooLate | Keep | None:
    """What becomes of a word that is not certainly about the last send; None: it is."""
    match send:
        case Whose.OURS:
            return None
        case Whose.UNTOLD:
            return Keep()
        case Whose.NOT_OURS:
            return TooLate()
        case _:
            assert_never(send)


def certainly_about(
    word: Word, record: Record, effect: KnownEffect | None, effects: Sequence[KnownEffect]
) -> bool:
    """Whether a "no" is about the last send of this life, and that was the only one that its answer could
    stand for."""
    if life_of(word, record, effects) is not Whose.OURS:
        return False
    if effect is not None and effect.kind is not EffectKind.LEASED:
        return _names(word, effect.provider_id) and send_of(word, effect) is Whose.OURS
    noted = [one for one in effects if one.kind is EffectKind.LEASED and one.run == record.run]
    if len(noted) > 1:
        return False  # a handler that was refused by one may have gone to another
    known = next((one.provider_id for one in noted), record.provider_id)
    return _names(word, known) and send_of_call(word, record, effects) is Whose.OURS


def _names(word: Word, provider_id: str | None) -> bool:
    """Whether it names no other object of the provider's than the one that is known."""
    return None in (word.provider_id, provider_id) or word.provider_id == provider_id
