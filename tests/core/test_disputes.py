"""Whether a handler knew of what a provider tells: then its refusal is no contradiction."""

from __future__ import annotations

import pytest

from samekey.core.disputes import Yes, is_known_to
from samekey.core.effects import SentStep

CHARGE = SentStep("charge", "k-charge")
NOTED = SentStep("charge", "k-charge", "pi_1")
SHIP = SentStep("ship", "k-ship")


@pytest.mark.parametrize(
    ("yes_about", "named", "steps", "sends", "known"),
    [
        ("k-charge", "pi_1", (NOTED,), 1, True),
        ("k-charge", "pi_1", (NOTED,), 2, True),
        (None, "pi_1", (NOTED,), 1, True),
        ("k-charge", None, (NOTED,), 1, True),  # it names no object, and one was noted
        ("k-charge", None, (NOTED,), 2, False),  # which may be another attempt's
        ("k-charge", "ch_9", (NOTED,), 1, False),  # a second try went through, of which nothing was noted
        ("k-charge", None, (CHARGE,), 1, False),
        ("k-charge", "ch_9", (CHARGE, SHIP), 1, True),  # it went on to the next step
        ("k-ship", "sh_1", (CHARGE, SHIP), 1, False),
        ("k-charge", "ch_9", (CHARGE, SHIP), 2, False),
        ("k-charge", "ch_9", (), 1, False),
    ],
)
def test_what_a_handler_knew(
    yes_about: str | None, named: str | None, steps: tuple[SentStep, ...], sends: int, known: bool
) -> None:
    yes = Yes("psp", "e1", yes_about, named)
    assert is_known_to(yes, steps, sends=sends) is known
