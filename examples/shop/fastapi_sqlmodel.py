"""The shop in FastAPI with SQLModel, sync: handlers without async run in threads, with their sessions."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from sqlmodel import create_engine

from samekey import Idempotency
from samekey.fastapi import install
from samekey.sqlmodel import Session
from samekey.tenants import by_state

from . import SLOW, policy
from .bodies import Order, Wanted
from .fastapi import Account
from .models import listed, write
from .tables import prepare, sync_url

__all__ = ["make", "prepare"]


def get_session(request: Request) -> Iterator[Session]:
    with Session(request.app.state.engine) as session:
        yield session


Database = Annotated[Session, Depends(get_session)]


def make(url: str) -> FastAPI:
    engine, app = create_engine(sync_url(url)), FastAPI(title="The shop")
    app.state.engine, idempotency = engine, Idempotency(engine, policy=policy())
    install(app, idempotency, tenant=by_state("account"))

    @app.post("/orders", status_code=201, response_model=Order)
    @idempotency.atomic
    def place(wanted: Wanted, account: Account, session: Database) -> Any:
        return write(session, account, wanted)

    @app.post("/orders/slow", status_code=201, response_model=Order)
    @idempotency.atomic
    def slow(wanted: Wanted, account: Account, session: Database) -> Any:
        row = write(session, account, wanted)
        time.sleep(SLOW)
        return row

    @app.post("/orders/refused", status_code=201, response_model=Order)
    @idempotency.atomic
    def refused(wanted: Wanted, account: Account, session: Database) -> Any:
        write(session, account, wanted)
        raise HTTPException(409, "sold out")

    @app.get("/orders", response_model=list[Order])
    def orders(account: Account, session: Database) -> Any:
        return listed(session, account)

    return app
