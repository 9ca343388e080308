"""What the ASGI edge can learn from Starlette and FastAPI, without importing them first.

Everything here answers None where the application is of another kind; the edge works all the same.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from ..core.record import Answer, Headers
from ..engine.decorate import at_handler
from ..engine.exchange import UNKNOWN_FRAMEWORK, Framework
from .guards import NO_ROUTE, Found, Route

Scope = MutableMapping[str, Any]

_DEEPEST = 64
"""Middleware in middleware; a chain that is longer than this goes round in circles."""


def find_route(scope: Scope, wrapped: Any = None) -> Found:
    """Asks the router before it runs: the one behind ``wrapped``, else the application of the scope."""
    router = _router(wrapped)
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


def _router(wrapped: Any) -> Any:
    """The router behind other middleware, which keeps what it wraps as ``app``."""
    router = wrapped
    for _ in range(_DEEPEST):
        if router is None or hasattr(router, "routes"):
            return router
        router = getattr(router, "app", None)
    return None


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
    endpoints = sys.modules.get("starlette.endpoints")
    if endpoints is None or getattr(endpoint, "dispatch", None) is not endpoints.HTTPEndpoint.dispatch:
        return Route(endpoint if handler is None else handler, template)  # it may call whatever it wants
    if handler is None:
        return NO_ROUTE
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
    endpoint = original.endpoint
    if routing is None or not inspect.isroutine(_unwrapped(endpoint)):
        return False
    # Starlette's own closure calls the function; whatever stands around it stays as it is.
    inner = original.app
    for _ in range(_DEEPEST):
        if not hasattr(inner, "app"):
            break
        inner = inner.app
    return _replace_called(inner, endpoint, routing)


def _replace_called(app: Any, endpoint: Any, routing: Any) -> bool:
    """Guards the function that an application of Starlette's ``request_response`` calls; False unless it is
    certain that this is one, and that it calls this function itself."""
    if not inspect.isfunction(app) or app.__code__ is not routing.request_response(_guard_handler).__code__:
        return False
    for cell in app.__closure__ or ():
        called = cell.cell_contents
        if getattr(called, _GUARDED, None) is endpoint:
            return True
        in_thread = isinstance(called, partial) and called.args[:1] == (endpoint,)
        if called is endpoint or in_thread:
            guarded: Any = at_handler(endpoint)
            if in_thread:
                guarded = partial(called.func, guarded)
            setattr(guarded, _GUARDED, endpoint)
            cell.cell_contents = guarded
            return True
    return False


def _guard_method(endpoint: type, name: str) -> bool:
    return _replace(endpoint, name, at_handler)


def _replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> bool:
    handler = getattr(holder, name)
    if getattr(handler, _GUARDED, None) is not None:
        return True
    function = _unwrapped(handler)
    if not inspect.isroutine(function) or inspect.isgeneratorfunction(function):
        return False
    if inspect.isasyncgenfunction(function):
        return False
    guarded = wrap(handler)
    setattr(guarded, _GUARDED, handler)
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
        response.raw_headers = lower_case(answer.headers)
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


def framework_of(scope: Scope, wrapped: Any) -> Framework:
    """The framework behind a middleware: the one whose router it asks."""
    responses, exceptions = (sys.modules.get(f"starlette.{name}") for name in ("responses", "exceptions"))
    if responses is None or exceptions is None or ("app" not in scope and _router(wrapped) is None):
        return UNKNOWN_FRAMEWORK
    return StarletteFramework(responses, exceptions)


def lower_case(headers: Headers) -> list[tuple[bytes, bytes]]:
    """As the ASGI specification has the names of headers: middleware further out compares them so."""
    return [(name.lower(), value) for name, value in headers]
