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
        "IdempotencyMiddleware": IdempotencyMiddleware,
        "tenant": lambda request: "alice",
        "JSONResponse": JSONResponse,
        "app": Starlette(routes=[Route("/payments", pay, methods=["POST"])]),
    }
    for code in blocks("docs/rollout.md", "python"):
        run_block(code, names)
    origin = {"Origin": "https://shop.example"}
    key = {**origin, "Idempotency-Key": '"k"'}
    with TestClient(names["app"]) as client:
        asks = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "idempotency-key",
        }
        assert client.options("/payments", headers={**origin, **asks}).status_code == 200
        keyless = [client.post("/payments", headers=origin) for _ in range(2)]
        assert len({answer.json()["operation"] for answer in keyless}) == 2, "nothing is remembered"
        first, again = (client.post("/payments", headers=key) for _ in range(2))
        refused = client.post("/payments", headers=key, content=b"other")
    assert (first.content, again.headers["Idempotent-Replayed"]) == (again.content, "true")
    assert refused.status_code == 422
    for answer in (first, again, refused):
        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert "Idempotent-Replayed" in answer.headers["Access-Control-Expose-Headers"]
    assert names["keyless"] == {("POST /payments", "alice"): 2}
    names["server"].close()
