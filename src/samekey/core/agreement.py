"""What a provider's word about something that is settled says of the answer that stands.

Pure, as ``core/judging.py``. A conflict is for a person: one of the two is wrong, and the client has been
told the other. Doubt is none: a "no" that may be about a former attempt contradicts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from .disputes import Yes, is_known_to
from .effects import EffectKind, KnownEffect, Says, SentStep, Word
from .judging import TooLate, certainly_about, judge
from .placing import is_before, life_of
from .record import Record
from .states import Mode, State
from .whose import Whose

ERRORS_FROM = 400


class Aftermath(StrEnum):
    """What an event that comes to nothing is kept as."""

    USED = "used"
    """It says what is known."""
    LATE = "late"
    """It is about a former attempt or life, or nobody can tell."""
    CONFLICT = "conflict"
    """It says otherwise than the answer that stands."""


def aftermath(
    word: Word,
    record: Record,
    effects: Sequence[KnownEffect],
    past: Collection[str | None] = (),
    heard_of: Collection[str | None] = (),
) -> Aftermath:
    """Of a word that cannot change anything any more. ``past``: as for ``judge``. ``heard_of``: objects
    of the provider's that former events about the operation have named: each is shown to a person once."""
    if life_of(word, record, effects, past) is Whose.NOT_OURS or is_before(word, record):
        return Aftermath.LATE
    effect = _meant(word, record, effects)
    yes = word.says is Says.EXECUTED
    if yes and word.provider_id not in heard_of and _made_twice(word, record, effect, effects):
        return Aftermath.CONFLICT
    if record.state is not State.COMPLETED:
        return Aftermath.CONFLICT if yes and _is_refused(effect) else Aftermath.LATE
    if yes and _knew(word, record, effects):
        return Aftermath.USED
    happened = _happened(record, effect)
    if happened is None:
        return Aftermath.LATE
    if yes == happened:
        return Aftermath.USED
    if yes or certainly_about(word, record, effect, effects):
        return Aftermath.CONFLICT
    return Aftermath.LATE


def is_no_news(
    word: Word, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> bool:
    """Whether a word tells an operation nothing: what it is about has its end there, and that is no other
    than the word says."""
    over = isinstance(judge(word, record, effects, (), past), TooLate)
    return over and aftermath(word, record, effects, past) is not Aftermath.CONFLICT


def _made_twice(
    word: Word, record: Record, effect: KnownEffect | None, effects: Sequence[KnownEffect]
) -> bool:
    """Whether it names another object than the one that is the result of what was sent more than once: then
    each send may have made its own. (Of one send a provider may name several objects.)"""
    if record.mode in (Mode.LEASED, Mode.REPEATABLE):
        known = {one.provider_id for one in effects if one.run == record.run} | {record.provider_id}
        sends = record.attempts if record.state is State.COMPLETED else 0
    elif effect is None or not (effect.outcome == Says.EXECUTED or effect.job_state == "done"):
        return False
    else:
        known, sends = {effect.provider_id}, effect.sends
    return sends > 1 and known != {None} and word.provider_id is not None and word.provider_id not in known


def _is_refused(effect: KnownEffect | None) -> bool:
    """Whether an effect has a refusal for its result, or an operator has given it up, whatever its operation
    has come to."""
    return effect is not None and (effect.outcome == Says.DECLINED or effect.job_state == "discarded")


def _knew(word: Word, record: Record, effects: Sequence[KnownEffect]) -> bool:
    """Whether a leased handler has given its answer with this in mind. (What others have found out has kept
    the error code of what they found out about.)"""
    if record.error_code is not None:
        return False
    noted = [one for one in effects if one.kind is EffectKind.LEASED and one.run == record.run]
    in_order = sorted(noted, key=lambda one: int(one.place))
    steps = [SentStep(one.step, one.downstream_key, one.provider_id) for one in in_order]
    yes = Yes(word.source, word.event_id, word.about, word.provider_id)
    return is_known_to(yes, steps, sends=record.attempts)


def _meant(word: Word, record: Record, effects: Sequence[KnownEffect]) -> KnownEffect | None:
    kind = {Mode.PHASED: EffectKind.PHASE, Mode.DEFERRED: EffectKind.JOB}.get(record.mode, EffectKind.LEASED)
    sent = [effect for effect in effects if effect.kind is kind and effect.was_sent]
    if word.about is not None:
        return next((effect for effect in sent if effect.downstream_key == word.about), None)
    return sent[0] if len(sent) == 1 else None


def _happened(record: Record, effect: KnownEffect | None) -> bool | None:
    """Whether it is known to have happened; None: the answer tells nothing of this effect."""
    answered = record.answer is None or record.answer.status < ERRORS_FROM
    if record.mode in (Mode.LEASED, Mode.REPEATABLE):
        return answered
    if effect is None:
        return None
    if effect.kind is EffectKind.PHASE and effect.outcome is not None:
        return effect.outcome == Says.EXECUTED
    if effect.kind is EffectKind.PHASE:
        return None if answered else False  # an operator has given it up, or its function did
    if effect.job_state == "discarded":
        return False
    return answered if effect.job_answers else None
