"""The applications that are fuzzed: one guarded route each, and one that tells how the process fares.

How long an event loop was held up is told by the processor time that its own thread spent on one callback:
what other processes of the machine do in the meantime does not count, nor does Python's garbage collector,
which is measured apart. With ``SAMEKEY_FUZZ_BARE`` they are the same applications without samekey.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi import Request as FastRequest

from samekey import Idempotency, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_api_key
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware

from .odd import SECRET

BARE = "SAMEKEY_FUZZ_BARE" in os.environ
LONG = 0.005
"""Seconds. A callback that takes longer is told."""

idempotency = Idempotency(
    os.environ.get("SAMEKEY_FUZZ_STORE", "sqlite:///:memory:"), policy=ietf(max_age=3600)
)
tenant = by_api_key({SECRET.decode(): "caller"})


class Watch:
    """What the process has done since it was last asked."""

    def __init__(self) -> None:
        self.longest = self.collector = self.collected = self._began = 0.0
        self.long: list[str] = []

    def collecting(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            took = time.thread_time() - self._began
            self.collected += took
            self.collector = max(self.collector, took)

    def around(self, run: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        def watched(handle: asyncio.Handle) -> None:
            began, collected = time.thread_time(), self.collected
            callback = getattr(handle, "_callback", None)
            run(handle)
            took = time.thread_time() - began - (self.collected - collected)
            # What a server does to parse the bytes of a socket is its own.
            if took > self.longest and "_ready" not in getattr(callback, "__name__", ""):
                self.longest = took
                if took > LONG:
                    self.long.append(f"{took * 1000:.1f} ms: {callback!r:.200}")

        return watched


watch = Watch()
gc.callbacks.append(watch.collecting)
asyncio.Handle._run = watch.around(asyncio.Handle._run)  # type: ignore[method-assign, assignment]


class Mallinfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` tells, of all its arenas together."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def allocated() -> float:
    """Megabytes that C code of the process holds and has not given back; 0 where nobody can tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0.0
    ask.restype = Mallinfo
    found = ask()
    return float(found.uordblks + found.hblkhd) / 2**20


def pulse(query: str) -> dict[str, Any]:
    """Since the last time it was asked."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    found = {
        "longest_ms": watch.longest * 1000,
        "long": watch.long,
        "collector_ms": watch.collector * 1000,
        "allocated": allocated(),
        "blocks": sys.getallocatedblocks(),
        "megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    }
    if query == "freeze":
        gc.collect()
        gc.freeze()
    watch.longest = watch.collector = 0.0
    watch.long = []
    return found


def leased(function: Any) -> Any:
    return function if BARE else idempotency.leased(function)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    asked = scope["path"] == "/pulse"
    body = json.dumps(pulse(scope["query_string"].decode()) if asked else {}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


asgi: Any = (
    bare if BARE else IdempotencyMiddleware(bare, idempotency=idempotency, tenant=tenant, undecorated="guard")
)


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    @leased
    async def pay(request: Request) -> JSONResponse:
        return JSONResponse({"bytes": len(await request.body())})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse(pulse(request.url.query))

    app = Starlette(routes=[Route("/pay", pay, methods=["POST", "PATCH"]), Route("/pulse", health)])
    if not BARE:
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=tenant)
    return app


def fastapi() -> Any:
    app = FastAPI()

    @app.post("/pay")
    @leased
    async def pay(request: FastRequest) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.get("/pulse")
    async def health(request: FastRequest) -> dict[str, Any]:
        return pulse(request.url.query)

    if not BARE:
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=tenant)
    return app


def litestar() -> Any:
    from litestar import Litestar, get, post
    from litestar.connection import Request

    from samekey.litestar import SamekeyPlugin

    @post("/pay")
    @leased
    async def pay(request: Request[Any, Any, Any]) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @get("/pulse")
    async def health(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return pulse(request.url.query)

    return Litestar([pay, health], plugins=[] if BARE else [SamekeyPlugin(idempotency, tenant=tenant)])


def flask() -> Any:
    import flask as framework

    app = framework.Flask("fuzzed")

    @app.post("/pay")
    @leased
    def pay() -> dict[str, int]:
        return {"bytes": len(framework.request.get_data())}

    @app.get("/pulse")
    def health() -> dict[str, Any]:
        return pulse(framework.request.query_string.decode())

    if not BARE:
        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=idempotency, tenant=tenant
        )
    return app


def bare_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    asked = environ["PATH_INFO"] == "/pulse"
    start_response("200 OK", [])
    return [json.dumps(pulse(environ["QUERY_STRING"]) if asked else {}).encode()]


wsgi: Any = (
    bare_wsgi
    if BARE
    else WsgiMiddleware(bare_wsgi, idempotency=idempotency, tenant=tenant, undecorated="guard")
)
