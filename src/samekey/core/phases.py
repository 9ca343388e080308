"""Recovery points: what a phased operation has done so far, and what its next step must do about it.

Pure. A phase is known by its position; its name and kind are compared with what was recorded before
anything new runs, so a changed definition is refused and never guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..errors import DefinitionChanged, NotSerialisable
from .program import Row, at_home, home_of


class PhaseKind(StrEnum):
    """What a phase does."""

    TRANSACTION = "transaction"
    """Writes to the database; its recovery point commits with them."""
    EFFECT = "effect"
    """Makes one outside call; its intent commits before it, its result after it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One recorded phase."""

    position: int
    name: str
    kind: PhaseKind
    done: bool
    result: bytes | None
    provider_id: str | None
    intent_at: int


class ResumeEffect(StrEnum):
    """What to do about an effect whose intent is there and whose result is not."""

    CALL_AGAIN = "call_again"
    """The provider deduplicates and its window is open: the same downstream key cannot act twice."""
    LOOK_UP = "look_up"
    """Only the provider can tell."""
    UNKNOWN = "unknown"
    """Nobody can tell."""


WINDOW_MARGIN_MS = 60_000
"""Taken off a provider's window: clocks differ, and a call takes time to arrive."""


def decode_phases(operation_id: str, rows: Sequence[Row]) -> list[Phase]:
    """What was recorded, in order; ``DefinitionChanged`` if this version cannot read it."""
    phases = []
    for position, name, kind, done, result, provider_id, intent_at, _ in rows:
        assert isinstance(position, int) and isinstance(intent_at, int)
        if kind not in set(PhaseKind):
            raise DefinitionChanged(
                f"Step {position + 1} of this operation was recorded as {kind!r}, which this version of "
                "samekey does not know. The operation was left as it was."
            )
        phases.append(
            Phase(
                position,
                str(name),
                PhaseKind(str(kind)),
                done == 1,
                at_home(
                    bytes(result) if isinstance(result, memoryview) else result,
                    home_of("result", operation_id, position),
                ),
                None if provider_id is None else str(provider_id),
                intent_at,
            )
        )
    return phases


def recorded(phases: Sequence[Phase], position: int, name: str, kind: PhaseKind) -> Phase | None:
    """What was recorded at this position; ``DefinitionChanged`` if it was another phase."""
    if position >= len(phases):
        return None
    phase = phases[position]
    if (phase.position, phase.name, phase.kind) != (position, name, kind):
        raise DefinitionChanged(
            f"Step {position + 1} of this operation was recorded as the {phase.kind} {phase.name!r}, but "
            f"the code now has the {kind} {name!r} there. The operation was left as it was. Register the "
            "definition that it began with under its old version, and give the changed one a new version."
        )
    return phase


def all_reached(phases: Sequence[Phase], reached: int) -> None:
    """``DefinitionChanged`` if the function is over, but more had been recorded than it came to."""
    if reached < len(phases):
        phase = phases[reached]
        raise DefinitionChanged(
            f"Step {reached + 1} of this operation was recorded as the {phase.kind} {phase.name!r}, but the "
            "code now ends before it. The operation was left as it was. Register the definition that it "
            "began with under its old version, and give the changed one a new version."
        )


def how_to_resume(intent_at: int, now: int, window_ms: int | None, *, can_look_up: bool) -> ResumeEffect:
    """An effect may have been tried by somebody who died, or who is only paused."""
    if window_ms is not None and now < intent_at + window_ms - min(WINDOW_MARGIN_MS, window_ms // 10):
        return ResumeEffect.CALL_AGAIN
    return ResumeEffect.LOOK_UP if can_look_up else ResumeEffect.UNKNOWN


def settles_at(intent_at: int, timeout_ms: int, settle_ms: int) -> int:
    """When "not found" begins to mean "never happened": until then a first caller may still be calling."""
    return intent_at + timeout_ms + settle_ms


def encode_value(value: Any, what: str) -> bytes:
    """A result or an input as it is stored. What does not survive the way there and back is refused."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        same = same_value(json.loads(text), value)
    except Exception as error:  # a lazy list may raise anything when it is read
        raise NotSerialisable(
            f"{what} cannot be stored: {said_by(error)}. Use plain values: dict, list, str, int, float, "
            "bool, None."
        ) from None
    if not same:
        raise NotSerialisable(
            f"{what} would come back changed: a tuple as a list, or a number as a key. Use plain values: "
            "dict with string keys, list, str, int, float, bool, None."
        )
    return text.encode()


def said_by(error: Exception) -> str:
    """What an error says of itself, if it can."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def same_value(back: Any, value: Any) -> bool:
    """Whether a value came back as it was, tuples apart from lists and numbers apart from strings."""
    if isinstance(value, dict):
        return (
            isinstance(back, dict)
            and back.keys() == value.keys()
            and all(same_value(back[key], item) for key, item in value.items())
        )
    if isinstance(value, list):
        return isinstance(back, list) and len(back) == len(value) and all(map(same_value, back, value))
    return not isinstance(value, tuple) and bool(back == value)


def decode_value(stored: bytes | None) -> Any:
    """What ``encode_value`` made these bytes of; ``DefinitionChanged`` if they are something else."""
    try:
        return None if stored is None else json.loads(stored)
    except ValueError as error:
        raise DefinitionChanged(f"A stored value cannot be read: {error}. Nothing was run.") from None
