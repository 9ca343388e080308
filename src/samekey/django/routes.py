"""Every view behind a URLconf: which function guards a method of it, and how a stand-in is put in its place.

A view that is a function is stood for in its URL pattern; one that is a class, method by method, so that
whatever its class does first (authentication, permissions, throttling) comes before the claim.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.contrib.admindocs.utils import (
    remove_non_capturing_groups,
    replace_metacharacters,
    replace_named_groups,
    replace_unnamed_groups,
)
from django.db import connections
from django.urls import URLPattern, URLResolver, get_resolver

from ..edges.bound import bound
from ..edges.calls import IN_TRANSACTION, guarded_call, meets_another, two_guards_of
from ..edges.guards import Route
from ..edges.walk import OTHERS, ReachedRoute, RoutePlace
from ..engine.engine import Engine
from ..engine.exchange import Exchange, current_exchange
from ..engine.handler.around import is_wrapped
from ..engine.handler.forms import in_form_of, value_of
from ..engine.handler.marks import Mark, mark_of, own_handler, put_in_place, stands_in
from .before import before_claim
from .framework import in_call

_PERFORMS: Final = {
    "create": "perform_create",
    "update": "perform_update",
    "partial_update": "perform_update",
    "destroy": "perform_destroy",
    "post": "perform_create",
    "put": "perform_update",
    "patch": "perform_update",
    "delete": "perform_destroy",
}
"""Where REST framework's generic views do what was asked for, once it has been found valid."""
_HARMLESS: Final = (
    "django.views.decorators.cache",
    "django.views.decorators.clickjacking",
    "django.views.decorators.common",
    "django.views.decorators.csrf",
    "django.views.decorators.debug",
    "django.views.decorators.http",
    "django.views.decorators.vary",
)
"""Decorators of Django's that neither know who asks nor act by themselves."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What runs for one method of a view."""

    function: Any
    """As its class or its pattern has it, perhaps a stand-in."""
    marked: Any
    """The function whose mark counts."""
    owner: type | None
    name: str

    @property
    def mark(self) -> Any:
        return mark_of(self.marked)

    @property
    def is_wrapped(self) -> bool:
        function = own_handler(self.function) if self.owner is not None else _behind_harmless(self.function)
        return is_wrapped(_of_api_view(function) or function)

    @property
    def in_class(self) -> bool:
        """Whether it is a method; the class that REST framework makes of a function is none of the user's."""
        return self.owner is not None and _of_api_view(own_handler(self.function)) is None

    def before_claim(self) -> list[str]:
        """What of the project's own runs before the guarded function, by name."""
        owner = self.owner
        if owner is None:
            inner = _behind_harmless(self.function)
            return [] if inner is getattr(self.mark, "function", inner) else ["a decorator of it"]
        names = ["dispatch", "setup", "initial", "initialize_request", "perform_authentication"]
        names += [self.name] if own_handler(self.function) is not own_handler(self.marked) else []
        found = [(name, own_handler(getattr(owner, name, None))) for name in names]
        return [f"{owner.__qualname__}.{name}" for name, one in found if one is not None and _is_own(one)]


def _is_own(function: Any) -> bool:
    return not str(getattr(function, "__module__", "")).startswith(("django.", "rest_framework."))


def handler_of(view: Any, method: str) -> Handler | None:
    """None where a class has nothing for the method: Django answers 405."""
    inner = own_handler(view)
    owner = getattr(inner, "cls", None) or getattr(inner, "view_class", None)
    if not isinstance(owner, type) or mark_of(inner) is not None:
        return Handler(view, inner, None, "")
    actions = getattr(inner, "actions", None)
    name = method.lower() if not actions else actions.get(method.lower(), "")
    function = getattr(owner, name, None) if name else None
    if function is None:
        return None
    marked = _of_api_view(own_handler(function)) or function
    performs = getattr(owner, _PERFORMS.get(name, ""), None)
    if mark_of(marked) is None and isinstance(mark_of(performs), Mark):
        marked = performs
    return Handler(function, marked, owner, name)


