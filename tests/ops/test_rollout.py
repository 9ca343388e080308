"""docs/rollout.md: its code, run on an application whose keys are optional."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.test_docs import blocks, run_block


def test_the_page(samekey_url: str) -> None:
    idempotency = Idempotency(samekey_url)

    @idempotency.leased(required=False)
    async def pay(request: Request) -> JSONResponse:
        return JSONResponse({"operation": current_operation().id}, 201)

    names: dict[str, Any] = {
        "idempotency": idempotency,
        "JSONResponse": JSONResponse,
        "app": Starlette(routes=[Route("/payments", pay, methods=["POST"])]),
    }
    for code in blocks("docs/rollout.md", "python"):
        run_block(code, names)
    names["app"].add_middleware(
        IdempotencyMiddleware, idempotency=idempotency, tenant=lambda request: "alice"
    )
    key = {"Idempotency-Key": '"k"'}
    with TestClient(names["app"]) as client:
        keyless = [client.post("/payments") for _ in range(2)]
        assert len({answer.json()["operation"] for answer in keyless}) == 2, "nothing is remembered"
        first, again = (client.post("/payments", headers=key) for _ in range(2))
    assert (first.content, again.headers["Idempotent-Replayed"]) == (again.content, "true")
    assert names["keyless"] == {("POST /payments", "alice"): 2}
    names["server"].close()
