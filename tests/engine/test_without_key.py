"""Atomic handlers whose key was not sent: they too end with their longest run, and keep no connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import OperationOver, SamekeyError
from tests.chosen import stores
from tests.edges.callers import Request, call_asgi
from tests.stores.crash_scenarios import execute

PATIENCE = 20.0


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
def test_a_handler_without_a_key_loses_its_connection_after_its_longest_run(
    request: pytest.FixtureRequest, store: str
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    idempotency = Idempotency(url, pool_size=1)
    idempotency.migrate()
    execute(url, "create table effects (n int)")
    errors: list[BaseException] = []

    @idempotency.atomic(required=False, max_run=1, lease=1)
    async def hang(_request: Any) -> PlainTextResponse:
        while True:  # until it is refused
            try:
                await current_operation().connection.execute("insert into effects values (1)")
            except Exception as error:
                errors.append(error)
                return PlainTextResponse("done", 201)
            await asyncio.sleep(0.02)

    @idempotency.atomic(required=False)
    async def write(_request: Any) -> PlainTextResponse:
        await current_operation().connection.execute("insert into effects values (3)")
        return PlainTextResponse("done", 201)

    routes = [Route("/hang", hang, methods=["POST"]), Route("/write", write, methods=["POST"])]
    app = IdempotencyMiddleware(Starlette(routes=routes), idempotency=idempotency, tenant=lambda _: "t")

    async def story() -> None:
        async with asyncio.timeout(PATIENCE):
            got = await call_asgi(app, Request("POST", "/hang"))
            assert got.status == 503 and errors
            assert isinstance(errors[0], (OperationOver, SamekeyError))
            assert (await call_asgi(app, Request("POST", "/write"))).status == 201
            await idempotency.aclose()

    asyncio.run(story())
    assert execute(url, "select n from effects") == [(3,)]
