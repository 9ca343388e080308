"""What the ASGI edge can learn from Starlette and FastAPI, without importing them first.

Everything here answers None where the application is of another kind; the edge works all the same.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

from ..core.record import Answer
from ..engine.exchange import Respond, raise_answered
from .guards import Route

Scope = MutableMapping[str, Any]


def find_route(scope: Scope) -> Route | None:
    """Asks the router before it runs. None if there is no such route, or no router that we know."""
    routes = getattr(scope.get("app"), "routes", None)
    return None if routes is None else _match(routes, dict(scope), "")


def _match(routes: Any, scope: dict[str, Any], prefix: str) -> Route | None:
    for route in _flat(routes):
        matches = getattr(route, "matches", None)
        if matches is None:
            continue
        match, child = matches(scope)
        if match.name != "FULL":
            continue
        template = f"{prefix}{getattr(route, 'path', '')}"
        inner = getattr(route, "routes", None)
        if inner:
            return _match(inner, {**scope, **child}, template)
        endpoint = child.get("endpoint", getattr(route, "endpoint", None))
        if isinstance(endpoint, type):
            # A class-based endpoint is guarded method by method.
            endpoint = getattr(endpoint, scope["method"].lower(), endpoint)
        return Route(endpoint, template)
    return None


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
