"""A key service that is away while something stored is to be read is an outage that passes: nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from samekey import Idempotency, StoreUnavailable, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from tests.chosen import stores


class KeyService:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self._fernet = Fernet(Fernet.generate_key())

    def encrypt(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decrypt(self, token: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return self._fernet.decrypt(token)


class Order(BaseModel):
    amount: int


def shop(idempotency: Idempotency, ran: list[str]) -> FastAPI:
    app = FastAPI()

    @app.post("/leased", status_code=201)
    @idempotency.leased
    async def leased() -> dict[str, int]:
        ran.append("leased")
        return {"paid": 1}

    @app.post("/atomic", status_code=201)
    @idempotency.atomic
    async def atomic() -> dict[str, int]:
        assert current_operation().connection is not None
        ran.append("atomic")
        return {"paid": 1}

    @app.post("/phased", status_code=201)
    @idempotency.phased("pay")
    async def phased(op: Any, order: Order) -> dict[str, int]:
        async def charge(_effect: Any) -> int:
            ran.append("phased")
            return order.amount

        return {"paid": await op.effect("charge", charge)}

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("acme"))
    return app


@pytest.mark.filterwarnings("ignore:The atomic handler")
@pytest.mark.parametrize("mode", ["leased", "atomic", "phased"])
@pytest.mark.parametrize("store", stores("sqlite_url", "postgres_url", "mariadb_url"))
@pytest.mark.parametrize(
    "error",
    [ConnectionError("away"), httpx.ReadTimeout("slow"), StoreUnavailable("asked too often")],
    ids=lambda error: type(error).__name__,
)
def test_a_replay_waits_for_it(
    mode: str, store: str, error: Exception, request: pytest.FixtureRequest
) -> None:
    service, ran = KeyService(), list[str]()
    idempotency = Idempotency(request.getfixturevalue(store), encryption=service)
    idempotency.migrate()
    with TestClient(shop(idempotency, ran), raise_server_exceptions=False) as client:

        def post() -> Any:
            return client.post(f"/{mode}", headers={"Idempotency-Key": "k"}, json={"amount": 1})

        first = post()
        service.error = error
        away = post()
        service.error = None
        back = post()
    assert (first.status_code, back.status_code, back.text) == (201, 201, first.text)
    assert away.status_code == 503 and away.json()["code"] == "store_unavailable", away.text
    assert int(away.headers["Retry-After"]) >= 1 and "cannot be read" in away.text
    assert back.headers["Idempotent-Replayed"] == "true" and ran == [mode]


@pytest.mark.parametrize("error", [ValueError("no key opens it"), KeyError("unknown key")])
def test_what_no_key_opens_stays_an_error(tmp_path: Path, error: Exception) -> None:
    service, ran = KeyService(), list[str]()
    idempotency = Idempotency(f"sqlite:///{tmp_path}/x.db", encryption=service)
    idempotency.migrate()
    with TestClient(shop(idempotency, ran), raise_server_exceptions=False) as client:
        client.post("/leased", headers={"Idempotency-Key": "k"})
        service.error = error
        away = client.post("/leased", headers={"Idempotency-Key": "k"})
    assert away.status_code == 500 and ran == ["leased"]


def test_once_can_be_asked_again(tmp_path: Path) -> None:
    service = KeyService()
    idempotency = Idempotency(f"sqlite:///{tmp_path}/x.db", encryption=service)
    idempotency.migrate()
    assert idempotency.once(tenant="t", key="k", run=lambda: 7, name="f") == 7
    service.error = TimeoutError()
    with pytest.raises(StoreUnavailable, match="decrypted just now"):
        idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"), name="f")
    service.error = None
    assert idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"), name="f") == 7
    idempotency.close()
