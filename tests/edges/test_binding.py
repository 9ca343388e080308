"""A key may be bound to a session or a credential as well as to its tenant (K6)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Statement
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware


def session_of(context: Any) -> str | None:
    if "wsgi.input" in context:
        found: str | None = context.get("HTTP_X_SESSION")
        return found
    headers = dict(context["headers"])
    if headers.get(b"x-session") == b"broken":
        raise RuntimeError("no session store")
    value = headers.get(b"x-session")
    return None if value is None else value.decode()


async def _ask(client: httpx2.AsyncClient, session: str | None) -> httpx2.Response:
    headers = {"Idempotency-Key": "k"} | ({} if session is None else {"X-Session": session})
    return await client.post("/pay", json={}, headers=headers)


@pytest.mark.parametrize("decorated", [True, False])
def test_at_the_asgi_edge(decorated: bool) -> None:
    idempotency = Idempotency("sqlite:///:memory:")
    runs: list[str] = []

    async def pay(request: Request) -> JSONResponse:
        runs.append(request.headers["x-session"])
        return JSONResponse({"run": len(runs)})

    handler = idempotency.leased(pay) if decorated else pay
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    app.add_middleware(
        IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant(), binding=session_of
    )

    async def story() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as client:
            first, again = await _ask(client, "one"), await _ask(client, "one")
            assert first.json() == again.json() == {"run": 1}
            assert again.headers["idempotent-replayed"] == "true"
            assert (await _ask(client, "two")).json() == {"run": 2}
            assert (await _ask(client, None)).status_code == 401
            assert (await _ask(client, "broken")).status_code == 500
        await idempotency.aclose()

    asyncio.run(story())
    assert runs == ["one", "two"]


def test_at_the_wsgi_edge() -> None:
    idempotency = Idempotency("sqlite:///:memory:")
    app = Flask(__name__)
    runs: list[int] = []

    @app.post("/pay")
    @idempotency.leased
    def pay() -> dict[str, int]:
        runs.append(1)
        return {"run": len(runs)}

    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=idempotency, tenant=single_tenant(), binding=session_of
    )
    client = app.test_client()

    def ask(session: str | None) -> int:
        headers = {"Idempotency-Key": "k"} | ({} if session is None else {"X-Session": session})
        answer = client.post("/pay", json={}, headers=headers)
        return int(answer.json["run"]) if answer.json and answer.status_code == 200 else answer.status_code

    assert [ask("a"), ask("a"), ask("b"), ask(None)] == [1, 1, 2, 401]
    idempotency.close()


def test_the_status_resource_is_bound_as_well() -> None:
    """Another session of the same tenant gets exactly what it gets for an id that never was, and the store is
    asked the same questions for both."""
    idempotency = Idempotency("sqlite:///:memory:")
    ids: list[str] = []

    @idempotency.leased
    async def pay(request: Request) -> JSONResponse:
        ids.append(current_operation().id)
        return JSONResponse({})

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(
        IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant(), binding=session_of
    )
    asked: list[str] = []
    driver = idempotency.engine.drivers.aio
    execute = driver.execute

    async def noted(statement: Statement) -> Any:
        asked.append(statement.name)
        return await execute(statement)

    async def story() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as client:

            async def look(operation_id: str, session: str) -> tuple[int, bytes, list[str]]:
                asked.clear()
                got = await client.get(f"/idempotency/{operation_id}", headers={"X-Session": session})
                return got.status_code, got.content, list(asked)

            assert (await _ask(client, "one")).status_code == 200
            driver.execute = noted  # type: ignore[method-assign]
            assert (await look(ids[0], "one"))[0] == 200
            other, never = await look(ids[0], "two"), await look("0" * 32, "two")
            assert other == never and other[0] == 404 and len(other[2]) == 2
            assert (await client.get(f"/idempotency/{ids[0]}")).status_code == 401
        await idempotency.aclose()

    asyncio.run(story())
