"""The router behind an ASGI middleware, of whichever framework it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.exchange import Framework
from . import litestar, starlette
from .guards import Found
from .starlette import Scope
from .wrapped import behind, is_litestar, routes_of


def router_behind(wrapped: Any) -> Any:
    """The router behind other middleware; None where there is none that is known."""
    return behind(wrapped, lambda app: is_litestar(app) or routes_of(app) is not None)


def find_route(scope: Scope, router: Any) -> Found:
    """Asks a router before it runs; where it is not known (None), the application of the scope."""
    return ways_of(router)[0](scope, router)


Ways = tuple[Callable[[Scope, Any], Found], Callable[[Scope, Any], Framework]]


def ways_of(router: Any) -> Ways:
    """How to ask a router for a route (``find_route``), and for the framework behind a middleware: the one
    whose router it asks."""
    if is_litestar(router):
        return litestar.find_route, lambda _scope, _router: litestar.framework_of()
    return starlette.find_route, starlette.framework_of
