"""ASGI: what an answer comes from is closed with it, once, whatever becomes of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware


class Rows:
    """A cursor: an async iterator with a close of its own."""

    def __init__(self, count: int, *, breaks: bool = False) -> None:
        self.left, self.breaks, self.closed = count, breaks, 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        if self.breaks and not self.left:
            raise RuntimeError("The storage is away.")
        return b"row" * 100

    async def aclose(self) -> None:
        self.closed += 1


class Closing(StreamingResponse):
    """Closes what it sends, sent or not."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if self.status_code != 204:
                await super().__call__(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [StreamingResponse, Closing])
@pytest.mark.parametrize("how", ["ends", "breaks", "is too long to be kept", "is never asked for"])
def test_an_async_iterator_that_a_handler_returns_is_closed_once(
    sqlite_url: str, kind: type[StreamingResponse], how: str
) -> None:
    idempotency = Idempotency(sqlite_url)
    rows = Rows(5000 if how == "is too long to be kept" else 3, breaks=how == "breaks")

    @idempotency.leased
    async def export(_request: Request) -> StreamingResponse:
        return kind(rows, 204 if how == "is never asked for" and kind is Closing else 200)

    app = Starlette(routes=[Route("/", export, methods=["POST"])])
    guarded: Any = IdempotencyMiddleware(app, idempotency=idempotency, tenant=lambda _: "t")
    with TestClient(guarded, raise_server_exceptions=False) as client:
        client.post("/", headers={"Idempotency-Key": "k"})
    assert rows.closed == 1
    idempotency.close()
