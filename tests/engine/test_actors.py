"""The audit says who moved an operation: the worker and the completer under their own names (O3)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, Input, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate
from samekey.tenants import single_tenant
from samekey.workers.completer import Completer
from samekey.workers.outbox import OutboxWorker
from tests.stores.crash_scenarios import end_lease


@pytest.mark.parametrize("store", ["sqlite_url", "postgres_url"])
def test_the_worker_and_the_completer_sign_their_work(store: str, request: pytest.FixtureRequest) -> None:
    idempotency = Idempotency(request.getfixturevalue(store))
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    broken = True

    @idempotency.deferred
    async def order(request: Request) -> JSONResponse:
        await current_operation().enqueue("charge")
        return JSONResponse({}, 202)

    @idempotency.job("charge")
    async def charge(job: Any, payload: Any) -> Response:
        return Response(201, {"paid": True})

    async def nothing(connection: Any) -> None:
        return None

    @idempotency.phased("ride")
    async def ride(op: Any, input: Input) -> Response:
        await op.transaction("booked", nothing)
        if broken:
            raise RuntimeError("later")
        return Response(201)

    app = Starlette(routes=[Route("/order", order, methods=["POST"]), Route("/ride", ride, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())

    def actors(key: str) -> list[tuple[str | None, str]]:
        operator = idempotency.engine.store.tables.operator
        record = run(idempotency.engine.drivers.sync, lambda: operator.find(key=key))[0]
        lines = run(idempotency.engine.drivers.sync, lambda: operator.timeline(record.scope, key))
        return [(line.after, line.actor) for line in lines]

    async def story() -> None:
        nonlocal broken
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            for path in ("/order", "/ride"):
                await client.post(path, json={}, headers={"Idempotency-Key": path.strip("/")})
        worker = OutboxWorker(idempotency.engine)
        assert await worker.run_once() == 1
        await worker.drain()
        await worker.stop()
        broken = False
        await asyncio.to_thread(end_lease, idempotency.engine.url, "ride")
        assert await Completer(idempotency.engine).run_once() == 1
        await idempotency.aclose()

    asyncio.run(story())
    assert actors("order")[-1] == ("completed", "worker")
    assert actors("ride")[-2:] == [("in_progress", "completer"), ("completed", "completer")]
    idempotency.close()
