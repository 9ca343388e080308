"""``make walk``: how long the way of a request is, in files and functions of samekey.

A request is sent to a small Starlette application on SQLite, for a new key and for a replay, atomic and
leased, and every function of the package that is entered is noted, in every thread. A reader who wants to
follow a request has to open that many files, and to jump between them that often.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import samekey
from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

PACKAGE = str(Path(samekey.__file__).parent)
EXPRESSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
"""Frames of their own for Python, but no functions for a reader."""


@dataclass(frozen=True)
class Walk:
    """What one request has entered."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len({file for file, _ in self.calls})

    @property
    def functions(self) -> int:
        return len(set(self.calls))

    @property
    def switches(self) -> int:
        return sum(a[0] != b[0] for a, b in zip(self.calls, self.calls[1:], strict=False))


class Tracker:
    """A profile function for every thread from now on: it hears of every call, and notes it when asked to."""

    def __init__(self) -> None:
        self.walk: Walk | None = None

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if self.walk is None or event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name in EXPRESSIONS:
            return
        self.walk.calls.append((code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname))


def application(idempotency: Idempotency) -> Any:
    """``POST /atomic`` inserts a row, ``POST /leased`` does nothing at all."""

    @idempotency.atomic
    async def atomic(_request: Request) -> JSONResponse:
        await current_operation().connection.execute("insert into made values (1)")
        return JSONResponse({"made": 1}, status_code=201)

    @idempotency.leased
    async def leased(_request: Request) -> JSONResponse:
        return JSONResponse({"made": 1}, status_code=201)

    app = Starlette(
        routes=[Route("/atomic", atomic, methods=["POST"]), Route("/leased", leased, methods=["POST"])]
    )
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return app


async def _send(app: Callable[..., Awaitable[None]], path: str, key: str) -> dict[bytes, bytes]:
    headers = [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")]
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"},
        **{"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""},
        **{"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)},
    }
    started: list[dict[str, Any]] = []
    body = iter([{"type": "http.request", "body": b'{"cents": 450}', "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in body:
            return message
        return await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.append(message)

    await app(scope, receive, send)
    (start,) = started
    assert start["status"] == 201, start
    return dict(start["headers"])


async def walk() -> dict[str, Walk]:
    """The four walks, by name."""
    tracker = Tracker()
    walks: dict[str, Walk] = {}
    threading.setprofile(tracker)
    sys.setprofile(tracker)
    idempotency = Idempotency("sqlite:///:memory:")
    try:
        session = idempotency.engine.drivers.sync.open()
        session.connection.execute("create table made (id integer)")
        session.commit()
        app = application(idempotency)
        for mode in ("atomic", "leased"):
            await _send(app, f"/{mode}", f"{mode}-warm")  # what a process does once is not part of the way
            for name in ("new key", "replay"):
                tracker.walk = walks[f"{mode}, {name}"] = Walk()
                headers = await _send(app, f"/{mode}", mode)
                tracker.walk = None
                assert (b"idempotent-replayed" in headers) == (name == "replay")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        await idempotency.aclose()
    return walks


def table(walks: Mapping[str, Walk]) -> str:
    lines = [f"{'':18}{'files':>7}{'functions':>11}{'switches':>10}"]
    lines += [f"{name:18}{one.files:7}{one.functions:11}{one.switches:10}" for name, one in walks.items()]
    return "\n".join(lines)


def main() -> None:
    walks = asyncio.run(walk())
    if "--json" in sys.argv:
        print(json.dumps({name: (one.files, one.functions) for name, one in walks.items()}))
        return
    print(table(walks))
    if "--verbose" in sys.argv:
        for name, one in walks.items():
            print(f"\n{name}")
            for file in dict.fromkeys(file for file, _ in one.calls):
                print(f"  {file}: {', '.join(dict.fromkeys(f for at, f in one.calls if at == file))}")


if __name__ == "__main__":
    main()
