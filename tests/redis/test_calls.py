"""On a key store too, no client reaches the keys of the service's own calls."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from tests.chosen import whole

pytestmark = whole


@pytest.mark.parametrize("store", ["redis_url", "redis_cluster_url"])
def test_a_client_cannot_squat_the_keys_of_the_services_own_calls(
    request: pytest.FixtureRequest, store: str
) -> None:
    idempotency = Idempotency(request.getfixturevalue(store))

    @idempotency.leased
    async def pay(_request: Any) -> Any:
        return PlainTextResponse("paid")

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("acme"))
    runs: list[int] = []
    with TestClient(app) as client:
        assert client.post("/pay", headers={"Idempotency-Key": "evt_1"}).status_code == 200
        for _ in range(2):
            idempotency.once(tenant="acme", key="evt_1", run=lambda: runs.append(1))
    assert runs == [1]
