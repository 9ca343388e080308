"""samekey in FastAPI: the middleware with the API page, and routes that are guarded by their class.

    app = FastAPI()
    install(app, idempotency, tenant=by_state("account"))

    orders = APIRouter(route_class=guarded(idempotency, "atomic"))

    @orders.post("/orders", status_code=201)
    async def create_order(order: Order) -> Order: ...

A handler claims after its dependencies and the validation of what it is given. A decorator above the function
(``@idempotency.atomic``) does the same for one handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.routing import APIRoute

from .core.outcome import OnError
from .edges.asgi import AsgiMiddleware
from .edges.guards import Decorators, RouteGuard
from .engine.handler.marks import mark_of
from .errors import ConfigurationError
from .idempotency import Idempotency
from .openapi import describe
from .tenants import Tenant

__all__ = ["guarded", "install"]

_MODES = ("atomic", "leased", "deferred")


def install(
    app: FastAPI,
    idempotency: Idempotency,
    *,
    tenant: Tenant,
    routes: dict[str, RouteGuard] | None = None,
    undecorated: Literal["guard", "pass"] | None = None,
    on_error: OnError = "unknown",
    binding: Tenant | None = None,
    decorators: Decorators = "refuse",
) -> None:
    """Guards an application, and has its API page say so. The options are those of
    ``samekey.asgi.IdempotencyMiddleware``."""
    if not isinstance(app, FastAPI):
        raise ConfigurationError(f"install takes a FastAPI application, not a {type(app).__name__}.")
    app.add_middleware(
        AsgiMiddleware,
        idempotency=idempotency,
        tenant=tenant,
        routes=routes,
        undecorated=undecorated,
        on_error=on_error,
        binding=binding,
        decorators=decorators,
    )
    if app.openapi_url is not None:
        describe(app, idempotency)


def guarded(
    idempotency: Idempotency, mode: Literal["atomic", "leased", "deferred"] = "leased", **options: Any
) -> type[APIRoute]:
    """A class of routes for ``APIRouter(route_class=…)``: whatever is routed by a guarded method is guarded
    in this mode, with these options of its decorator. A handler with a decorator of samekey's keeps that."""
    if mode not in _MODES:
        raise ConfigurationError(
            f"Routes can be guarded as {', '.join(_MODES)}, not {mode!r}. A phased handler has a name of its "
            "own: decorate it, @idempotency.phased(…)."
        )
    guards: Callable[[Any], Any] = getattr(idempotency, mode)(**options)
    methods = idempotency.engine.policy.methods

    class GuardedRoute(APIRoute):
        def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
            wanted = {str(method).upper() for method in given.get("methods") or ("GET",)}
            if wanted & methods and mark_of(endpoint) is None:
                if wanted - methods - {"HEAD", "GET", "OPTIONS"}:
                    raise ConfigurationError(
                        f"{path} is routed by {', '.join(sorted(wanted))}, and not all of these are guarded "
                        f"({', '.join(sorted(methods))} are). Give each its own route."
                    )
                endpoint = guards(endpoint)
            super().__init__(path, endpoint, **given)

    return GuardedRoute
