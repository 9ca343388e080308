"""Whether a handler is a function of its own, or something around others.

What stands around a function may authenticate, act, try again, or answer in its place, and nobody can see
which of these. So an undecorated route with such a handler is refused, or guarded around all of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any, Final

from .hands import closed_over, in_hands, kept_by
from .marks import own_handler, stood_for

REFUSED: Final = (
    "the handler has decorators of its own, or holds a function that it calls, and it cannot be seen whether "
    "they authenticate the caller, act by themselves or call it again. Put @idempotency.leased (atomic …) "
    "directly above the function, below its other decorators, so that they run first, at every retry; or "
    'declare the route exempt; or give the middleware decorators="around", if a replay need not run them.'
)


def is_wrapped(handler: Any) -> bool:
    """Whether others stand around the function of a handler, or an object holds one that it may call.

    A decorator without ``functools.wraps`` that keeps its own name cannot be told from a handler.
    """
    handler = stood_for(handler)
    if type(handler) is partial:
        given = (*handler.args, *handler.keywords.values())
        return _has_function(given) or is_wrapped(handler.func)
    if isinstance(handler, staticmethod | classmethod):
        return is_wrapped(handler.__func__)
    if getattr(handler, "__wrapped__", None) is not None:
        return True
    if isinstance(handler, MethodType):
        return inspect.isroutine(handler.__self__) or is_wrapped(handler.__func__)
    if isinstance(handler, FunctionType):
        return _has_the_name_of_another(handler)
    if inspect.isroutine(handler) or isinstance(handler, type):
        return False
    return is_wrapped(getattr(type(handler), "__call__", None)) or _has_function(kept_by(handler))  # noqa: B004


def _has_function(values: Iterable[Any]) -> bool:
    """Whether anything among these, or in a list of them, can be called. A class is a value."""
    kept = (in_hands(one) if isinstance(one, _CONTAINERS) else (one,) for one in values)
    return any(callable(one) and not isinstance(one, type) for one in chain.from_iterable(kept))


_CONTAINERS: Final = (list, tuple, set, frozenset, dict)


def _has_the_name_of_another(function: FunctionType) -> bool:
    """As a decorator does without ``functools.wraps``."""
    if function.__name__ == function.__code__.co_name:
        return False
    held = (own_handler(one) for one in closed_over(function) if one is not function)
    return any(isinstance(one, FunctionType) and one.__name__ == function.__name__ for one in held)
