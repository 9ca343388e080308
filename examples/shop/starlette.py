"""The shop in Starlette. It has no validation: a middleware of the routes does that, before the claim."""

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_state

from . import SLOW, SOLD_OUT, account_of, order_of, policy
from .books import Books, prepare

__all__ = ["make", "prepare"]


async def known(request: Request, go_on: Any) -> Any:
    request.state.account = account_of(request.headers.get("authorization"))
    if request.state.account is None:
        return JSONResponse({"detail": "Say who you are."}, 401, {"WWW-Authenticate": "Bearer"})
    return await go_on(request)


async def understood(request: Request, go_on: Any) -> Any:
    try:
        request.state.order = order_of(await request.body())
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    return await go_on(request)


def make(url: str) -> Starlette:
    idempotency, books = Idempotency(url, policy=policy()), Books(url)

    @idempotency.atomic
    async def place(request: Request) -> JSONResponse:
        order = await books.write_async(request.state.account, **request.state.order)
        if request.url.path == "/orders/refused":
            return JSONResponse(SOLD_OUT, 409)
        if request.url.path == "/orders/slow":
            await asyncio.sleep(SLOW)
        return JSONResponse(order, 201)

    def orders(request: Request) -> JSONResponse:
        return JSONResponse(books.orders(request.state.account))

    checked = [Middleware(BaseHTTPMiddleware, dispatch=understood)]
    paths = ("/orders", "/orders/slow", "/orders/refused")
    posts = [Route(path, place, methods=["POST"], middleware=checked) for path in paths]
    guard = Middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_state("account"))
    who = Middleware(BaseHTTPMiddleware, dispatch=known)
    return Starlette(routes=[*posts, Route("/orders", orders)], middleware=[guard, who])
