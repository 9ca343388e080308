"""Texts that come from outside and are stored: checked where they come in, so that every store can keep them.

A store would refuse some of them at the very end, after the effect: NUL on PostgreSQL, half of a character
everywhere, a long one on MariaDB.
"""

from __future__ import annotations

from typing import Final

from ..errors import ConfigurationError

LONGEST: Final = 255
"""Characters; the ids that providers publish have a few dozen, and every store's index can hold these."""


def is_storable(value: str) -> bool:
    """Whether every store can keep it, and a terminal show it."""
    return len(value) <= LONGEST and not any(
        one < " " or "\x7f" <= one <= "\x9f" or "\ud800" <= one <= "\udfff" for one in value
    )


def checked_text(what: str, value: object, *, may_be_empty: bool = False) -> str:
    """The text as it is stored, or ``ConfigurationError`` that says what is wrong with it."""
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{what} must be text, not {type(value).__name__}. Write: {what} = str(…)."
            if what.isidentifier()
            else f"{what} must be text, not {type(value).__name__}."
        )
    least = 0 if may_be_empty else 1
    if not least <= len(value) <= LONGEST:
        raise ConfigurationError(f"{what} must have {least} to {LONGEST} characters; this has {len(value)}.")
    if not is_storable(value):
        raise ConfigurationError(f"{what} must not hold control characters or half of a character.")
    return value
