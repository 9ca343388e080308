"""What a function has in its hands: what it can call without being given it.

Decorators keep the function that they wrap: in a closure, in a list, as an attribute of an object. It is
looked for in all of these, a few steps deep, and nothing is called.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, Final

_DEEPEST: Final = 8
"""Steps from a function to what it holds. Further away, everything holds everything."""
_MOST: Final = 2000
"""Things that are looked at, and as many of any one list."""


def holds(holder: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether a function holds what is looked for."""
    waiting: deque[tuple[Any, int, bool]] = deque([(holder, 0, False)])
    seen = {id(holder)}
    while waiting and len(seen) < _MOST:
        one, depth, in_object = waiting.popleft()
        for held in islice(in_hands(one), _MOST):
            if _safely(is_it, held):
                return True
            if id(held) not in seen and depth < _DEEPEST and not (in_object and _is_object(held)):
                # An object's own attributes, and no further: an application is an object, too.
                seen.add(id(held))
                waiting.append((held, depth + 1, in_object or _is_object(held)))
        for named in _named_in(one) if type(one) is FunctionType else ():
            if _safely(is_it, named):
                return True
            if depth == 0 and isinstance(named, _OPEN) and id(named) not in seen:
                seen.add(id(named))
                waiting.append((named, 1, in_object))
    return False


_OPEN: Final = (FunctionType, partial, list, dict, tuple)
"""What a global name may stand for that is looked into."""


def _safely(is_it: Callable[[Any], bool], held: Any) -> bool:
    try:
        return is_it(held)
    except Exception:
        return False  # an object that does not want to be looked at


def _is_object(one: Any) -> bool:
    """Of a class of its own, and none of the things that functions are kept in."""
    return not isinstance(one, partial | MethodType | list | tuple | dict) and type(one) is not FunctionType


def in_hands(one: Any) -> Iterator[Any]:
    """What a function, an object or a container holds itself."""
    if type(one) is FunctionType:
        yield from closed_over(one)
        yield from (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
    elif isinstance(one, partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, MethodType):
        yield from (one.__func__, one.__self__)
    elif isinstance(one, list | tuple | set | frozenset):
        yield from list(islice(one, _MOST))
    elif isinstance(one, dict):
        yield from list(islice(one.values(), _MOST))
    elif not isinstance(one, type) and not inspect.ismodule(one):
        yield getattr(type(one), "__call__", None)  # noqa: B004 - what is called, not whether it can be
        yield from kept_by(one)


def closed_over(function: Any) -> Iterator[Any]:
    """What stands in the closure of a function."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def kept_by(one: Any) -> Iterator[Any]:
    """What an object keeps in its attributes. What functools.wraps has noted is a word; what it calls is held
    under another name, except for a proxy such as wrapt's."""
    if hasattr(type(one), "__wrapped__"):
        yield getattr(one, "__wrapped__", None)
        return
    kept = getattr(one, "__dict__", None)
    if isinstance(kept, dict):
        yield from (value for name, value in list(kept.items()) if name != "__wrapped__")
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__"):
                yield getattr(one, name, None)


def _named_in(function: Any) -> Iterator[Any]:
    """What the global names that a function uses stand for, and what it may take from modules."""
    used, known = function.__code__.co_names, function.__globals__
    for named in (known[name] for name in used if name in known):
        yield named
        if inspect.ismodule(named):
            yield from (vars(named)[name] for name in used if name in vars(named))
