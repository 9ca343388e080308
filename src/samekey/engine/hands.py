"""What a function has in its hands: what it can call without being given it.

Decorators keep the function that they wrap: in a closure, in a list, as an attribute of an object. It is
looked for in all of these, a few steps deep, and nothing is called.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

_DEEPEST: Final = 8
"""Steps from a function to what it holds. Further away, everything holds everything."""
_MOST: Final = 2000
"""Things that are looked into."""

_OPEN: Final = (FunctionType, partial, list, dict, tuple)
"""What a global name may stand for that is looked into."""

Put = Callable[[Any], None]
Held = tuple[Any, Put | None]
"""Something that is held, and what puts something else in its place, where that can be done."""


def holds(holder: Any, is_it: Callable[[Any], bool]) -> Iterator[Put | None]:
    """Every place where a function holds what is looked for, as what puts something else there; None where
    nothing can be put."""
    waiting: deque[tuple[Any, int, bool]] = deque([(holder, 0, False)])
    seen = {id(holder)}
    for _ in range(_MOST):
        if not waiting:
            return
        one, depth, in_object = waiting.popleft()
        for held, put in _held_by(one):
            if _safely(is_it, held):
                yield put
            elif id(held) not in seen and depth < _DEEPEST and not (in_object and _is_object(held)):
                # An object's own attributes, and no further: an application is an object, too.
                seen.add(id(held))
                waiting.append((held, depth + 1, in_object or _is_object(held)))
        if is_function(one):
            for named in _named_in(one):
                if _safely(is_it, named):
                    yield None
                elif depth == 0 and isinstance(named, _OPEN) and id(named) not in seen:
                    seen.add(id(named))
                    waiting.append((named, 1, in_object))


def _safely(is_it: Callable[[Any], bool], held: Any) -> bool:
    try:
        return is_it(held)
    except Exception:
        return False  # an object that does not want to be looked at


def is_function(one: Any) -> bool:
    """Written with def or lambda. A proxy may say so of itself, and has other things in its hands."""
    return type(one) is FunctionType


def _is_object(one: Any) -> bool:
    """Of a class of its own, and none of the things that functions are kept in."""
    return not isinstance(one, partial | MethodType | list | tuple | dict) and not is_function(one)


def _held_by(one: Any) -> Iterator[Held]:
    if is_function(one):
        for cell in one.__closure__ or ():
            try:
                yield cell.cell_contents, partial(setattr, cell, "cell_contents")
            except ValueError:  # not filled yet
                continue
        yield from (
            (held, None) for held in (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
        )
    elif isinstance(one, partial):
        yield from ((held, None) for held in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, MethodType):
        yield from ((held, None) for held in (one.__func__, one.__self__))
    elif isinstance(one, list):
        yield from ((held, partial(one.__setitem__, place)) for place, held in enumerate(list(one)))
    elif isinstance(one, dict):
        yield from ((held, partial(one.__setitem__, name)) for name, held in list(one.items()))
    elif isinstance(one, tuple):
        yield from ((held, None) for held in one)
    elif not isinstance(one, type) and not inspect.ismodule(one):
        yield from _of_object(one)


def _of_object(one: Any) -> Iterator[Held]:
    kind = type(one)
    yield getattr(kind, "__call__", None), None  # noqa: B004 - what is called, not whether it can be
    if hasattr(kind, "__wrapped__"):  # a proxy such as wrapt's, which calls what it wraps
        yield getattr(one, "__wrapped__", None), partial(setattr, one, "__wrapped__")
        return
    kept = getattr(one, "__dict__", None)
    if isinstance(kept, dict):
        # What functools.wraps has noted is a word; what it calls is held under another name.
        names = [name for name in list(kept) if name != "__wrapped__"]
        yield from ((kept[name], partial(kept.__setitem__, name)) for name in names)


def _named_in(function: Any) -> Iterator[Any]:
    """What the global names that a function uses stand for, and what it may take from modules."""
    used, known = function.__code__.co_names, function.__globals__
    for named in (known[name] for name in used if name in known):
        yield named
        if inspect.ismodule(named):
            yield from (vars(named)[name] for name in used if name in vars(named))
