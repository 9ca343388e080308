"""The applications that real servers run in ``test_servers.py``: one ASGI, one WSGI, with the same routes.

They count their runs in a file, and a handler can be held until another file appears.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import flask
from fastapi import FastAPI, Request

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import tenant_of

FOLDER = Path(os.environ["SAMEKEY_TEST_FOLDER"])
idempotency = Idempotency(f"sqlite:///{FOLDER / 'served.db'}")


def _ran(name: str) -> int:
    with (FOLDER / f"{name}.runs").open("a") as runs:
        runs.write("x")
    return (FOLDER / f"{name}.runs").stat().st_size


def _may_go(name: str) -> bool:
    return (FOLDER / f"{name}.go").exists()


class Gateway:
    """Makes requests below /v1 and /v2 anew: only what it knows of them, no key, and another path. It says
    what it has taken off the path of /v1."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(("/v1/", "/v2/")):
            root = scope["path"][:3] if scope["path"].startswith("/v1/") else ""
            known = ("type", "asgi", "http_version", "method", "query_string", "scheme", "app")
            headers = [pair for pair in scope["headers"] if pair[0] in (b"content-length", b"x-tenant")]
            made = {name: scope[name] for name in known if name in scope}
            scope = made | {"root_path": root, "path": scope["path"][3:], "headers": headers}

        async def send_on(message: Any) -> None:
            await send(message)

        await self.app(scope, receive, send_on)


def wsgi_gateway(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"].startswith(("/v1/", "/v2/")):
        root = environ["PATH_INFO"][:3] if environ["PATH_INFO"].startswith("/v1/") else ""
        known = ("wsgi.", "REQUEST_METHOD", "SERVER_", "CONTENT_", "HTTP_X_TENANT")
        made = {name: value for name, value in environ.items() if name.startswith(known)}
        environ = made | {"SCRIPT_NAME": root, "PATH_INFO": environ["PATH_INFO"][3:]}
    yield from flask_app.wsgi_app(environ, start_response)


asgi_app = FastAPI(openapi_url=None)
asgi_app.add_middleware(Gateway)
asgi_app.add_middleware(AsgiMiddleware, idempotency=idempotency, tenant=tenant_of)


@asgi_app.post("/pay/{name}")
@idempotency.leased
async def pay(name: str, request: Request) -> Any:
    return {"run": _ran(name), "length": len(await request.body())}


@asgi_app.post("/slow/{name}")
@idempotency.leased
async def slow(name: str) -> Any:
    run = _ran(name)
    while not _may_go(name):
        await asyncio.sleep(0.01)
    return {"run": run}


@asgi_app.post("/atomic/{name}")
@idempotency.atomic
def atomic(name: str) -> Any:
    connection = current_operation().connection
    connection.execute("create table if not exists paid (name text)")
    connection.execute("insert into paid values (?)", (name,))
    return {"run": _ran(name)}


@asgi_app.post("/free/{name}")
async def free(name: str) -> Any:
    return {"run": _ran(name)}


flask_app = flask.Flask(__name__)


@flask_app.post("/pay/<name>")
@idempotency.leased
def pay_sync(name: str) -> Any:
    return {"run": _ran(name), "length": len(flask.request.get_data())}


@flask_app.post("/slow/<name>")
@idempotency.leased
def slow_sync(name: str) -> Any:
    run = _ran(name)
    while not _may_go(name):
        time.sleep(0.01)
    return {"run": run}


@flask_app.post("/atomic/<name>")
@idempotency.atomic
def atomic_sync(name: str) -> Any:
    return atomic.__wrapped__(name)  # type: ignore[attr-defined]


@flask_app.post("/free/<name>")
def free_sync(name: str) -> Any:
    return {"run": _ran(name)}


wsgi_gateway.app = flask_app.wsgi_app  # type: ignore[attr-defined]
wsgi_app = WsgiMiddleware(wsgi_gateway, idempotency=idempotency, tenant=tenant_of)
