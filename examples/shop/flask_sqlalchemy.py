"""The shop in Flask with SQLAlchemy: one session for each request, closed when the request is torn down."""

import time
from typing import Any

from flask import Flask, g, jsonify
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from samekey import Idempotency
from samekey.flask import Samekey
from samekey.sqlalchemy import Session

from . import SLOW, SOLD_OUT, policy
from .flask import received
from .tables import Row, listed, prepare, sync_url, write

__all__ = ["make", "prepare"]


def shown(row: Row) -> dict[str, Any]:
    return {"id": row.id, "sku": row.sku, "quantity": row.quantity}


def make(url: str) -> Flask:
    engine, app = create_engine(sync_url(url)), Flask("shop")
    idempotency, sessions = Idempotency(engine, policy=policy()), sessionmaker(engine, class_=Session)
    app.before_request(received)
    app.before_request(lambda: setattr(g, "session", sessions()))
    app.teardown_request(lambda _: g.session.close() if "session" in g else None)
    Samekey(idempotency, app, tenant=lambda: g.account)

    @app.post("/orders")
    @idempotency.atomic
    def place() -> Any:
        return shown(write(g.session, g.account, g.order)), 201

    @app.post("/orders/slow")
    @idempotency.atomic
    def slow() -> Any:
        order = shown(write(g.session, g.account, g.order))
        time.sleep(SLOW)
        return order, 201

    @app.post("/orders/refused")
    @idempotency.atomic
    def refused() -> Any:
        write(g.session, g.account, g.order)
        return SOLD_OUT, 409

    @app.get("/orders")
    def orders() -> Any:
        return jsonify([shown(row) for row in listed(g.session, g.account)])

    return app
