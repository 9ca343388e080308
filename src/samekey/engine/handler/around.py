"""Whether a handler is a function of its own, or something around others.

What stands around a function may authenticate, act, try again, or answer in its place, and nobody can see
which of these. So an undecorated route with such a handler is refused, or guarded around all of it.
"""

from __future__ import annotations

import inspect
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from .hands import closed_over, kept_by
from .marks import own_handler, stood_for

REFUSED: Final = (
    "the handler has decorators of its own, or holds a function that it calls, and it cannot be seen whether "
    "they authenticate the caller, act by themselves or call it again. Put @idempotency.leased (atomic …) "
    "directly above the function, below its other decorators, so that they run first, at every retry; or "
    'declare the route exempt; or give the middleware decorators="around", if a replay need not run them.'
)


def is_wrapped(handler: Any) -> bool:
    """Whether others stand around the function of a handler, or may: a partial or an object is the handler
    itself only if it holds nothing but values.

    A decorator without ``functools.wraps`` that keeps its own name cannot be told from a handler.
    """
    handler = stood_for(handler)
    if type(handler) is partial:
        given = (*handler.args, *handler.keywords.values())
        return not all(map(_is_value, given)) or is_wrapped(handler.func)
    if isinstance(handler, staticmethod | classmethod):
        return is_wrapped(handler.__func__)
    inner = getattr(handler, "__wrapped__", None)
    if inner is not None:
        return not _only_observes(handler) or is_wrapped(inner)
    if isinstance(handler, MethodType):
        return inspect.isroutine(handler.__self__) or is_wrapped(handler.__func__)
    if isinstance(handler, FunctionType):
        return _was_renamed(handler)
    if inspect.isroutine(handler) or isinstance(handler, type):
        return False
    own = all(map(_is_value, kept_by(handler))) and all(map(_wrote_all, type(handler).__mro__[:-1]))
    return not own or is_wrapped(getattr(type(handler), "__call__", None))  # noqa: B004


OBSERVERS: Final = frozenset(
    {
        "ddtrace",
        "elasticapm",
        "logfire",
        "newrelic",
        "opentelemetry",
        "prometheus_client",
        "scout_apm",
        "sentry_sdk",
    }
)
"""Packages whose wrappers measure and trace: they call the function once, and its end is theirs. They are
often switched on in production alone, where nobody has written a decorator that could be moved."""


def _only_observes(wrapper: Any) -> bool:
    """Whether what stands around a function is a tool of one of these packages."""
    wrapper = getattr(wrapper, "__func__", wrapper)
    by: tuple[Any, ...]
    if type(wrapper) is not FunctionType:  # a proxy, as wrapt makes them
        by = (type(wrapper), getattr(wrapper, "_self_wrapper", None))
    elif wrapper.__globals__.get("__name__") == "contextlib":
        inner = getattr(wrapper, "__wrapped__", None)
        by = tuple(one for one in closed_over(wrapper) if one is not inner)
    else:
        by = (wrapper, wrapper.__globals__.get("_call_"))  # as the decorator package writes it
    return any(_written_in(one) in OBSERVERS for one in by)


def _written_in(one: Any) -> str:
    """The package that the code of a function, a class or an object is from; functools.wraps says another."""
    function = getattr(one, "__func__", one)
    if type(function) is FunctionType:
        module = function.__globals__.get("__name__")
    else:
        module = (one if isinstance(one, type) else type(one)).__module__
    return str(module).partition(".")[0]


def _is_value(one: Any, depth: int = 8) -> bool:
    """Whether it is nothing but data, so that nothing is called by it."""
    if isinstance(one, dict):
        one = (*one, *one.values())
    if isinstance(one, list | tuple | set | frozenset):
        return depth > 0 and all(_is_value(each, depth - 1) for each in one)
    if callable(one) and not isinstance(one, type):
        return False
    return isinstance(one, type | Enum) or type(one).__module__ in _DATA


_DATA: Final = frozenset(
    {"builtins", "datetime", "decimal", "fractions", "uuid", "pathlib", "re", "ipaddress"}
)
"""Modules whose objects are values."""


def _wrote_all(kind: type) -> bool:
    """Whether what a class has, it has of its own: its methods, and values."""
    inside = f"{kind.__qualname__}."
    for name, one in vars(kind).items():
        function = getattr(one, "__func__", None) or getattr(one, "fget", None) or one
        if callable(function) and not isinstance(function, type):
            if not getattr(function, "__qualname__", "").startswith(inside):
                return False
        elif not (name.startswith("__") or inspect.isdatadescriptor(one) or _is_value(one)):
            return False
    return True


def _was_renamed(function: FunctionType) -> bool:
    """As a decorator does without ``functools.wraps``: it has another name than it was written with, and
    holds a function."""
    held = (own_handler(one) for one in closed_over(function) if one is not function)
    return function.__name__ != function.__code__.co_name and any(map(inspect.isroutine, held))
