"""The mark of a decorated handler, so that the edge leaves its claim to it, and whether it can be believed.

``functools.wraps`` copies every attribute of a function, and so the mark, to a function that may never call
the guarded one. A copy counts only on a function that has the guarded one in its hands.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from .engine import Engine
    from .rules import Rules

GUARD: Final = "__samekey_guard__"
"""The attribute that bears the mark."""
_STANDS: Final = "__samekey_stands_in__"
"""The attribute of a function that was put in the place of a route's own handler."""
_DEEPEST: Final = 8
"""Wrappers around wrappers that are looked through."""


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Who guards a handler, and how."""

    engine: Engine
    rules: Rules
    function: Any
    """The guarded function that it was put on."""


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
    if mark == "exempt":
        return "exempt"
    if not isinstance(mark, Mark):
        return None
    return mark if _leads_to(handler, mark.function, _DEEPEST) else None


def own_handler(handler: Any) -> Any:
    """A route's handler as its author wrote it, without what stands in its place."""
    while True:
        if isinstance(handler, partial):
            handler = handler.func
        elif stands_in(handler):
            handler = getattr(handler, _STANDS)[1]
        else:
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


def _leads_to(handler: Any, guarded: Any, depth: int) -> bool:
    """Whether a function is the guarded one, or has it in its hands: in its closure, as a global name that it
    uses, or as an attribute of the object that it is."""
    try:
        handler = own_handler(handler)
        function = getattr(handler, "__func__", handler)
        if function is guarded:
            return True
        if depth == 0 or getattr(function, GUARD, None) is not getattr(guarded, GUARD):
            return False
    except Exception:
        return False  # some other object, which does not want to be looked at
    return any(_leads_to(one, guarded, depth - 1) for one in _in_hands(handler, function))


def _in_hands(handler: Any, function: Any) -> Iterator[Any]:
    if not inspect.isfunction(function):
        # An object that is called, such as wrapt's: what it keeps, and what it says that it wraps.
        yield getattr(handler, "__wrapped__", None)
        yield from list(getattr(handler, "__dict__", {}).values())
        return
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    used = function.__code__.co_names
    for known in (function.__globals__[name] for name in used if name in function.__globals__):
        yield known
        if inspect.ismodule(known):
            yield from (getattr(known, name, None) for name in used)
