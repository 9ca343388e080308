"""A handler that names itself to the provider by its operation's id: what the provider says finds it, however
the handler has ended."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Executed, Resolution, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.states import State
from tests.evidence.conftest import Node

YES = Executed(Response(201, {"id": "ch_1"}))


class Shop:
    """The provider is told the operation's id (``by_id``), or nothing."""

    def __init__(self, node: Node, status: int, *, by_id: bool, raises: bool = False) -> None:
        self.told: list[str] = []
        self.runs = 0

        @node.idempotency.leased
        async def pay(_: Request) -> JSONResponse:
            self.runs += 1
            if by_id:
                self.told.append(current_operation().id)
            if raises:
                raise HTTPException(status)
            return JSONResponse({"error": "the provider is busy"}, status)

        self.app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
        self.app.add_middleware(IdempotencyMiddleware, idempotency=node.idempotency, tenant=lambda _: "acme")

    def post(self) -> tuple[int, Any]:
        with TestClient(self.app) as client:
            answer = client.post("/pay", json={}, headers={"Idempotency-Key": "k"})
            return answer.status_code, answer.content


@pytest.mark.parametrize("raises", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize("status", [429, 401, 403, 408, 425, 307])
def test_a_yes_by_the_operations_id_finds_it_after_a_refusal(node: Node, status: int, raises: bool) -> None:
    shop = Shop(node, status, by_id=True, raises=raises)
    with TestClient(shop.app, follow_redirects=False) as client:
        client.post("/pay", json={}, headers={"Idempotency-Key": "k"})
    assert node.state("k") is State.FAILED_RETRYABLE
    said = node.idempotency.resolve(
        YES,
        source="cards",
        event_id="e1",
        tenant="acme",
        occurred_at=datetime.now(UTC),
        verify=lambda: True,
        operation_id=shop.told[0],
    )
    assert said is Resolution.RESOLVED
    assert shop.post()[0] == 201
    assert shop.runs == 1


def test_the_id_stays_until_the_retry(node: Node) -> None:
    """Both attempts are one operation: whatever was told under its id is about that one."""
    shop = Shop(node, 429, by_id=True)
    assert [shop.post()[0], shop.post()[0]] == [429, 429]
    assert shop.runs == 2 and len(set(shop.told)) == 1


def test_what_nobody_can_name_is_released(lite: Node) -> None:
    shop = Shop(lite, 429, by_id=False)
    assert shop.post()[0] == 429
    assert lite.run(lambda: lite.finding.find(limit=10)) == []
