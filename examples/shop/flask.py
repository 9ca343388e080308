"""The shop in Flask. What runs before each request comes before the claim: the account, and the order."""

import time
from typing import Any

from flask import Flask, abort, g, jsonify, request
from werkzeug.datastructures import WWWAuthenticate

from samekey import Idempotency
from samekey.flask import Samekey

from . import SLOW, SOLD_OUT, account_of, order_of, policy
from .books import Books, prepare

__all__ = ["make", "prepare"]


def received() -> None:
    g.account = account_of(request.headers.get("Authorization"))
    if g.account is None:
        abort(401, www_authenticate=WWWAuthenticate("bearer"))
    try:
        g.order = order_of(request.get_data()) if request.method == "POST" else None
    except ValueError as error:
        abort(400, str(error))


def make(url: str) -> Flask:
    idempotency, books = Idempotency(url, policy=policy()), Books(url)
    app = Flask("shop")
    app.before_request(received)
    Samekey(idempotency, app, tenant=lambda: g.account)

    @app.post("/orders")
    @idempotency.atomic
    def place() -> Any:
        return books.write(g.account, **g.order), 201

    @app.post("/orders/slow")
    @idempotency.atomic
    def slow() -> Any:
        order = books.write(g.account, **g.order)
        time.sleep(SLOW)
        return order, 201

    @app.post("/orders/refused")
    @idempotency.atomic
    def refused() -> Any:
        books.write(g.account, **g.order)
        return SOLD_OUT, 409

    @app.get("/orders")
    def orders() -> Any:
        return jsonify(books.orders(g.account))

    return app
