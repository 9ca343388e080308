"""The shop in Litestar: guards, dependencies and validation come before the claim."""

import asyncio
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.exceptions import NotAuthorizedException
from litestar.params import JSONBody

from samekey import Idempotency
from samekey.litestar import SamekeyPlugin
from samekey.tenants import by_state

from . import SLOW, SOLD_OUT, account_of, policy
from .bodies import Order, Wanted
from .books import Books, prepare

__all__ = ["make", "prepare"]


async def account(request: Request[Any, Any, Any]) -> str:
    request.state.account = account_of(request.headers.get("authorization"))  # where the guard looks
    if request.state.account is None:
        raise NotAuthorizedException("Say who you are.", headers={"WWW-Authenticate": "Bearer"})
    return str(request.state.account)


def make(url: str) -> Litestar:
    idempotency, books = Idempotency(url, policy=policy()), Books(url)

    @post("/orders")
    @idempotency.atomic
    async def place(data: JSONBody[Wanted], account: NamedDependency[str]) -> Order:
        return Order(**await books.write_async(account, data.sku, data.quantity))

    @post("/orders/slow")
    @idempotency.atomic
    async def slow(data: JSONBody[Wanted], account: NamedDependency[str]) -> Order:
        order = await books.write_async(account, data.sku, data.quantity)
        await asyncio.sleep(SLOW)
        return Order(**order)

    @post("/orders/refused")
    @idempotency.atomic
    async def refused(data: JSONBody[Wanted], account: NamedDependency[str]) -> Response[dict[str, str]]:
        await books.write_async(account, data.sku, data.quantity)
        return Response(SOLD_OUT, status_code=409)

    @get("/orders", sync_to_thread=True)
    def orders(account: NamedDependency[str]) -> list[Order]:
        return [Order(**order) for order in books.orders(account)]

    return Litestar(
        [place, slow, refused, orders],
        dependencies={"account": Provide(account)},
        plugins=[SamekeyPlugin(idempotency, tenant=by_state("account"))],
    )
