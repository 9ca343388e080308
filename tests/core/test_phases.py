"""Recovery points: what was recorded against what the code says now, and what becomes of a lost result."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey.core.phases import (
    WINDOW_MARGIN_MS,
    Phase,
    PhaseKind,
    ResumeEffect,
    all_reached,
    decode_phases,
    decode_value,
    encode_value,
    how_to_resume,
    recorded,
    settles_at,
)
from samekey.errors import DefinitionChanged, NotSerialisable

HOUR = 3_600_000


def phase(position: int, name: str, kind: PhaseKind = PhaseKind.TRANSACTION, *, done: bool = True) -> Phase:
    return Phase(position, name, kind, done, b"null", None, 0)


DONE = [phase(0, "ride"), phase(1, "charge", PhaseKind.EFFECT, done=False)]


# ------------------------------------------------------------------ against the definition


def test_a_position_gives_what_was_recorded_there() -> None:
    assert recorded(DONE, 0, "ride", PhaseKind.TRANSACTION) is DONE[0]
    assert recorded(DONE, 1, "charge", PhaseKind.EFFECT) is DONE[1]
    assert recorded(DONE, 2, "receipt", PhaseKind.TRANSACTION) is None
    assert recorded([], 0, "ride", PhaseKind.TRANSACTION) is None


@pytest.mark.parametrize(
    ("position", "name", "kind"),
    [
        (0, "rides", PhaseKind.TRANSACTION),
        (0, "ride", PhaseKind.EFFECT),
        (0, "charge", PhaseKind.EFFECT),
        (1, "ride", PhaseKind.TRANSACTION),
        (1, "charge", PhaseKind.TRANSACTION),
    ],
)
def test_another_phase_at_that_position_is_refused(position: int, name: str, kind: PhaseKind) -> None:
    with pytest.raises(DefinitionChanged, match=rf"Step {position + 1} .* left as it was.*new version"):
        recorded(DONE, position, name, kind)


def test_a_hole_is_refused() -> None:
    with pytest.raises(DefinitionChanged):
        recorded([phase(1, "charge")], 0, "ride", PhaseKind.TRANSACTION)


def test_a_function_must_come_to_everything_that_was_recorded() -> None:
    all_reached(DONE, 2)
    all_reached(DONE, 3)
    for reached in (0, 1):
        with pytest.raises(DefinitionChanged, match="ends before it"):
            all_reached(DONE, reached)


def test_rows_become_phases() -> None:
    rows = [
        (0, "ride", "transaction", 1, b"7", None, 5, 99),
        (1, "charge", "effect", 0, None, "ch_1", 6, 99),
        (2, "mail", "effect", 1, memoryview(b'"x"'), None, 7, 99),
    ]
    assert decode_phases("op", rows) == [  # type: ignore[arg-type]
        Phase(0, "ride", PhaseKind.TRANSACTION, True, b"7", None, 5),
        Phase(1, "charge", PhaseKind.EFFECT, False, None, "ch_1", 6),
        Phase(2, "mail", PhaseKind.EFFECT, True, b'"x"', None, 7),
    ]


def test_a_kind_of_a_newer_version_is_refused() -> None:
    with pytest.raises(DefinitionChanged, match="'saga'"):
        decode_phases("op", [(0, "ride", "saga", 1, None, None, 5, 99)])


# ------------------------------------------------------------------ an intent without a result


@pytest.mark.parametrize(
    ("age", "window", "can_look_up", "then"),
    [
        (0, None, False, ResumeEffect.UNKNOWN),
        (0, None, True, ResumeEffect.LOOK_UP),
        (0, HOUR, False, ResumeEffect.CALL_AGAIN),
        (0, HOUR, True, ResumeEffect.CALL_AGAIN),
        (HOUR - WINDOW_MARGIN_MS - 1, HOUR, False, ResumeEffect.CALL_AGAIN),
        (HOUR - WINDOW_MARGIN_MS, HOUR, False, ResumeEffect.UNKNOWN),
        (HOUR - WINDOW_MARGIN_MS, HOUR, True, ResumeEffect.LOOK_UP),
        (10 * HOUR, HOUR, True, ResumeEffect.LOOK_UP),
        # A short window keeps a tenth for itself.
        (8_999, 10_000, False, ResumeEffect.CALL_AGAIN),
        (9_000, 10_000, False, ResumeEffect.UNKNOWN),
        (0, 0, True, ResumeEffect.LOOK_UP),
        (0, 0, False, ResumeEffect.UNKNOWN),
    ],
)
def test_what_to_do_about_it(age: int, window: int | None, can_look_up: bool, then: ResumeEffect) -> None:
    assert how_to_resume(1_000_000, 1_000_000 + age, window, can_look_up=can_look_up) is then


@given(st.integers(0, 10**13), st.integers(0, 10**10), st.integers(0, 10**10))
def test_nobody_calls_again_after_the_window(intent: int, age: int, window: int) -> None:
    again = how_to_resume(intent, intent + age, window, can_look_up=True) is ResumeEffect.CALL_AGAIN
    assert not again or age < window


def test_not_found_counts_after_the_longest_call_and_the_settling_time() -> None:
    assert settles_at(1_000, 30_000, 5_000) == 36_000


# ------------------------------------------------------------------ values

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = decode_value(encode_value(value, "It"))
    assert back == value and type(back) is type(value)


class Colour(enum.Enum):
    RED = "red"


DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]

LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {"a set"},
        Colour.RED,
        (1, 2),
        [(1, 2)],
        {"a": (1,)},
        {1: "a"},
        {None: "a"},
        {True: "a"},
        {("a",): 1},
        math.nan,
        math.inf,
        [{"deep": -math.inf}],
        10**5000,
        DEEP,
        LOOP,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_come_back_is_refused_with_a_sentence(value: Any) -> None:
    with pytest.raises(
        NotSerialisable, match=r"The result of 'x' (cannot be stored|would come back changed)"
    ):
        encode_value(value, "The result of 'x'")


def test_text_of_any_kind_survives() -> None:
    for text in ("\x00", "\ud800", "Zoë", "\u2028", "😀"):
        assert decode_value(encode_value({text: text}, "It")) == {text: text}


def test_nothing_stored_is_none() -> None:
    assert decode_value(None) is None


@pytest.mark.parametrize("stored", [b"", b"{", b"\xff\xfe"])
def test_what_cannot_be_read_is_refused(stored: bytes) -> None:
    with pytest.raises(DefinitionChanged, match="cannot be read"):
        decode_value(stored)


def test_what_is_stored_is_plain_json() -> None:
    assert json.loads(encode_value({"a": [1, None]}, "It")) == {"a": [1, None]}
