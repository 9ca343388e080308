"""Which operation the next request is: named by the caller, or one that is being finished."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..errors import ConfigurationError
from .entry import Entry


@dataclass(frozen=True, slots=True)
class Named:
    """The caller's own name for it."""

    name: str


_current: ContextVar[Named | Entry | None] = ContextVar("samekey_client_operation", default=None)


@contextmanager
def operation(name: str) -> Iterator[None]:
    """Says what the request inside is, in words that are the same after a restart: ``"pay order 17"``.

    Under one name there is one key and one request. Begun again, also by another process, it goes on under
    the same key, and once it is done it gets the same answer.
    """
    if not name or not isinstance(name, str):
        raise ConfigurationError(f"An operation's name is a text that is not empty, not {name!r}.")
    token = _current.set(Named(name))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def going_on_with(entry: Entry) -> Iterator[None]:
    """The request inside is that of an operation that was begun."""
    token = _current.set(entry)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Named | Entry | None:
    """What the request that is being sent was said to be."""
    return _current.get()
