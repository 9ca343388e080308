"""What the ASGI edge can learn from Starlette and FastAPI, without importing them first.

Everything here answers None where the application is of another kind; the edge works all the same.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

from ..core.record import Answer
from ..engine.exchange import Respond, raise_answered
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
        return _by_method(endpoint, scope["method"], template)
    return NO_ROUTE if _refuses(app) else None


def _by_method(endpoint: Any, method: str, template: str) -> Found:
    """A class-based endpoint is guarded method by method."""
    if not isinstance(endpoint, type):
        return Route(endpoint, template)
    handler = getattr(endpoint, method.lower(), None)
    if handler is None and hasattr(endpoint, "method_not_allowed"):
        return NO_ROUTE
    return Route(endpoint if handler is None else handler, template)


def _refuses(app: Any) -> bool:
    """Whether this router answers 404 where it has no route; a user may have put something else there."""
    router = getattr(app, "router", app)
    default = getattr(router, "default", None)
    return default is not None and default == getattr(router, "not_found", None)


def _flat(routes: Any) -> Any:
    """FastAPI keeps included routers as they are; it has a public function that looks through them."""
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if contexts is None else contexts(routes)


def make_response(scope: Scope) -> Respond:
    """How a decorated handler gives a decided answer to its framework."""
    starlette = sys.modules.get("starlette.responses")
    if starlette is None or "app" not in scope:
        return raise_answered

    def respond(answer: Answer) -> Any:
        response = starlette.Response(content=answer.body, status_code=answer.status)
        response.raw_headers = list(answer.headers)
        return response

    return respond
