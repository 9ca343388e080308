"""Placing a provider's word: what is known of it is put together, and the table says whose it is.

Pure. Whoever decides about a word asks here, and nowhere else: which life of the key it is about, which
effect of the operation, which send of the effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .effects import RELEASED, EffectKind, KnownEffect, Says, Word
from .record import CLOCK_TOLERANCE_MS, Record
from .states import Mode, State
from .whose import (
    By,
    End,
    Former,
    MadeBy,
    Moment,
    Named,
    Object,
    OfEffect,
    OfLife,
    OfSend,
    Others,
    Stage,
    Whose,
    whose,
)

HAPPENED = (Says.EXECUTED, Says.DECLINED)

# Which life of the key


def life_of(
    word: Word, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None] = ()
) -> Whose:
    """Whether a word is about this life of the key. ``past`` are the provider's ids that former lives have
    noted, with None for those that are not known."""
    by = By.OPERATION if word.of_this_life else By.KEY
    return whose(_of_life(by, word.says is Says.EXECUTED, word.provider_id, word, record, effects, past))


def life_found(
    provider_id: str | None,
    record: Record,
    effects: Sequence[KnownEffect],
    past: Collection[str | None],
    *,
    since: bool,
) -> Whose:
    """The same of what was found by the key that all lives have. ``since``: what is older than this life was
    not looked at."""
    by = By.LOOK if since else By.SEARCH
    return whose(_of_life(by, True, provider_id, None, record, effects, past))


def is_before(word: Word, record: Record) -> bool:
    """Whether it happened before the operation began, in whichever life of its key, and however often it has
    run; but that this very operation happened, by its own id, is true whatever a clock says."""
    certain = word.of_this_life and word.says is Says.EXECUTED
    return not certain and word.occurred_at < record.since_ms


def _of_life(
    by: By,
    yes: bool,
    provider_id: str | None,
    word: Word | None,
    record: Record,
    effects: Sequence[KnownEffect],
    past: Collection[str | None],
) -> OfLife:
    former = Former.NONE if record.life == 1 else Former.FORGOTTEN if None in past else Former.KNOWN
    before = word is not None and word.occurred_at < record.since_ms
    return OfLife(
        by, yes, _object(provider_id, record, effects, past), former, _stage(record, effects), before
    )


def _object(
    provider_id: str | None, record: Record, effects: Sequence[KnownEffect], past: Collection[str | None]
) -> Object:
    if provider_id is None:
        return Object.NONE
    its_own = {record.provider_id, *(effect.provider_id for effect in effects)}
    its_own.update(*(effect.former_ids for effect in effects))
    if provider_id in its_own:
        return Object.OWN
    return Object.PAST if provider_id in past else Object.NEW


def _stage(record: Record, effects: Sequence[KnownEffect]) -> Stage:
    """Released in its only attempt, before anything was sent; or open, with nothing noted that would tell its
    object from a former life's."""
    released = record.state is State.FAILED_RETRYABLE and record.error_code == RELEASED
    if released and record.attempts == 1 and not any(one.was_sent for one in effects):
        return Stage.UNSENT
    noted = any(one.provider_id is not None for one in effects if one.outcome not in HAPPENED)
    is_open = record.state in (State.UNKNOWN, State.DEAD_LETTER) and not noted
    return Stage.OPEN if is_open else Stage.OTHER


# Which effect of the operation


def placed(word: Word, record: Record, effects: Sequence[KnownEffect]) -> Word:
    """The word with the effect that it is about, where it names that otherwise than by its key and it is
    known: which one it is shows best when the word comes."""
    kind = {Mode.PHASED: EffectKind.PHASE, Mode.DEFERRED: EffectKind.JOB}.get(record.mode)
    if word.about is not None or kind is None:
        return word
    effect = effect_of(word, [one for one in effects if one.kind is kind])
    return word if effect is None else replace(word, about=effect.downstream_key)


def effect_of(word: Word, effects: Sequence[KnownEffect]) -> KnownEffect | None:
    """The one effect that it is about; None: nobody can tell, or it is about none of them."""
    told = [(effect, whose(_of_effect(word, effect, effects))) for effect in effects]
    ours = [effect for effect, one in told if one is Whose.OURS]
    doubt = any(one is Whose.UNTOLD for _, one in told)
    return ours[0] if len(ours) == 1 and not doubt else None


