"""samekey in FastAPI: the middleware with the API page, and three ways to guard a handler.

    app = FastAPI()
    install(app, idempotency, tenant=by_state("account"), authentication=[Depends(account)])

    @app.post("/orders", status_code=201)
    @idempotency.atomic                                                # a decorator
    async def create_order(order: Order) -> Order: ...

    Atomic = Annotated[Operation, Depends(operation(idempotency, "atomic"))]

    @app.post("/orders", status_code=201)                              # a dependency
    async def create_order(order: Order, atomic: Atomic) -> Order: ...

    orders = APIRouter(route_class=guarded(idempotency, "atomic"))     # all routes of a router

In each of them the handler claims after all dependencies and the validation of what it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Unpack, cast

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute

from .core.record import Answer
from .edges.asgi import AsgiMiddleware
from .edges.dependencies import Later, declare
from .edges.guards import GuardOptions, checked_options
from .edges.messages import Receive, Scope, Send, send_answer
from .engine.exchange import SEEN, Exchange
from .engine.handler.marks import Mark, mark_of
from .engine.operation import Operation
from .errors import ConfigurationError
from .idempotency import Idempotency
from .openapi import describe

__all__ = ["guarded", "install", "operation"]

logger = logging.getLogger("samekey")

_MODES = ("atomic", "leased", "deferred")
_Mode = Literal["atomic", "leased", "deferred"]
_STATUS = "samekey.status"
"""The key in the scope under which a request for an operation's status carries what answers it."""


def install(
    app: FastAPI,
    idempotency: Idempotency,
    *,
    authentication: Sequence[Depends] = (),
    **options: Unpack[GuardOptions],
) -> None:
    """Guards an application, and has its API page say so. The options are those of
    ``samekey.asgi.IdempotencyMiddleware``.

    ``authentication``: dependencies that find out who asks for the status of an operation, as those of your
    handlers do: ``[Depends(account)]``. Not needed where a middleware does, or the application's own
    ``FastAPI(dependencies=…)``.
    """
    if not isinstance(app, FastAPI):
        raise ConfigurationError(f"install takes a FastAPI application, not a {type(app).__name__}.")
    if not isinstance(idempotency, Idempotency):
        raise ConfigurationError("install is given an Idempotency: install(app, idempotency, tenant=…).")
    checked_options("install", options)
    app.add_middleware(_Middleware, idempotency=idempotency, **options)
    path = idempotency.engine.policy.status_path
    if path is not None:
        app.add_api_route(
            f"{path.rstrip('/')}/{{operation_id}}",
            _shown_by(not authentication),
            methods=["GET", "HEAD"],
            dependencies=list(authentication),
            include_in_schema=False,
        )
        app.router.routes.insert(0, app.router.routes.pop())  # before a route that takes everything
    if app.openapi_url is not None:
        describe(app, idempotency)


class _Middleware(AsgiMiddleware):
    """Leaves the status resource to a route of the application's, behind whatever authenticates there."""

    async def _show_status(self, scope: Scope, receive: Receive, send: Send, operation_id: str) -> None:
        scope[_STATUS] = self._status
        await self.app(scope, receive, send)


def _shown_by(bare: bool) -> Callable[[Request, str], Awaitable[Response]]:
    told: list[bool] = []

    async def show(request: Request, operation_id: str) -> Response:
        if _STATUS not in request.scope:
            raise HTTPException(404)
        answer = await request.scope[_STATUS](request.scope, operation_id)
        if answer.status == 401 and bare and not told:
            told.append(True)
            logger.warning(
                "The status of an operation was refused, because nothing says who asks. If a dependency of "
                "your handlers does, give it to samekey: install(app, …, authentication=[Depends(…)])."
            )
        return _Shown(answer)

    return show


class _Shown(Response):
    def __init__(self, answer: Answer) -> None:
        super().__init__(status_code=answer.status)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_answer(send, self._answer, head=scope["method"] == "HEAD")


def operation(
    idempotency: Idempotency, mode: _Mode = "leased", **options: Any
) -> Callable[[Request], Awaitable[Operation]]:
    """A dependency that guards every handler that it is a dependency of, itself or by its router, in this
    mode, with these options of its decorator. The handler gets the running operation from it.

    It claims nothing by itself: the handler does, once all dependencies have been by.
    """
    _check(idempotency, mode)
    engine = idempotency.engine

    async def the_operation(request: Request) -> Operation:
        scope = request.scope
        if scope["method"].upper() in engine.policy.methods and not (
            isinstance(scope.get(SEEN), Exchange) and isinstance(mark_of(scope.get("endpoint")), Mark)
        ):
            raise ConfigurationError(
                f"{scope['method']} {scope['path']} is guarded by a dependency, but no middleware of samekey "
                "is around the application, or it leaves this route alone, so nothing was run. Add it: "
                "install(app, idempotency, tenant=…)."
            )
        return cast(Operation, Later())

    guarding: Callable[[Request], Awaitable[Operation]] = declare(
        the_operation, engine, getattr(idempotency, mode)(**options)
    )
    return guarding


def guarded(idempotency: Idempotency, mode: _Mode = "leased", **options: Any) -> type[APIRoute]:
    """A class of routes for ``APIRouter(route_class=…)``: whatever is routed by a guarded method is guarded
    in this mode, with these options of its decorator. A handler with a decorator of samekey's keeps that."""
    _check(idempotency, mode)
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


def _check(idempotency: Idempotency, mode: str) -> None:
    if not isinstance(idempotency, Idempotency):
        raise ConfigurationError(f"The first argument is an Idempotency, not a {type(idempotency).__name__}.")
    if mode not in _MODES:
        raise ConfigurationError(
            f"Routes can be guarded as {', '.join(_MODES)}, not {mode!r}. A phased handler has a name of its "
            "own: decorate it, @idempotency.phased(…)."
        )
