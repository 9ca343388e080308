"""What an operator searches a provider by: what was sent, as far as it is known, and what may have been.

A key that was never sent is not found, and that proves nothing; one that was sent and is not looked for may
be paid twice. So what is not known is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..core.effects import UNTOLD, EffectKind, KnownEffect
from ..core.record import Record
from ..core.states import Mode, State
from ..logs import one_line
from .output import moment, print_facts, when
from .speech import say
from .target import OperatorStore

LOOKED_THROUGH: Final = 500
"""Records, the newest, among which others of the same endpoint are looked for."""
ALIKE: Final = 20
"""Of those so many are asked what they have sent."""


def effects_of(store: OperatorStore, record: Record | None) -> list[KnownEffect]:
    """What was sent, as far as it is known; a job that was never begun has sent nothing."""
    if record is None:
        return []
    return [one for one in store.ask(lambda: store.finding.effects(record.id)) if one.was_sent]


def is_former(effect: KnownEffect, record: Record) -> bool:
    """Whether another attempt than the last one has noted it, and the last one may have sent something
    else."""
    return effect.kind is EffectKind.LEASED and effect.run != record.run


def is_untold(record: Record, effects: Sequence[KnownEffect]) -> bool:
    """Whether the last attempt ended without a word about what it had sent."""
    leased = record.mode in (Mode.LEASED, Mode.REPEATABLE)
    waits = record.state in (State.UNKNOWN, State.DEAD_LETTER)
    told = any(not is_former(effect, record) for effect in effects)
    return leased and waits and not told and record.error_code in UNTOLD


def likely_steps(store: OperatorStore, record: Record | None, effects: Sequence[KnownEffect]) -> list[str]:
    """Where nobody knows what was sent: the steps that former attempts, and other operations of the same
    endpoint, have asked a key for."""
    if record is None or not is_untold(record, effects):
        return []
    steps = dict.fromkeys(effect.step for effect in effects)
    newest = store.ask(lambda: store.finding.find(limit=LOOKED_THROUGH))
    alike = [one.id for one in newest if one.endpoint == record.endpoint and one.id != record.id]
    for other in alike[:ALIKE]:
        for effect in store.ask(lambda other=other: store.finding.effects(other)):  # type: ignore[misc]
            if effect.kind is EffectKind.LEASED and effect.downstream_key is not None:
                steps.setdefault(effect.step)
    return sorted(steps)


def how_to_search(record: Record, effects: Sequence[KnownEffect], likely: Sequence[str]) -> str:
    """By what was sent, or may have been."""
    if is_untold(record, effects):
        lines = [
            "Which downstream keys the last attempt has sent is not known: its process ended before it could "
            "note them.",
            *_may_have_been_sent(record, likely),
            "Your code says for which steps its handler asks; the key of each follows from its step:",
            f"  samekey keys show {record.id} --step STEP",
            "Say --not-executed only when you have looked for every one of them: what you have not looked "
            "for may have been done, and would be done again. Then:",
        ]
        return "\n".join(lines) + "\n"
    if any(one.downstream_key is not None and not is_former(one, record) for one in effects):
        return "Find out at the provider what happened, by every downstream key above and its id, then:\n"
    if record.mode is Mode.ATOMIC:
        return "Find out in your own tables what was committed, then:\n"
    return (
        "Its handler asked for no downstream key. Find out at the provider what happened, by what you know "
        "of the request, then:\n"
    )


def _may_have_been_sent(record: Record, likely: Sequence[str]) -> list[str]:
    if not likely:
        return []
    return [
        "These may have been sent: former attempts, or other operations of this endpoint, asked for them.",
        *(f"  {record.downstream_key(step)}  {one_line(step) or '(the call)'}" for step in likely),
    ]


def print_effects(record: Record, effects: Sequence[KnownEffect]) -> None:
    """One block for each effect, the downstream key on a line of its own: it is copied into a provider's
    search."""
    for effect in effects:
        say("")
        sent = when(effect.sent_at) + ("" if effect.sends < 2 else ", not for the first time")
        if is_former(effect, record):
            sent = f"{when(effect.sent_at)}, by a former attempt; what the last one did may be something else"
        pairs = [
            ("step", effect.step or "(the call)"),
            ("downstream key", effect.downstream_key or "none was asked for"),
            ("provider's id", effect.provider_id),
            ("ids of former attempts", ", ".join(effect.former_ids) or None),
            ("source", effect.source),
            ("its state", effect_state(effect)),
            ("sent", sent),
        ]
        print_facts((name, value) for name, value in pairs if value is not None)


def effect_state(effect: KnownEffect) -> str:
    """What is known of it, in a word."""
    if effect.job_state is not None:
        return f"job {effect.job_state}"
    return "no end known" if effect.outcome is None else effect.outcome.replace("_", " ")


def described_effect(record: Record, effect: KnownEffect) -> dict[str, Any]:
    return {
        "step": effect.step,
        "kind": str(effect.kind),
        "downstream_key": effect.downstream_key,
        "provider_id": effect.provider_id,
        "former_ids": [*effect.former_ids],
        "source": effect.source,
        "state": effect_state(effect),
        "sent_at": moment(effect.sent_at),
        "sends": effect.sends,
        "former": is_former(effect, record),
    }


def described_likely(record: Record, steps: Sequence[str]) -> list[dict[str, str]]:
    """Keys that may have been sent and are not noted."""
    return [{"step": step, "downstream_key": record.downstream_key(step)} for step in steps]
