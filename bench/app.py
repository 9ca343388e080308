"""The application under measurement: one handler that inserts one row, guarded in several ways.

``BENCH_URL`` names the PostgreSQL database; one uvicorn worker serves it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

URL = os.environ["BENCH_URL"]
INSERT = "insert into bench_payments (amount) values ($1) returning id"
idempotency = Idempotency(URL, pool_size=10)
_pool: Any = None
_making = asyncio.Lock()


async def pool() -> Any:
    global _pool  # noqa: PLW0603 (one pool per process, made on its event loop)
    async with _making:
        if _pool is None:
            _pool = await asyncpg.create_pool(URL, min_size=10, max_size=10)
    return _pool


@idempotency.exempt
async def unguarded(request: Request) -> JSONResponse:
    body = await request.json()
    async with (await pool()).acquire() as connection:
        payment = await connection.fetchval(INSERT, body["amount"])
    return JSONResponse({"id": payment}, 201)


@idempotency.exempt
async def by_hand(request: Request) -> JSONResponse:
    """What a careful engineer writes: claim, work and answer in one transaction."""
    raw = await request.body()
    key = request.headers["idempotency-key"]
    body = await request.json()
    async with (await pool()).acquire() as connection, connection.transaction():
        new = await connection.fetchval(
            "insert into bench_keys (key, request) values ($1, $2) on conflict do nothing returning 1",
            key,
            raw,
        )
        if new is None:
            row = await connection.fetchrow(
                "select request, status, body from bench_keys where key = $1", key
            )
            if bytes(row["request"]) != raw:
                return JSONResponse({"error": "reused"}, 422)
            return JSONResponse(None, row["status"], headers={"idempotent-replayed": "true"})
        payment = await connection.fetchval(INSERT, body["amount"])
        response = JSONResponse({"id": payment}, 201)
        await connection.execute(
            "update bench_keys set status = 201, body = $2 where key = $1", key, response.body
        )
    return response


@idempotency.atomic
async def atomic(request: Request) -> JSONResponse:
    body = await request.json()
    payment = await current_operation().connection.fetchval(INSERT, body["amount"])
    return JSONResponse({"id": payment}, 201)


@idempotency.leased
async def leased(request: Request) -> JSONResponse:
    body = await request.json()
    async with (await pool()).acquire() as connection:
        payment = await connection.fetchval(INSERT, body["amount"])
    return JSONResponse({"id": payment}, 201)


app = Starlette(
    routes=[
        Route("/unguarded", unguarded, methods=["POST"]),
        Route("/by-hand", by_hand, methods=["POST"]),
        Route("/atomic", atomic, methods=["POST"]),
        Route("/leased", leased, methods=["POST"]),
    ]
)
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
