"""The router behind an ASGI middleware, of whichever framework it is."""

from __future__ import annotations

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
    if is_litestar(router):
        return litestar.find_route(scope, router)
    return starlette.find_route(scope, router)


def framework_of(scope: Scope, router: Any) -> Framework:
    """The framework behind a middleware: the one whose router it asks."""
    return litestar.framework_of() if is_litestar(router) else starlette.framework_of(scope, router)
