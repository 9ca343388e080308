"""Effects, and a provider's words about them, as they are known.

An effect is one thing that an operation does outside the store: the leased call, an effect phase, a job.
Which of them a word is about is said by ``core/placing.py``, and what follows by ``core/judging.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from .program import Row, Value
from .record import OpenEffect, Question, Record, run_of
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


ANSWERED: Final = "answered_"
"""How the error code of an outcome begins whose handler has given an answer that says no, against a
provider's yes of which it had not known."""
NOT_NOTED: Final = "not_noted"
"""The error code of an attempt whose outcome is unknown, and so is what it may have sent."""
RELEASED: Final = "released"
"""The error code of a later life of a key that is free again, because nothing was sent in it."""
UNTOLD: Final = ("lease_ended", NOT_NOTED)
"""The error codes of attempts of which nobody has noted what they may have sent."""


def unburied(record: Record) -> Record:
    """The tombstone of what never had an answer, as it was before the reaper came: to a yes it must not
    matter whether that was by. What had been sent may be forgotten. After ``gone`` nothing runs in any
    case."""
    failed = record.completed_at is None and record.after_expiry != "gone"
    if record.state is State.EXPIRED and failed:
        return replace(record, state=State.FAILED_RETRYABLE, error_code=NOT_NOTED)
    return record


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


def _text(value: object) -> str | None:
    return None if value is None else str(value)
