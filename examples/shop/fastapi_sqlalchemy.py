"""The shop in FastAPI with SQLAlchemy, async. Its service commits; the session class is all that is ours."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from samekey import Idempotency
from samekey.fastapi import install
from samekey.sqlalchemy import AsyncSession
from samekey.tenants import by_state

from . import SLOW, policy
from .bodies import Order, Wanted
from .fastapi import Account
from .tables import async_url, listed_async, prepare, write_async

__all__ = ["make", "prepare"]


async def get_session(request: Request) -> AsyncIterator[AsyncSession]:
    async with request.app.state.sessions() as session:
        yield session


Database = Annotated[AsyncSession, Depends(get_session)]


def make(url: str) -> FastAPI:
    engine = create_async_engine(async_url(url))
    idempotency, app = Idempotency(engine, policy=policy()), FastAPI(title="The shop")
    app.state.sessions = async_sessionmaker(engine, class_=AsyncSession, expire_on_commit=False)
    install(app, idempotency, tenant=by_state("account"))

    @app.post("/orders", status_code=201, response_model=Order)
    @idempotency.atomic
    async def place(wanted: Wanted, account: Account, session: Database) -> Any:
        return await write_async(session, account, wanted.model_dump())

    @app.post("/orders/slow", status_code=201, response_model=Order)
    @idempotency.atomic
    async def slow(wanted: Wanted, account: Account, session: Database) -> Any:
        row = await write_async(session, account, wanted.model_dump())
        await asyncio.sleep(SLOW)
        return row

    @app.post("/orders/refused", status_code=201, response_model=Order)
    @idempotency.atomic
    async def refused(wanted: Wanted, account: Account, session: Database) -> Any:
        await write_async(session, account, wanted.model_dump())
        raise HTTPException(409, "sold out")

    @app.get("/orders", response_model=list[Order])
    async def orders(account: Account, session: Database) -> Any:
        return await listed_async(session, account)

    return app
