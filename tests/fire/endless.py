"""An application whose guarded handlers never end, or whose answers never do, and one answer that does.

``ENDLESS_PATIENCE``: for how many seconds the end of an answer is waited for, in place of what users get.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.edges import held

held.STREAM_PATIENCE = float(os.environ.get("ENDLESS_PATIENCE", held.STREAM_PATIENCE))
idempotency = Idempotency(os.environ.get("ENDLESS_URL", "sqlite:///:memory:"))
MAX_RUN = 2.0
BEAT = 0.05


def begun() -> None:
    print("begun", flush=True)


async def lines() -> AsyncIterator[bytes]:
    while True:
        yield b'{"tick": 1}\n'
        await asyncio.sleep(BEAT)


def sync_lines() -> Iterator[bytes]:
    while True:
        yield b'{"tick": 1}\n'
        time.sleep(BEAT)


@idempotency.leased(max_run=600)
async def stream(_request: Any) -> StreamingResponse:
    return StreamingResponse(lines(), media_type="application/x-ndjson")


@idempotency.leased(max_run=600)
def sync_stream(_request: Any) -> StreamingResponse:
    return StreamingResponse(sync_lines(), media_type="application/octet-stream")


@idempotency.leased(max_run=600)
async def slow(_request: Any) -> StreamingResponse:
    async def report() -> AsyncIterator[bytes]:
        yield b"a long "
        await asyncio.sleep(4)
        yield b"report"

    return StreamingResponse(report(), media_type="text/plain")


@idempotency.leased(max_run=600)
async def mixed(_request: Any) -> StreamingResponse:
    return StreamingResponse(lines(), media_type="multipart/x-mixed-replace; boundary=x")


async def undecorated(_request: Any) -> StreamingResponse:
    return StreamingResponse(lines(), media_type="application/x-ndjson")


@idempotency.atomic(max_run=MAX_RUN, lease=1)
async def atomic_stream(_request: Any) -> StreamingResponse:
    begun()
    await current_operation().connection.execute("select 1")
    return StreamingResponse(lines(), media_type="application/x-ndjson")


@idempotency.leased(max_run=MAX_RUN, lease=1)
async def hang(_request: Any) -> StreamingResponse:
    begun()
    await asyncio.Event().wait()
    raise AssertionError


@idempotency.leased(max_run=MAX_RUN, lease=1)
def sync_hang(_request: Any) -> StreamingResponse:
    begun()
    time.sleep(60)
    raise AssertionError


@idempotency.atomic(max_run=MAX_RUN, lease=1)
async def atomic_hang(_request: Any) -> StreamingResponse:
    begun()
    await current_operation().connection.execute("select 1")
    await asyncio.Event().wait()
    raise AssertionError


HANDLERS = [stream, sync_stream, slow, mixed, undecorated, atomic_stream, hang, sync_hang, atomic_hang]
app = Starlette(routes=[Route(f"/{one.__name__}", one, methods=["POST"]) for one in HANDLERS])
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "t")