def names_what_is_done(word: Word, effects: Sequence[KnownEffect]) -> bool:
    """Whether a word that names no effect names the object of one that has its result: perhaps it tells of
    nothing else. It frees nothing, but it does not stop a send that is safe whatever the word means."""
    return word.about is None and any(is_done(one) and _has_made(one, word) for one in effects)


def is_done(effect: KnownEffect) -> bool:
    return effect.outcome in HAPPENED or effect.job_state == "done"


def is_foreign(word: Word, effect: KnownEffect) -> bool:
    """Whether it comes from somebody else than whom the effect was sent to, as far as the code says."""
    return effect.source is not None and effect.source != word.source


def _of_effect(word: Word, effect: KnownEffect, effects: Sequence[KnownEffect]) -> OfEffect:
    others = [one for one in effects if one is not effect and one.was_sent]
    return OfEffect(
        _named(word, effect, others),
        _end(effect),
        _others(word, others),
        sent_after=_sent_after(word, effect),
        may_share=_may_share(word, effect),
        alone=len(effects) == 1,
    )


def _named(word: Word, effect: KnownEffect, others: Sequence[KnownEffect]) -> Named:
    if word.about is not None:
        return Named.ITS_KEY if effect.downstream_key == word.about else Named.ANOTHER_KEY
    if _has_made(effect, word):
        return Named.ITS_OBJECT
    known = bool(word.among) or any(_has_made(one, word) for one in others)
    return Named.ANOTHERS_OBJECT if known else Named.NOTHING


def _end(effect: KnownEffect) -> End:
    if not effect.was_sent:
        return End.UNSENT
    if is_done(effect):
        return End.DONE
    given_up = effect.job_state in ("discarded", "cancelled")
    return End.OVER if given_up or effect.outcome == Says.NOT_EXECUTED else End.OPEN


def _others(word: Word, others: Sequence[KnownEffect]) -> Others:
    having = [one for one in others if _has_made(one, word) and not _sent_after(word, one)]
    if any(not is_done(one) for one in having):
        return Others.OPEN
    if having:
        return Others.DONE
    may = any(
        _end(one) is End.OPEN and _may_share(word, one) and not _sent_after(word, one) for one in others
    )
    return Others.MAY if may else Others.NONE


def _has_made(effect: KnownEffect, word: Word) -> bool:
    """Whether the object that a word names is known to be this effect's."""
    named = word.provider_id is not None and word.provider_id in (effect.provider_id, *effect.former_ids)
    return named or effect.downstream_key in word.among


def _may_share(word: Word, effect: KnownEffect) -> bool:
    return effect.provider_id is None and not is_foreign(word, effect)


def _sent_after(word: Word, effect: KnownEffect) -> bool:
    return effect.sends == 1 and word.occurred_at < (effect.sent_at or 0) - CLOCK_TOLERANCE_MS


# Which send of the effect


def send_of(word: Word, effect: KnownEffect) -> Whose:
    """Whether it is about the effect's last send. That it happened is true for good, whichever did it."""
    if word.says is Says.EXECUTED:
        return Whose.OURS
    assert effect.sent_at is not None
    return whose(_of_send(word, effect.provider_id, effect.former_ids, effect.sends, effect.sent_at))


def send_of_call(word: Word, record: Record, effects: Sequence[KnownEffect]) -> Whose:
    """The same of a leased call, by what it has noted."""
    if word.says is Says.EXECUTED:
        return Whose.OURS
    known = next((one.provider_id for one in effects if one.run == record.run), record.provider_id)
    former = {one.provider_id for one in effects if one.run != record.run}
    former.update(*(one.former_ids for one in effects))
    return whose(_of_send(word, known, former, record.attempts, record.last_run_at))


def _of_send(
    word: Word, known: str | None, former: Collection[str | None], sends: int, sent_at: int
) -> OfSend:
    named = word.provider_id
    if named is None:
        made = MadeBy.NONE
    elif named == known:
        made = MadeBy.LAST
    else:
        made = MadeBy.FORMER if named in former else MadeBy.OTHER
    moment = Moment.AROUND
    if word.occurred_at < sent_at - CLOCK_TOLERANCE_MS:
        moment = Moment.BEFORE
    elif word.occurred_at > sent_at + CLOCK_TOLERANCE_MS:
        moment = Moment.AFTER
    return OfSend(made, known is not None, word.of_this_life, sends > 1, moment)
