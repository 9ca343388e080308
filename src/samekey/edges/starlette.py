"""What the ASGI edge can learn from Starlette and FastAPI, without importing them first.

Everything here answers None where the application is of another kind; the edge works all the same.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from ..core.record import Answer
from ..engine.decorate import at_handler
from ..engine.exchange import UNKNOWN_FRAMEWORK, Framework
from .guards import NO_ROUTE, Found, Route

Scope = MutableMapping[str, Any]

_DEEPEST = 64
"""Middleware in middleware; a chain that is longer than this goes round in circles."""


def find_route(scope: Scope, wrapped: Any = None) -> Found:
    """Asks the router before it runs: the one behind ``wrapped``, else the application of the scope."""
    router = wrapped
    for _ in range(_DEEPEST):
        if router is None or hasattr(router, "routes"):
            break
        router = getattr(router, "app", None)
    routes = getattr(router, "routes", None)
    if routes is not None:
        return _match(router, routes, dict(scope), "")
    app = scope.get("app")
    routes = getattr(app, "routes", None)
    if routes is None:
        return None
    found = _match(app, routes, dict(scope), "")
    # That may be an application further out, whose router does not know what is mounted here.
    return None if found is NO_ROUTE else found


def _match(app: Any, routes: Any, scope: dict[str, Any], prefix: str) -> Found:
    for route in _flat(routes):
        matches = getattr(route, "matches", None)
        if matches is None:
            return None  # not a router that we know
        match, child = matches(scope)
        if match.name != "FULL":
            continue
        template = f"{prefix}{getattr(route, 'path', '')}"
        inner = getattr(route, "routes", None)
        if inner:
            return _match(getattr(route, "app", None), inner, {**scope, **child}, template)
        endpoint = child.get("endpoint", getattr(route, "endpoint", None))
        if getattr(route, "endpoint", None) is None:
            return Route(endpoint, scope.get("path", ""), opaque=True)
        return _by_method(route, endpoint, scope["method"], template)
    return NO_ROUTE if _refuses(app) else None


def _by_method(route: Any, endpoint: Any, method: str, template: str) -> Found:
    """A class-based endpoint is guarded method by method."""
    if not isinstance(endpoint, type):
        return Route(endpoint, template, guard_handler=partial(_guard_handler, route))
    handler = getattr(endpoint, method.lower(), None)
    if handler is None and hasattr(endpoint, "method_not_allowed"):
        return NO_ROUTE
    if handler is None:
        return Route(endpoint, template)
    return Route(handler, template, guard_handler=partial(_guard_method, endpoint, method.lower()))


_GUARDED = "__samekey_undecorated__"
"""The attribute that marks a handler that was made to claim for itself."""


def _guard_handler(route: Any) -> bool:
    """Puts the guard around the function that a route calls, below its dependencies and its middleware."""
    route = getattr(route, "starlette_route", None) or route
    dependant = getattr(route, "dependant", None)
    if dependant is not None:  # FastAPI asks for the function anew at each request
        return _replace(dependant, "call", at_handler)
    original = getattr(route, "original_route", route)
    routing = sys.modules.get("starlette.routing")
    if routing is None or not inspect.isroutine(_unwrapped(original.endpoint)):
        return False
    # What calls the function is the innermost application of the route.
    holder, inner = original, original.app
    for _ in range(_DEEPEST):
        if not hasattr(inner, "app"):
            break
        holder, inner = inner, inner.app
    if getattr(inner, _GUARDED, False):
        return True
    if not inspect.isfunction(inner) or inner.__module__ != routing.__name__:
        return False
    holder.app = routing.request_response(at_handler(original.endpoint))
    setattr(holder.app, _GUARDED, True)
    return True


def _guard_method(endpoint: type, name: str) -> bool:
    return _replace(endpoint, name, at_handler)


def _replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> bool:
    handler = getattr(holder, name)
    if getattr(handler, _GUARDED, False):
        return True
    function = _unwrapped(handler)
    if not inspect.isroutine(function) or inspect.isgeneratorfunction(function):
        return False
    if inspect.isasyncgenfunction(function):
        return False
    guarded = wrap(handler)
    setattr(guarded, _GUARDED, True)
    setattr(holder, name, guarded)
    return True


def _unwrapped(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _refuses(app: Any) -> bool:
    """Whether this router answers 404 where it has no route; a user may have put something else there."""
    router = getattr(app, "router", app)
    default = getattr(router, "default", None)
    return default is not None and default == getattr(router, "not_found", None)


def _flat(routes: Any) -> Any:
    """FastAPI keeps included routers as they are; it has a public function that looks through them."""
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if contexts is None else contexts(routes)


class StarletteFramework(Framework):
    """Starlette and FastAPI."""

    def __init__(self, responses: Any, exceptions: Any) -> None:
        self._response = responses.Response
        self._exception = exceptions.HTTPException

    def respond(self, answer: Answer) -> Any:
        response = self._response(content=answer.body, status_code=answer.status)
        response.raw_headers = list(answer.headers)
        return response

    def own_status(self, value: Any, arguments: Mapping[str, Any]) -> int | None:
        if isinstance(value, self._response):
            return int(value.status_code)
        for argument in arguments.values():
            # FastAPI lets a handler set the status on a response that it asked for.
            if isinstance(argument, self._response) and argument.status_code is not None:
                return int(argument.status_code)
        return None

    def refusal(self, error: BaseException) -> int | None:
        return int(error.status_code) if isinstance(error, self._exception) else None


def framework_of(scope: Scope) -> Framework:
    """The framework behind an ASGI scope."""
    responses, exceptions = (sys.modules.get(f"starlette.{name}") for name in ("responses", "exceptions"))
    if responses is None or exceptions is None or "app" not in scope:
        return UNKNOWN_FRAMEWORK
    return StarletteFramework(responses, exceptions)