def methods_of(view: Any) -> set[str] | None:
    """The methods that a view takes; None where only its code knows."""
    inner = own_handler(view)
    owner: Any = getattr(inner, "cls", None) or getattr(inner, "view_class", None)
    if isinstance(owner, type):
        actions = getattr(inner, "actions", None)
        names = actions or [name for name in getattr(owner, "http_method_names", ()) if hasattr(owner, name)]
        return {name.upper() for name in names}
    while inner is not None:
        known = _closed_over(inner, "request_method_list")  # require_POST and its like
        if known is not None:
            return {str(name) for name in known}
        inner = getattr(inner, "__wrapped__", None)
    return None


def route_of(view: Any, method: str, template: str, pattern: URLPattern | None = None) -> Route | None:
    """A view that Django has found for a request, or that its URLconf has."""
    handler = handler_of(view, method)
    if handler is None:
        return None
    return Route(handler.marked, template, guard_handler=partial(_guard, view, handler, pattern))


def _guard(view: Any, handler: Handler, pattern: URLPattern | None, decorated: bool) -> bool:
    """Puts a stand-in around what runs; False where there is no place to put it."""
    if stands_in(handler.function) and (handler.owner is None or handler.name in vars(handler.owner)):
        return True  # what a class inherits stands for a method of another class, perhaps guarded otherwise
    mark = handler.mark
    stands = bound(
        own_handler(handler.function) if handler.owner is not None else handler.function,
        in_call,
        decorated=isinstance(mark, Mark),
        wrapped=handler.is_wrapped,
        mark=mark if isinstance(mark, Mark) else None,
    )
    if handler.owner is not None:
        setattr(handler.owner, handler.name, stands)
    elif pattern is not None:
        pattern.callback = stands
    else:
        return False
    return True


