"""The mark of a decorated handler, so that the edge leaves its claim to it, and whether it can be believed.

``functools.wraps`` copies every attribute of a function, and so the mark, to a function that may never call
the guarded one. A copy counts only on a function that has the guarded one in its hands (``hands.py``).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from .hands import closed_over, holds

if TYPE_CHECKING:
    from ..engine import Engine
    from .rules import Rules

GUARD: Final = "__samekey_guard__"
"""The attribute that bears the mark."""
_STANDS: Final = "__samekey_stands_in__"
"""The attribute of a function that was put in the place of a route's own handler."""


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Who guards a handler, and how."""

    engine: Engine
    rules: Rules
    function: Any
    """The guarded function that it was put on."""


@dataclass(frozen=True, slots=True, eq=False)
class Exempt:
    """The mark of a handler that is left alone."""

    function: Any
    """The function that it was put on."""


def mark_of(handler: Any) -> Mark | Literal["exempt"] | None:
    """The mark of a handler; None where there is none, or only a copy on a function that does not call the
    guarded one."""
    mark = getattr(handler, GUARD, None)
    if isinstance(mark, Mark) and mark.function is handler:
        return mark
    handler = own_handler(handler)
    mark = getattr(handler, GUARD, None)
    if mark is None and not inspect.isroutine(handler) and not isinstance(handler, type):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 (its mark is looked for)
        mark = getattr(handler, GUARD, None)
    if not isinstance(mark, Mark | Exempt):
        return None
    return _said(mark) if _leads_to(handler, mark.function) else None


def hidden_mark(handler: Any) -> Mark | None:
    """The mark of a function that a handler without one was made around, by a decorator without
    ``functools.wraps``: one that passes on whatever it is given, or whose code was generated. Anything else
    that a handler holds may be a part of its work."""
    handler = own_handler(handler)
    handler = getattr(handler, "__func__", handler)
    if not isinstance(handler, FunctionType):
        return None
    code, held = handler.__code__, list(closed_over(handler))
    if code.co_filename.startswith("<"):
        held += [handler.__globals__[name] for name in code.co_names if name in handler.__globals__]
    elif code.co_argcount or not (code.co_flags & CO_VARARGS and code.co_flags & CO_VARKEYWORDS):
        return None
    marks = (mark_of(one) for one in held if callable(one))
    return next((mark for mark in marks if isinstance(mark, Mark)), None)


def _said(mark: Mark | Exempt) -> Mark | Literal["exempt"]:
    return mark if isinstance(mark, Mark) else "exempt"


def own_handler(handler: Any) -> Any:
    """A route's handler as its author wrote it, without what stands in its place."""
    while isinstance(handler := stood_for(handler), partial):
        handler = handler.func
    return handler


def stood_for(handler: Any) -> Any:
    """What a route was given: the handler that a stand-in stands for."""
    while stands_in(handler):
        handler = getattr(handler, _STANDS)[1]
    return handler


def stands_in(handler: Any) -> bool:
    """Whether a function was put in the place of a handler; a copy of the attribute says nothing."""
    place = getattr(handler, _STANDS, None)
    return place is not None and place[0] is handler


def put_in_place(function: Any, handler: Any) -> Any:
    """Has a function stand in the place of a handler."""
    setattr(function, _STANDS, (function, handler))
    return function


def identity(handler: Any) -> tuple[int, int]:
    """Which function it is. A method is made anew whenever it is looked up, and is the same all the same."""
    if isinstance(handler, MethodType):
        return id(handler.__func__), id(handler.__self__)
    return id(handler), 0


def _leads_to(handler: Any, guarded: Any) -> bool:
    """Whether a function is the guarded one, or has it in its hands. It is looked for once: what is held may
    become more."""

    def is_it(one: Any) -> bool:
        one = own_handler(one)
        return getattr(one, "__func__", one) is guarded

    if is_it(handler):
        return True
    handler = getattr(handler, "__func__", handler)
    try:
        known = _found.setdefault(handler, {})
    except TypeError:  # it can be no key
        return holds(handler, is_it)
    if id(guarded) not in known:
        known[id(guarded)] = holds(handler, is_it)
    return known[id(guarded)]


_found: WeakKeyDictionary[Any, dict[int, bool]] = WeakKeyDictionary()
"""By a function, whether it leads to a guarded one, which lives as long as it: its mark holds it."""
