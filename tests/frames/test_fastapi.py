"""FastAPI: routes that are guarded by their class, in every place where FastAPI lets routes be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from starlette.testclient import TestClient

from samekey import ConfigurationError, Idempotency, current_operation
from samekey.fastapi import guarded, install
from samekey.ops.coverage import coverage
from samekey.tenants import by_state


@pytest.fixture
def idempotency(tmp_path: Path) -> Iterator[Idempotency]:
    made = Idempotency(f"sqlite:///{tmp_path / 'fastapi.db'}")
    yield made
    made.close()


class Wanted(BaseModel):
    sku: str


class Order(BaseModel):
    id: int
    sku: str


def account(request: Request) -> str:
    request.state.account = request.headers.get("x-account")
    if request.state.account is None:
        raise HTTPException(401)
    return str(request.state.account)


Account = Annotated[str, Depends(account)]


def test_a_router_of_guarded_routes(idempotency: Idempotency) -> None:
    """Dependencies, validation, response_model and status_code are FastAPI's; the key comes after them."""
    runs: list[str] = []
    orders = APIRouter(route_class=guarded(idempotency, "leased"), dependencies=[Depends(account)])

    @orders.post("/{shelf}", status_code=201, response_model=Order)
    async def place(shelf: int, wanted: Wanted, account: Account, gift: bool = False) -> Any:
        runs.append(account)
        return {"id": shelf, "sku": wanted.sku, "secret": current_operation().id, "gift": gift}

    @orders.get("/")
    def listed() -> list[str]:
        return runs

    @orders.post("/hooks/{name}")
    @idempotency.exempt
    async def hook(name: str) -> str:
        return name

    def create_app() -> FastAPI:
        app, inner = FastAPI(), FastAPI()
        install(app, idempotency, tenant=by_state("account"))
        app.include_router(orders, prefix="/orders")
        inner.include_router(orders, prefix="/v2/orders")
        app.mount("/inner", inner)
        return app

    app = create_app()
    with TestClient(app) as client:
        sent = {"Idempotency-Key": "k", "x-account": "ann"}
        wrong = client.post("/orders/7?gift=1", json={}, headers=sent)
        first, again = (client.post("/orders/7?gift=1", json={"sku": "tea"}, headers=sent) for _ in range(2))
        other = client.post("/orders/7?gift=0", json={"sku": "tea"}, headers=sent)
        below = client.post(
            "/inner/v2/orders/8", json={"sku": "tea"}, headers={**sent, "Idempotency-Key": "b"}
        )
        unknown = client.post("/orders/7", json={"sku": "tea"}, headers={"Idempotency-Key": "k"})
        listing = client.get("/orders/", headers={"x-account": "ann"})
    assert (wrong.status_code, other.status_code, unknown.status_code) == (422, 422, 401)
    assert (first.status_code, first.json()) == (201, {"id": 7, "sku": "tea"})
    assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
    assert (below.status_code, listing.json()) == (201, ["ann", "ann"])
    assert [str(one) for one in coverage(app)] == [
        "POST /inner/v2/orders/hooks/{name}: exempt",
        "POST /inner/v2/orders/{shelf}: leased, required",
        "POST /orders/hooks/{name}: exempt",
        "POST /orders/{shelf}: leased, required",
    ]


def test_misuse_is_a_sentence(idempotency: Idempotency) -> None:
    wrong: Any = "phased"
    with pytest.raises(ConfigurationError, match="not 'phased'"):
        guarded(idempotency, wrong)
    router = APIRouter(route_class=guarded(idempotency, "atomic"))
    with pytest.raises(ConfigurationError, match="Give each its own route"):
        router.api_route("/x", methods=["POST", "PUT"])(lambda: None)
    with pytest.raises(ConfigurationError, match="takes a FastAPI application"):
        install(wrong, idempotency, tenant=by_state("account"))
