"""The shop in FastAPI: its dependencies and models come before the claim."""

import asyncio
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from samekey import Idempotency
from samekey.fastapi import install
from samekey.tenants import by_state

from . import SLOW, account_of, policy
from .bodies import Order, Wanted
from .books import Books, prepare

__all__ = ["make", "prepare"]


def account(request: Request, token: HTTPAuthorizationCredentials = Depends(HTTPBearer())) -> str:  # noqa: B008
    request.state.account = account_of(f"{token.scheme} {token.credentials}")  # where the guard looks
    return str(request.state.account)


Account = Annotated[str, Depends(account)]


def make(url: str) -> FastAPI:
    idempotency, books, app = Idempotency(url, policy=policy()), Books(url), FastAPI(title="The shop")
    install(app, idempotency, tenant=by_state("account"))

    @app.post("/orders", status_code=201, response_model=Order)
    @idempotency.atomic
    async def place(wanted: Wanted, account: Account) -> Any:
        return await books.write_async(account, wanted.sku, wanted.quantity)

    @app.post("/orders/slow", status_code=201, response_model=Order)
    @idempotency.atomic
    async def slow(wanted: Wanted, account: Account) -> Any:
        order = await books.write_async(account, wanted.sku, wanted.quantity)
        await asyncio.sleep(SLOW)
        return order

    @app.post("/orders/refused", status_code=201, response_model=Order)
    @idempotency.atomic
    async def refused(wanted: Wanted, account: Account) -> Any:
        await books.write_async(account, wanted.sku, wanted.quantity)
        raise HTTPException(409, "sold out")

    @app.get("/orders", response_model=list[Order])
    def orders(account: Account) -> Any:
        return books.orders(account)

    return app
