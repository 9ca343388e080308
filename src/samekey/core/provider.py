"""The provider's own id of what it did: checked when it is set, so that every store can keep it."""

from __future__ import annotations

from typing import Any, Self, overload

from .texts import checked_text


def checked_provider_id(value: object) -> str:
    """The id as it is stored, or ``ConfigurationError`` for what a store would refuse at the very end."""
    return checked_text("provider_id", value)


class StoredText:
    """An attribute that holds a text that every store can keep, such as a provider's id or name, or None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._kept = name, f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> str | None: ...

    def __get__(self, instance: Any, owner: type) -> Self | str | None:
        return self if instance is None else getattr(instance, self._kept, None)

    def __set__(self, instance: Any, value: str | None) -> None:
        setattr(instance, self._kept, None if value is None else checked_text(self._name, value))
