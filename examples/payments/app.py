"""The application, and for the worker its ``idempotency``.

uvicorn examples.payments.app:app
samekey worker examples.payments.app:idempotency
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi import Response as HTTPResponse
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from samekey import Response
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import StoreError
from samekey.ops.prometheus import metrics_app

from . import ledger, orders, payments, purchases, refunds, transfers, webhooks
from .accounts import account_of
from .bodies import as_http
from .database import DatabaseUnavailable
from .documentation import document
from .service import cards, database, idempotency, provider

__all__ = ["app", "idempotency", "ledger"]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Connections are opened when they are needed, and given back here."""
    yield
    await provider.close()
    await cards.close()
    await database.close()


async def unavailable(_request: Request, _error: Exception) -> JSONResponse:
    """The database is away for a moment; nothing was done that a retry with the same key would do twice."""
    return JSONResponse({"detail": "Try again in a moment."}, 503, headers={"Retry-After": "1"})


async def invalid(_request: Request, error: Exception) -> HTTPResponse:
    """What does not fit, without repeating it: it may be secret, or text that cannot be written as JSON."""
    assert isinstance(error, RequestValidationError)
    found = [{"loc": one["loc"], "msg": one["msg"], "type": one["type"]} for one in error.errors()]
    return as_http(Response(422, {"detail": found}))


class Metrics:
    """Prometheus metrics of this process. Not mounted, because a mount would redirect to ``/metrics/``."""

    def __init__(self) -> None:
        self._app = metrics_app(idempotency)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


app = FastAPI(title="Payments", description="A reference service for samekey.", lifespan=lifespan)
for part in (payments, refunds, purchases, orders, transfers, webhooks):
    app.include_router(part.router)
app.router.routes.append(Route("/metrics", Metrics(), methods=["GET"]))
app.add_exception_handler(RequestValidationError, invalid)
app.add_exception_handler(DatabaseUnavailable, unavailable)
app.add_exception_handler(StoreError, unavailable)
app.openapi = lambda: document(app)  # type: ignore[method-assign]

# Handlers claim their own keys, after authentication and validation. The tenant is needed here as well: the
# middleware answers the status resource by itself.
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=account_of, undecorated="pass")