def patterns(resolver: Any, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Every pattern of a URLconf, after its template."""
    for entry in resolver.url_patterns:
        route = f"{prefix}{entry.pattern}"
        if isinstance(entry, URLResolver):
            yield from patterns(entry, route)
        else:
            yield template_of(route), entry


def template_of(route: str) -> str:
    """A route as people write it, and API pages do. Those of REST framework's routers are regular
    expressions: of these, the names of their groups."""
    if "^" in route or "$" in route or "(?P<" in route:
        for simpler in _SIMPLER:
            route = simpler(route)
    return f"/{route.removeprefix('/')}"


_SIMPLER: Final = (
    remove_non_capturing_groups,
    replace_named_groups,
    replace_unnamed_groups,
    replace_metacharacters,
)


@dataclass(frozen=True, slots=True)
class Urlconf:
    """The views of a URLconf, as an application that can be walked."""

    name: str | None = None
    guards: tuple[Any, ...] = ()

    def walk(self, place: RoutePlace, guarded: frozenset[str]) -> Iterator[ReachedRoute]:
        for template, pattern in patterns(get_resolver(self.name)):
            for method in sorted(methods_of(pattern.callback) or guarded):
                handler = handler_of(pattern.callback, method)
                if handler is not None:
                    yield ReachedRoute(
                        method,
                        f"{place.prefix}{template}",
                        handler.marked,
                        (*place.guards, *self.guards),
                        None,
                        guard_handler=partial(_guard, pattern.callback, handler, pattern),
                        route=pattern,
                        wrapped=handler.is_wrapped,
                        in_class=handler.in_class,
                    )


def two_guards(
    urlconf: str | None, engine: Engine, said: Any, exempt: Collection[str]
) -> Iterator[tuple[tuple[type, str], str]]:
    """Undecorated methods, by class and name, that lead to a guarded one, with a sentence. ``said``: what
    becomes of undecorated views."""
    for template, pattern in patterns(get_resolver(urlconf)):
        for method in sorted((methods_of(pattern.callback) or set()) & engine.policy.methods):
            handler = handler_of(pattern.callback, method)
            if handler is None or handler.owner is None or handler.mark is not None or template in exempt:
                continue
            found = guarded_call(handler.owner, handler.name)
            if found is None:
                continue
            if meets_another(found, said):
                by = f"{handler.owner.__qualname__}.{handler.name}"
                yield (handler.owner, handler.name), two_guards_of(f"{method} {template}", by, found)


def stand_in_transactions(urlconf: str | None, alias: str | None) -> None:
    """Views whose transaction is samekey's are not wrapped into another one by ``ATOMIC_REQUESTS``: that
    would commit after ours, or roll ours back."""
    if alias is None:
        return
    wraps = bool(connections.settings[alias]["ATOMIC_REQUESTS"])
    for _, pattern in patterns(get_resolver(urlconf)):
        known: Any = getattr(pattern.callback, "_non_atomic_requests", frozenset())
        if isinstance(known, _NotAtomic):
            continue
        ours = _NotAtomic(pattern.callback, alias, known)
        if wraps and alias not in known:
            pattern.callback = _watched(pattern.callback, ours)
        pattern.callback._non_atomic_requests = ours


def _watched(view: Any, ours: _NotAtomic) -> Any:
    """A view that is given no transaction writes nothing before it has samekey's."""

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with ours.before_claim():
            return await value_of(view(*args, **kwargs))

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        with ours.before_claim():
            return view(*args, **kwargs)

    return put_in_place(in_form_of(view, run_async, run_sync), view)


class _NotAtomic(set[str]):
    """The aliases for which a view is not wrapped; ours where the method of this request has its own."""

    def __init__(self, view: Any, alias: str, known: Any) -> None:
        super().__init__(known)
        self._view = view
        self._alias = alias

    def __contains__(self, alias: object) -> bool:
        return super().__contains__(alias) or (alias == self._alias and self._ours() is not None)

    def before_claim(self) -> AbstractContextManager[None]:
        """Around the view."""
        exchange = self._ours()
        return nullcontext() if exchange is None else before_claim(self._alias, exchange)

    def _ours(self) -> Exchange | None:
        """The request, where its method has a transaction of samekey's."""
        exchange = current_exchange.get()
        if not isinstance(exchange, Exchange):
            return None
        handler = handler_of(self._view, exchange.parts.method)
        mark = None if handler is None else handler.mark
        return exchange if isinstance(mark, Mark) and mark.rules.mode in IN_TRANSACTION else None


def _of_api_view(function: Any) -> Any:
    """The function that ``@api_view`` was put on; it does not say so itself."""
    if getattr(function, "__qualname__", "") != "api_view.<locals>.decorator.<locals>.handler":
        return None
    return _closed_over(function, "func")


def _behind_harmless(view: Any) -> Any:
    view = own_handler(view)
    while True:
        inner = getattr(view, "__wrapped__", None)
        if inner is None or getattr(view, "__globals__", {}).get("__name__") not in _HARMLESS:
            return view
        view = inner


def _closed_over(function: Any, name: str) -> Any:
    if not inspect.isfunction(function):
        return None
    found = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)).get(name)
    return None if found is None else found.cell_contents


def _walk(app: Any, place: RoutePlace) -> Iterator[ReachedRoute] | None:
    """For ``edges/walk.py``: a URLconf, or the application that ``get_wsgi_application()`` gives."""
    if isinstance(app, Urlconf):
        return app.walk(place, _guarded_methods(app.guards))
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(app).__mro__)
    if "django.core.handlers.base.BaseHandler" not in kinds:
        return None
    from .middleware import around

    guards = tuple(around(app))
    return Urlconf(None, guards).walk(place, _guarded_methods(guards))


def _guarded_methods(guards: tuple[Any, ...]) -> frozenset[str]:
    return frozenset({"POST", "PATCH"}).union(*(guard.policy.methods for guard in guards))


OTHERS.append(_walk)
