"""What stands behind a way to read or to answer a request.

Middleware puts functions and objects of its own around what it hands on, and has what it was given in its
hands: in a closure, a partial, an attribute, as the object of a method.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MOST: Final = 500
"""Things that are looked at; a chain of middleware has some for each."""


def find(channel: Any, kind: type[T]) -> T | None:
    """The nearest thing of that kind that is reached by what ``channel`` has in its hands."""
    waiting, seen = deque([channel]), set[int]()
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        try:
            if isinstance(one, kind):
                return one
            waiting.extend(_in_hands(one))
        except Exception:  # noqa: S112 - an object that does not want to be looked at
            continue
    return None


def _in_hands(one: Any) -> Iterator[Any]:
    if isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif inspect.ismethod(one) or inspect.isbuiltin(one):
        yield one.__self__
    elif inspect.isfunction(one):
        for cell in one.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif not isinstance(one, type) and not inspect.ismodule(one):
        # What an object keeps, but not what is in its lists: those may hold other requests.
        yield from list(getattr(one, "__dict__", {}).values())
