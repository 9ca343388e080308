"""Applications that cannot be looked into, with decorated functions that may be behind them.

The middleware does not know then where they are, and would claim for the whole application before it runs:
two guards for one request. Which of them it shall be, only the user knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from ..core.states import Mode
from ..engine.engine import Engine
from ..engine.handler.marks import Mark, mark_of
from .guards import Undecorated
from .walk import ReachedRoute

_PARTS: Final = (Mode.LEASED, Mode.REPEATABLE)
"""Modes of functions that may run as a part of what is guarded as a whole."""
_NAMED: Final = 3
_FRAMEWORKS: Final = frozenset({"starlette", "fastapi", "flask"})
_APPLICATIONS: Final = frozenset({("starlette", "Starlette"), ("starlette", "Router"), ("flask", "Flask")})


def two_guards(reached: Sequence[ReachedRoute], engine: Engine, said: Undecorated | None) -> Iterator[str]:
    """What is to be said where a decorated function may be behind something that hides it."""
    methods = engine.policy.methods
    opaque = [one for one in reached if one.opaque and one.method in methods]
    hiding = [one for one in opaque if mark_of(one.handler) is None and not _is_one_route(one.handler)]
    if not hiding or said == "pass":
        return
    seen = {mark_of(one.handler) for one in reached}
    unseen = [mark for mark in engine.marks if mark not in seen]
    if said == "guard":
        # Only where nothing at all is seen is it certain that they are behind it.
        wrong = [one for one in unseen if one.rules.mode not in _PARTS]
        unseen, remedy = wrong if all(one.opaque for one in reached) else [], _ONLY_LEASED
    else:
        remedy = _CHOOSE
    if unseen:
        path = min(one.path for one in hiding)
        yield (
            f"{path} leads to {_name(hiding[0])}, which cannot be looked into, and {_names(unseen)} may be "
            f"behind it: decorated, and on no route that can be seen. {remedy} Or let it be seen: what keeps "
            "the application that it wraps in an attribute `app` hides nothing."
        )
    elif said is None and any(_holds_an_application(one.handler) for one in hiding):
        known = next(one for one in hiding if _holds_an_application(one.handler))
        yield (
            f"{known.path} leads to {_name(known)}, a function that cannot be looked into, with an "
            "application of Starlette, FastAPI or Flask behind it: keys would be decided before anything "
            f"inside has authenticated. {_CHOOSE} Or let it be seen: what keeps the application that it "
            "wraps in an attribute `app` hides nothing."
        )


_CHOOSE: Final = (
    'Two guards would meet there; say which it shall be. undecorated="pass": only decorated functions are '
    'guarded, and each decides about a missing key (it runs, or 400). undecorated="guard": the middleware '
    "claims for the whole application before it runs, and leased functions inside are parts of that."
)
_ONLY_LEASED: Final = (
    'undecorated="guard" claims for the whole application, and only leased functions can be parts of that. '
    'Set undecorated="pass": each decorated function claims for itself; the application itself may be one.'
)


def _holds_an_application(function: Any) -> bool:
    """Whether it is a function with an application of a known framework in its hands."""
    if not inspect.isfunction(function) or function.__module__.split(".")[0] in _FRAMEWORKS:
        return False
    held = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    held += [function.__globals__.get(name) for name in function.__code__.co_names]
    kinds = {(kind.__module__.split(".")[0], kind.__name__) for one in held for kind in type(one).__mro__}
    return not kinds.isdisjoint(_APPLICATIONS)


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for its error
    except ValueError:
        return True
    return False


def _is_one_route(app: Any) -> bool:
    """Whether it is what Starlette puts around the handler of one route, and that handler is undecorated:
    such a route may have our middleware for itself."""
    if not inspect.isfunction(app) or app.__module__ != "starlette.routing":
        return False
    held = [cell.cell_contents for cell in app.__closure__ or ()]
    held += [one for each in held if isinstance(each, partial) for one in each.args]  # in a thread
    ours = [one for one in held if callable(one) and not isinstance(one, partial)]
    known = all(str(getattr(one, "__module__", "")).split(".")[0] != "fastapi" for one in ours)
    return known and not any(isinstance(mark_of(one), Mark) for one in ours)


def _name(one: ReachedRoute) -> str:
    return str(getattr(one.handler, "__qualname__", type(one.handler).__qualname__))


def _names(marks: Sequence[Mark]) -> str:
    names = sorted({str(getattr(mark.function, "__qualname__", mark.function)) for mark in marks})
    more = f" (and {len(names) - _NAMED} more)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
