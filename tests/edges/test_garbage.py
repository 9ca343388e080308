"""A request leaves nothing to Python's garbage collector, which would hold up the event loop: no objects that
hold each other, whatever its answer."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lab import environment
from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_api_key
from tests.chosen import whole

TIMES = 20
CASES: dict[str, dict[str, Any]] = {
    "new": {},
    "replay": {"key": b"same"},
    "another body": {"key": b"same", "body": b"[2]"},
    "no key": {"key": None},
    "bad key": {"key": b'"abc'},
    "nobody": {"authorization": b"Bearer wrong"},
    "not found": {"path": "/nowhere"},
    "not JSON": {"body": b'{"a":'},
    "form": {"type": b"application/x-www-form-urlencoded", "body": b"a=1"},
    "large": {"type": b"text/plain", "body": b"x" * 300_000},
}


class Server:
    """As servers are: what is given to the application knows the scope, and the other way round."""

    def __init__(self, number: int, sent: dict[str, Any]) -> None:
        key = sent.get("key", b"key-%d" % number)
        headers = [
            (b"content-type", sent.get("type", b"application/json")),
            (b"authorization", sent.get("authorization", b"Bearer secret")),
            *([(b"idempotency-key", key)] if key is not None else []),
        ]
        self.body = sent.get("body", b'{"amount": 1}')
        self.status = 0
        self.scope = {
            **{"type": "http", "method": "POST", "path": sent.get("path", "/pay"), "query_string": b""},
            **{"headers": headers, "http_version": "1.1", "scheme": "http", "root_path": ""},
        }

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


async def pay(request: Request) -> JSONResponse:
    return JSONResponse({"bytes": len(await request.body())}, 201)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize("kind", ["decorated", pytest.param("undecorated", marks=whole), "edge"])
def test_a_request_leaves_no_cycles_behind(kind: str) -> None:
    """In a process of its own: what other tests have left running makes garbage, too."""
    ran = subprocess.run(
        [sys.executable, "-m", __name__, kind],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "{}\n"), ran.stdout + ran.stderr


def left(kind: str) -> dict[str, int]:
    """How many objects each case leaves, where that is at least one for each request."""
    idempotency = Idempotency("sqlite:///:memory:")
    handler = idempotency.leased(pay) if kind == "decorated" else pay
    app: Any = bare if kind == "edge" else Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    guarded = IdempotencyMiddleware(
        app, idempotency=idempotency, tenant=by_api_key({"secret": "alice"}), undecorated="guard"
    )

    async def ask(sent: dict[str, Any], first: int) -> None:
        for number in range(first, first + TIMES):
            server = Server(number, sent)
            await guarded(server.scope, server.receive, server.send)
            assert 200 < server.status < 500
        await asyncio.sleep(0)

    async def left_by() -> dict[str, int]:
        found = {}
        for place, (name, sent) in enumerate(CASES.items()):
            await ask(sent, 2 * TIMES * place)
            gc.collect()
            gc.disable()
            try:
                await ask(sent, 2 * TIMES * place + TIMES)
                found[name] = gc.collect()
            finally:
                gc.enable()
        await idempotency.aclose()
        return found

    return {name: count for name, count in asyncio.run(left_by()).items() if count >= TIMES}


if __name__ == "__main__":
    print(left(sys.argv[1]))
