"""The application under measurement, for ASGI: one handler that inserts one row, guarded in several ways.

``BENCH_ROWS`` names the PostgreSQL database of the rows, ``BENCH_KEYS`` the store of the keys. What is not
guarded by samekey stands outside of its middleware.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

ROWS, KEYS = os.environ["BENCH_ROWS"], os.environ["BENCH_KEYS"]
INSERT = "insert into bench_payments (amount) values ($1) returning id"
CLAIM = "insert into bench_keys (key, request) values ($1, $2) on conflict do nothing returning 1"
FIND = "select request, status, body from bench_keys where key = $1"
ANSWER = "update bench_keys set status = 201, body = $2 where key = $1"
idempotency = Idempotency(KEYS, pool_size=10)
_pool: Any = None
_making = asyncio.Lock()


async def pool() -> Any:
    global _pool  # noqa: PLW0603 (one pool per process, made on its event loop)
    if _pool is None:
        async with _making:
            _pool = _pool or await asyncpg.create_pool(ROWS, min_size=10, max_size=10)
    return _pool


async def bare(_request: Request) -> JSONResponse:
    return JSONResponse({"id": 1}, 201)


async def unguarded(request: Request) -> JSONResponse:
    body = await request.json()
    async with (await pool()).acquire() as connection:
        payment = await connection.fetchval(INSERT, body["amount"])
    return JSONResponse({"id": payment}, 201)


async def _again(connection: Any, key: str, raw: bytes) -> Response:
    row = await connection.fetchrow(FIND, key)
    if bytes(row["request"]) != raw:
        return JSONResponse({"error": "reused"}, 422)
    if row["status"] is None:
        return JSONResponse({"error": "in progress"}, 409)
    return Response(row["body"], row["status"], {"idempotent-replayed": "true"}, "application/json")


async def by_hand(request: Request) -> Response:
    """What a careful engineer writes: claim, work and answer in one transaction."""
    raw, key = await request.body(), request.headers["idempotency-key"]
    body = await request.json()
    async with (await pool()).acquire() as connection, connection.transaction():
        if await connection.fetchval(CLAIM, key, raw) is None:
            return await _again(connection, key, raw)
        payment = await connection.fetchval(INSERT, body["amount"])
        response = JSONResponse({"id": payment}, 201)
        await connection.execute(ANSWER, key, response.body)
    return response


async def three_commits(request: Request) -> Response:
    """The other one: the claim commits by itself, so that a duplicate does not wait."""
    raw, key = await request.body(), request.headers["idempotency-key"]
    body = await request.json()
    async with (await pool()).acquire() as connection:
        if await connection.fetchval(CLAIM, key, raw) is None:
            return await _again(connection, key, raw)
        payment = await connection.fetchval(INSERT, body["amount"])
        response = JSONResponse({"id": payment}, 201)
        await connection.execute(ANSWER, key, response.body)
    return response


@idempotency.leased
async def leased(request: Request) -> JSONResponse:
    return await unguarded(request)


guarded = [Route("/leased", leased, methods=["POST"])]
if KEYS.startswith("postgresql"):

    @idempotency.atomic
    async def atomic(request: Request) -> JSONResponse:
        body = await request.json()
        payment = await current_operation().connection.fetchval(INSERT, body["amount"])
        return JSONResponse({"id": payment}, 201)

    @idempotency.deferred
    async def deferred(request: Request) -> JSONResponse:
        body = await request.json()
        operation = current_operation()
        payment = await operation.connection.fetchval(INSERT, body["amount"])
        await operation.enqueue("nothing", {"payment": payment})
        return JSONResponse({"id": payment}, 202)

    @idempotency.job("nothing", timeout=30)
    async def nothing(_job: Any, _payload: Any) -> None:
        return None

    guarded += [
        Route("/atomic", atomic, methods=["POST"]),
        Route("/deferred", deferred, methods=["POST"]),
    ]

_guarded = IdempotencyMiddleware(Starlette(routes=guarded), idempotency=idempotency, tenant=single_tenant())
_others = Starlette(
    routes=[
        Route("/bare", bare, methods=["POST"]),
        Route("/unguarded", unguarded, methods=["POST"]),
        Route("/by-hand", by_hand, methods=["POST"]),
        Route("/three-commits", three_commits, methods=["POST"]),
    ]
)
_GUARDED = {route.path for route in guarded}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await (_guarded if scope.get("path") in _GUARDED else _others)(scope, receive, send)
