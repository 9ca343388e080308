"""Handlers that call a provider, by each library, and what became of their operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import requests
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.core.record import Record
from samekey.outgoing import (
    Outgoing,
)
from samekey.outgoing.httpx import ProviderTransport as OldTransport
from samekey.outgoing.httpx2 import AsyncProviderTransport, ProviderTransport
from samekey.outgoing.requests import ProviderAdapter
from samekey.tenants import single_tenant
from samekey.workers.outbox import OutboxWorker

from .scripted import Say, Scripted

MADE = Say(200, b'{"id": "ch_1", "object": "charge"}')
Caller = Callable[[str, Outgoing, dict[str, Any]], Any]


def by_httpx2(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    with httpx2.Client(transport=ProviderTransport(outgoing)) as client:
        return client.post(url, json=body)


def by_httpx(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    with httpx.Client(transport=OldTransport(outgoing)) as client:
        return client.post(url, json=body)


def by_async(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    return post_async(url, outgoing, body)


async def post_async(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    async with httpx2.AsyncClient(transport=AsyncProviderTransport(outgoing)) as client:
        return await client.post(url, json=body)


def by_requests(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", ProviderAdapter(outgoing))
        return session.post(url, json=body)


class Service:
    """One guarded handler, and what became of its operation."""

    def __init__(self, idempotency: Idempotency, handler: Any) -> None:
        app = Starlette(routes=[Route("/charges", handler, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
        self._client = TestClient(app, raise_server_exceptions=False)
        self._idempotency = idempotency
        self.steps: dict[str, str | None] = {}
        """What a handler has told of its steps: the provider's ids."""

    def post(self, key: str = "k") -> Any:
        return self._client.post("/charges", headers={"Idempotency-Key": key}, json={"cents": 450})

    def record(self, key: str) -> Record:
        found = self._idempotency.find(downstream_key=key)
        assert found is not None
        return found


def leased(idempotency: Idempotency, url: str, outgoing: Outgoing, call: Caller = by_async) -> Service:
    @idempotency.leased
    async def charge(_request: Any) -> JSONResponse:
        answer = call(url, outgoing, {"amount": 450})
        if call is by_async:
            answer = await answer
        return JSONResponse({"status": answer.status_code}, 201)

    return Service(idempotency, charge)


def sent_key(server: Scripted) -> str:
    (key,) = server.keys
    assert key is not None
    return key


def work(idempotency: Idempotency) -> None:
    async def once() -> None:
        worker = OutboxWorker(idempotency.engine)
        await worker.run_once()
        await worker.drain()

    asyncio.run(once())


def make_due(idempotency: Idempotency) -> None:
    session = idempotency.engine.drivers.sync.open()
    session.connection.execute("update samekey_jobs set due_at = 0")
    session.commit()
