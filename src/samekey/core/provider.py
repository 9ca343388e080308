"""The provider's own id of what it did: checked when it is set, so that every store can keep it."""

from __future__ import annotations

from typing import Any, Final, Self, overload

from ..errors import ConfigurationError

LONGEST: Final = 255
"""Characters; the ids that providers publish have a few dozen."""


def checked_provider_id(value: object) -> str:
    """The id as it is stored, or ``ConfigurationError`` for what a store would refuse at the very end."""
    if not isinstance(value, str):
        raise ConfigurationError(
            f"provider_id must be text, not {type(value).__name__}. Write: provider_id = str(…)."
        )
    if not 1 <= len(value) <= LONGEST:
        raise ConfigurationError(f"provider_id must have 1 to {LONGEST} characters; this has {len(value)}.")
    if any(one < " " or "\x7f" <= one <= "\x9f" or "\ud800" <= one <= "\udfff" for one in value):
        raise ConfigurationError("provider_id must not hold control characters or half of a character.")
    return value


class ProviderId:
    """An attribute that holds such an id, or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._kept = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> str | None: ...

    def __get__(self, instance: Any, owner: type) -> Self | str | None:
        return self if instance is None else getattr(instance, self._kept, None)

    def __set__(self, instance: Any, value: str | None) -> None:
        setattr(instance, self._kept, None if value is None else checked_provider_id(value))
