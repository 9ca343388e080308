"""The applications that are fuzzed: one guarded route each, and one that tells how the process fares.

How long an event loop was held up is told by the processor time that its own thread spent on one callback:
what other processes of the machine do in the meantime does not count, nor does Python's garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi import Request as FastRequest

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware

LONGEST = [0.0]
"""Seconds of processor time of the longest callback."""

idempotency = Idempotency(os.environ.get("SAMEKEY_FUZZ_STORE", "sqlite:///:memory:"))


COLLECTED = [0.0, 0.0]
"""Seconds that Python's garbage collector has taken, and when it began."""


def _collecting(phase: str, _: Any) -> None:
    if phase == "start":
        COLLECTED[1] = time.thread_time()
    else:
        COLLECTED[0] += time.thread_time() - COLLECTED[1]


def _watch() -> None:
    run = asyncio.Handle._run
    gc.callbacks.append(_collecting)

    def watched(self: asyncio.Handle) -> None:
        began, collected = time.thread_time(), COLLECTED[0]
        run(self)
        took = time.thread_time() - began - (COLLECTED[0] - collected)
        # What a server does to parse the bytes of a socket is its own.
        if "_ready" not in getattr(getattr(self, "_callback", None), "__name__", ""):
            LONGEST[0] = max(LONGEST[0], took)

    asyncio.Handle._run = watched  # type: ignore[method-assign]


def pulse() -> dict[str, float]:
    """Since the last time it was asked."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    longest, LONGEST[0] = LONGEST[0], 0.0
    return {"longest_ms": longest * 1000, "megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 2**20}


_watch()


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = json.dumps(pulse() if scope["path"] == "/pulse" else {}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


asgi = IdempotencyMiddleware(bare, idempotency=idempotency, tenant=single_tenant(), undecorated="guard")


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    @idempotency.leased
    async def pay(request: Request) -> JSONResponse:
        return JSONResponse({"bytes": len(await request.body())})

    async def health(_: Request) -> JSONResponse:
        return JSONResponse(pulse())

    app = Starlette(routes=[Route("/pay", pay, methods=["POST", "PATCH"]), Route("/pulse", health)])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return app


def fastapi() -> Any:
    app = FastAPI()

    @app.post("/pay")
    @idempotency.leased
    async def pay(request: FastRequest) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.get("/pulse")
    async def health() -> dict[str, float]:
        return pulse()

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return app


def litestar() -> Any:
    from litestar import Litestar, get, post
    from litestar.connection import Request

    from samekey.litestar import SamekeyPlugin

    @post("/pay")
    @idempotency.leased
    async def pay(request: Request[Any, Any, Any]) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @get("/pulse")
    async def health() -> dict[str, float]:
        return pulse()

    return Litestar([pay, health], plugins=[SamekeyPlugin(idempotency, tenant=single_tenant())])


def flask() -> Any:
    import flask as framework

    app = framework.Flask("fuzzed")

    @app.post("/pay")
    @idempotency.leased
    def pay() -> dict[str, int]:
        return {"bytes": len(framework.request.get_data())}

    @app.get("/pulse")
    def health() -> dict[str, float]:
        return pulse()

    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=idempotency, tenant=single_tenant()
    )
    return app


def bare_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [json.dumps(pulse() if environ["PATH_INFO"] == "/pulse" else {}).encode()]


wsgi = WsgiMiddleware(bare_wsgi, idempotency=idempotency, tenant=single_tenant(), undecorated="guard")
