"""The store is lost when a leased handler has ended: who gets its answer, and who has to ask again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from lab.processes import wait_until
from samekey import Idempotency, StoreUnavailable
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Row, Statement
from samekey.tenants import single_tenant
from tests.chosen import stores


class Lost:
    """A driver that cannot record an answer while its store is away."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.away = False

    def execute(self, statement: Statement) -> Sequence[Row]:
        if self.away and statement.name == "complete":
            raise StoreUnavailable("away")
        rows: Sequence[Row] = self._driver.execute(statement)
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


@pytest.mark.parametrize("repeatable", [True, False], ids=["repeatable", "leased"])
@pytest.mark.parametrize("store", stores("sqlite_url", "postgres_url", first=1))
def test_only_an_answer_that_stays_is_told(
    repeatable: bool, store: str, request: pytest.FixtureRequest
) -> None:
    idempotency = Idempotency(request.getfixturevalue(store))
    idempotency.migrate()
    engine = idempotency.engine
    lost = Lost(engine.drivers.sync)
    engine.drivers = replace(engine.drivers, sync=lost)
    engine.keeper._late._driver = lost
    ran = list[int]()

    def pay(_request: Request) -> JSONResponse:
        ran.append(1)
        lost.away = len(ran) == 1
        return JSONResponse({"run": len(ran)}, 201)

    guarded = idempotency.leased(repeatable=repeatable)(pay)
    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/pay", guarded, methods=["POST"])]),
        idempotency=idempotency,
        tenant=single_tenant("acme"),
    )
    with TestClient(app) as client:
        first = client.post("/pay", headers={"Idempotency-Key": "k"})
        lost.away = False
        wait_until(lambda: not (engine.keeper._late._items or engine.keeper._late._trying))
        again = client.post("/pay", headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (201, {"run": 1}) and len(ran) == 1
    if repeatable:
        assert first.status_code == 503 and int(first.headers["Retry-After"]) >= 1, first.text
        assert "may be done again" in first.text
    else:
        assert (first.status_code, first.json()) == (201, {"run": 1}), "a retry cannot get another one"
