"""Two applications may share one ``Idempotency``: the end of the one leaves what the other does alone."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lab.processes import wait_until
from samekey import Idempotency, Policy
from samekey.asgi import IdempotencyMiddleware
from tests.chosen import stores

LEASE = 60.0
"""Seconds. Renewed far more often than it would have to be, so that a test need not wait for it."""


@pytest.mark.parametrize("store", stores("sqlite", "postgres", first=1))
def test_an_application_that_ends_leaves_the_leases_of_another_alone(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samekey.engine.keeper.BEATS_PER_LEASE", 200)
    url = request.getfixturevalue(f"{store}_url")
    idempotency = Idempotency(url, policy=Policy(lease=timedelta(seconds=LEASE)))
    idempotency.migrate()
    runs, may_end = [], threading.Event()

    def application() -> Any:
        app = FastAPI()
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _scope: "acme")

        @app.post("/pay")
        @idempotency.leased
        def pay() -> dict[str, int]:
            runs.append(1)
            may_end.wait(60)
            return {"runs": len(runs)}

        return app

    def post(client: TestClient) -> Any:
        return client.post("/pay", headers={"Idempotency-Key": "payment-1"})

    keeper = idempotency.engine.keeper
    with TestClient(application()) as living:
        answers: list[Any] = []
        first = threading.Thread(target=lambda: answers.append(post(living)))
        first.start()
        try:
            (watch,) = wait_until(lambda: list(keeper._watched.values()))
            with TestClient(application()):
                pass  # the other one's lifespan ends, and closes the engine
            heard = watch.heard
            wait_until(lambda: watch.heard > heard + 1)
            assert post(living).json()["code"] == "in_progress"
        finally:
            may_end.set()
            first.join(60)
        assert answers[0].status_code == 200
        assert post(living).json() == {"runs": 1}
