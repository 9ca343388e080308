"""Every event is told in every mode, whoever moved the record; and what went wrong is a warning that can be
searched: name, operation and attempt, as attributes of the log record too."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, NotExecuted, OutcomeUnknown, current_operation, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.drivers.run import run
from samekey.tenants import single_tenant
from samekey.workers.outbox import OutboxWorker


class Shop:
    """A service whose handlers do as they are told, and the events that it tells."""

    def __init__(self, url: str) -> None:
        self.idempotency = Idempotency(url, policy=ietf(lease=30))
        self.idempotency.migrate()
        self.sql("create table sold (n integer)")
        self.events: list[tuple[str, dict[str, str]]] = []
        self.idempotency.events.subscribe(lambda event: self.events.append((event.name, event.facts)))

        async def work(request: Request) -> JSONResponse:
            if request.url.path == "/atomic":
                await current_operation().connection.execute("insert into sold values (1)")
            return JSONResponse({}, 201)

        idempotency = self.idempotency
        routes = [
            Route("/atomic", idempotency.atomic(work), methods=["POST"]),
            Route("/leased", idempotency.leased(work), methods=["POST"]),
        ]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
        self.client = TestClient(app, raise_server_exceptions=False)

    def post(self, path: str) -> int:
        return int(self.client.post(path, headers={"Idempotency-Key": "k"}).status_code)

    def counted(self) -> Counter[str]:
        found = Counter(name for name, _ in self.events if name not in ("operation.finished", "request"))
        self.events.clear()
        return found

    def sql(self, text: str) -> None:
        url = self.idempotency.engine.url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(text.encode())


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    made = Shop(postgres_url)
    with made.client:
        yield made
    made.idempotency.close()


def test_a_retry_that_ends_a_lease_tells_what_the_sweeper_would(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    assert shop.post("/leased") == 201
    shop.sql(
        "update samekey.keys set state = 'in_progress', locked_until = 1, answer_status = null,"
        " answer_headers = null, answer_body = null, completed_at = null"
    )
    shop.counted()
    assert shop.post("/leased") == 409
    assert shop.counted() == {"zombie_key": 1, "reconcile.scheduled": 1, "reserve.unknown": 1}
    [line] = [record for record in caplog.records if "ran out" in record.message]
    assert line.levelno == logging.WARNING and line.samekey_attempt == 1  # type: ignore[attr-defined]
    assert line.samekey_operation in line.message  # type: ignore[attr-defined]
    assert shop.post("/leased") == 409
    assert shop.counted() == {"reserve.unknown": 1}, "it is told once"


def test_atomic_work_that_is_reused_or_tried_again_is_counted_on_postgresql(shop: Shop) -> None:
    assert shop.post("/atomic") == 201
    shop.sql("update samekey.keys set expires_at = 1")
    shop.counted()
    assert shop.post("/atomic") == 201
    assert shop.counted() == {"reserve.reused": 1}
    shop.sql(
        "update samekey.keys set state = 'failed_retryable', answer_status = null, answer_headers = null,"
        " answer_body = null, completed_at = null"
    )
    assert shop.post("/atomic") == 201
    assert shop.counted() == {"reserve.failed_retry": 1}


# ------------------------------------------------------------------ phased


def phased(sqlite_url: str, raises: BaseException, max_attempts: int) -> tuple[Idempotency, list[Any], Any]:
    idempotency, told = Idempotency(sqlite_url), []
    idempotency.events.subscribe(lambda event: told.append((event.name, event.facts)))

    @idempotency.phased("ride", max_attempts=max_attempts)
    async def ride(op: Any, given: Any) -> Any:
        async def book(effect: Any) -> int:
            return 1

        async def call(effect: Any) -> None:
            raise raises

        if isinstance(raises, NotExecuted):
            await op.effect("book", book)  # from here on it goes on, and does not begin anew
        await op.effect("charge", call)

    app = Starlette(routes=[Route("/rides", ride, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return idempotency, told, TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("raises", "state", "event"),
    [
        (OutcomeUnknown("?"), "unknown", "reconcile.scheduled"),
        (NotExecuted("no"), "dead_letter", "dead_letter"),
    ],
)
def test_phased_work_that_nobody_can_tell_of_or_that_is_given_up_is_told(
    sqlite_url: str, raises: BaseException, state: str, event: str
) -> None:
    idempotency, told, client = phased(sqlite_url, raises, max_attempts=1)
    with client:
        client.post("/rides", json={}, headers={"Idempotency-Key": "k"})
    finding, driver = idempotency.engine.store.finding, idempotency.engine.drivers.sync
    [record] = run(driver, lambda: finding.find(limit=1))
    assert record.state == state
    assert [name for name, _ in told].count(event) == 1
    assert [facts["outcome"] for name, facts in told if name == "operation.finished"] == ["unknown"]


# ------------------------------------------------------------------ jobs


def test_a_job_that_fails_is_a_warning_with_its_name_operation_and_attempt(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = Idempotency(sqlite_url)

    @idempotency.job("settle", max_attempts=2)
    async def settle(job: Any, payload: Any) -> None:
        raise ConnectionError("the bank is away")

    @idempotency.deferred
    async def accept(request: Request) -> JSONResponse:
        await current_operation().enqueue("settle", {})
        return JSONResponse({}, 202)

    app = Starlette(routes=[Route("/transfers", accept, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    with TestClient(app) as client:
        assert client.post("/transfers", headers={"Idempotency-Key": "k"}).status_code == 202

    async def work() -> None:
        worker = OutboxWorker(idempotency.engine)
        await worker.run_once()
        await idempotency.aclose()

    asyncio.run(work())
    [line] = [record for record in caplog.records if "failed (attempt 1 of 2)" in record.message]
    assert line.levelno == logging.WARNING
    facts: dict[str, Any] = vars(line)
    assert (facts["samekey_job_name"], facts["samekey_attempt"]) == ("settle", 1)
    assert facts["samekey_operation"] in line.message and facts["samekey_job"] in line.message
