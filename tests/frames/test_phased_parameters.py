"""Phased functions that are given more than the body: it is stored, for runs without a request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from litestar import Litestar, post
from litestar.params import FromPath, JSONBody
from litestar.testing import TestClient as LitestarClient
from pydantic import BaseModel
from starlette.testclient import TestClient

from samekey import ConfigurationError, Idempotency, Input, NotExecuted, PhasedOperation
from samekey.fastapi import install
from samekey.flask import Samekey
from samekey.litestar import SamekeyPlugin
from samekey.tenants import single_tenant

ORDER = "00000000-0000-0000-0000-000000000007"


class Payment(BaseModel):
    cents: int


class Receipt(BaseModel):
    order: UUID
    cents: int


@pytest.fixture
def idempotency(tmp_path: Path) -> Iterator[Idempotency]:
    made = Idempotency(f"sqlite:///{tmp_path / 'phased.db'}")
    yield made
    made.close()


numbers = count(1)


def session() -> str:
    return f"session-{next(numbers)}"


def test_path_query_and_dependencies_are_those_of_the_first_request(idempotency: Idempotency) -> None:
    app, seen = FastAPI(), list[tuple[Any, ...]]()
    install(app, idempotency, tenant=single_tenant())

    @app.post("/orders/{order}/payments", status_code=201, response_model=Receipt)
    @idempotency.phased("pay")
    def pay(
        op: PhasedOperation,
        payment: Payment,
        order: UUID,
        session: Annotated[str, Depends(session)],
        gift: bool = False,
    ) -> Any:
        seen.append((order, gift, session))
        if len(seen) == 1:
            raise NotExecuted("the first run ends here")
        return {"order": order, "cents": payment.cents, "secret": session}

    with TestClient(app, raise_server_exceptions=False) as client:
        sent: dict[str, Any] = {"json": {"cents": 5}, "headers": {"Idempotency-Key": "k"}}
        path = f"/orders/{ORDER}/payments?gift=yes"
        assert client.post("/orders/nonsense/payments", **sent).status_code == 422
        first, again, replay = (client.post(path, **sent) for _ in range(3))
    assert (first.status_code, again.status_code) == (503, 201)
    assert again.json() == {"order": ORDER, "cents": 5}
    assert replay.headers["idempotent-replayed"] == "true"
    assert len(seen) == 2 and seen[0] == seen[1] == (UUID(ORDER), True, seen[0][2])


def test_in_flask_and_litestar(idempotency: Idempotency) -> None:
    app = Flask(__name__)
    Samekey(idempotency, app, tenant=single_tenant())

    @app.post("/orders/<int:order>/payments")
    @idempotency.phased("flask")
    def pay(op: PhasedOperation, input: Input, order: int) -> Any:
        return {"order": order, "cents": input.json()["cents"]}

    @post("/orders/{order:int}/payments", sync_to_thread=True)
    @idempotency.phased("litestar")
    def pay_there(op: PhasedOperation, data: JSONBody[Payment], order: FromPath[int]) -> Any:
        return {"order": order, "cents": data.cents}

    plugin = SamekeyPlugin(idempotency, tenant=single_tenant())
    sent: dict[str, Any] = {"json": {"cents": 5}, "headers": {"Idempotency-Key": "f"}}
    answers = [app.test_client().post("/orders/7/payments", **sent) for _ in range(2)]
    assert [one.get_json() for one in answers] == [{"order": 7, "cents": 5}] * 2
    sent["headers"] = {"Idempotency-Key": "l"}
    with LitestarClient(Litestar([pay_there], plugins=[plugin])) as client:
        others = [client.post("/orders/7/payments", **sent) for _ in range(2)]
    assert [one.json() for one in others] == [{"order": 7, "cents": 5}] * 2
    assert others[1].headers["idempotent-replayed"] == "true"


def test_what_cannot_be_stored_is_a_sentence_and_nothing_is_claimed(idempotency: Idempotency) -> None:
    app = FastAPI()
    install(app, idempotency, tenant=single_tenant())

    @app.post("/pay")
    @idempotency.phased("connected")
    def pay(op: PhasedOperation, payment: Payment, database: Annotated[Any, Depends(object)]) -> Any:
        return {}

    with TestClient(app) as client, pytest.raises(ConfigurationError, match="belongs into a phase"):
        client.post("/pay", json={"cents": 5}, headers={"Idempotency-Key": "k"})
    with pytest.raises(ConfigurationError, match="has a name"):
        idempotency.phased("many")(lambda op, input, *more: None)
