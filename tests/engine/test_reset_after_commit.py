"""What comes after COMMIT in the same text says nothing about the COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware as Asgi
from samekey.testing.kit import Kit
from samekey.wsgi import IdempotencyMiddleware as Wsgi


def by_psycopg(idempotency: Idempotency) -> Any:
    app = flask.Flask("shop")

    @app.post("/orders")
    @idempotency.atomic
    def order() -> tuple[dict[str, int], int]:
        connection = current_operation().connection
        connection.execute("create table if not exists orders (id int)")
        for _ in range(6):  # after five, psycopg prepares it
            connection.execute("select count(*) from orders").fetchone()
        connection.execute("insert into orders values (1)")
        connection.execute("savepoint look")
        connection.execute("rollback to savepoint look")  # psycopg deallocates everything that is prepared
        return {"id": 1}, 201

    guarded = Wsgi(app.wsgi_app, idempotency=idempotency, tenant=lambda _request: "alice")
    app.wsgi_app = guarded  # type: ignore[method-assign]
    return app


def by_asyncpg(idempotency: Idempotency) -> Any:
    @idempotency.atomic
    async def order(request: Request) -> JSONResponse:
        connection = current_operation().connection
        await connection.execute("create table if not exists orders (id int)")
        await connection.execute("insert into orders values (1)")
        # Hidden in a block, so that no reader of the text sees it.
        await connection.execute("do $$ begin execute 'deallocate all'; end $$")
        return JSONResponse({"id": 1}, 201)

    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    app.add_middleware(Asgi, idempotency=idempotency, tenant=lambda _request: "alice")
    return app


@pytest.mark.parametrize("make", [by_psycopg, by_asyncpg])
def test_a_reset_that_fails_is_no_refused_commit(
    make: Callable[[Idempotency], Any], postgres_url: str, samekey_kit: Callable[..., Kit]
) -> None:
    idempotency = Idempotency(postgres_url)
    idempotency.migrate()
    kit = samekey_kit(make(idempotency), idempotency)
    for _ in range(3):
        first = kit.post("/orders", json={})
        assert first.status == 201, first.body
        again = kit.retry(first)
        assert (again.replayed, again.body) == (True, first.body)
    assert asyncio.run(_count(postgres_url)) == 3


async def _count(url: str) -> int:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select count(*) from orders"))
    finally:
        await connection.close()
