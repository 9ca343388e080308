"""An answer that says no is none against a provider's yes that waits.

The yes came while the work was under way. Its own call went wrong, so it answers 402 or 422; it is the
provider who knows. The record is held, the yes settles it at once where the store keeps it, and every retry
gets the provider's truth.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import (
    AsyncPhasedOperation,
    Effect,
    Executed,
    Idempotency,
    Input,
    NotExecuted,
    Outcome,
    Resolution,
    Response,
    current_operation,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.core.states import State
from samekey.workers.completer import Completer
from samekey.workers.outbox import OutboxWorker
from tests.evidence.conftest import Node

YES = Executed(Response(201, {"id": "ch_1"}), "ch_1")


def serve(idempotency: Idempotency, handler: Any) -> Starlette:
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "acme")
    return app


def post(app: Starlette) -> tuple[int, Any]:
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.post("/pay", json={}, headers={"Idempotency-Key": "k"})
        return answer.status_code, answer.json()


async def tell(idempotency: Idempotency, evidence: Executed, key: str) -> Resolution:
    return await idempotency.resolve_async(
        evidence,
        source="cards",
        event_id="e1",
        tenant=None,
        occurred_at=datetime.now(UTC),
        verify=lambda: True,
        downstream_key=key,
    )


def retries_get_the_truth(node: Node, app: Starlette, keys: list[str]) -> None:
    if not node.idempotency.engine.drivers.dialect.startswith(("sqlite", "postgres", "mysql")):
        assert node.state("k") is State.UNKNOWN  # nothing is kept there but that it is not free
        assert node.tell(YES, "e2", downstream_key=keys[0]) is Resolution.RESOLVED
    assert post(app) == (201, {"id": "ch_1"})
    assert len(keys) == 1


async def a_yes_comes(node: Node) -> str:
    """While the handler runs; gives the key that it has sent."""
    operation = current_operation()
    operation.source = "cards"
    key = operation.downstream_key()
    assert await tell(node.idempotency, YES, key) in (Resolution.KEPT, Resolution.TOO_EARLY)
    return key


@pytest.mark.parametrize("status", [402, 422])
def test_a_handlers_no_is_held_and_the_yes_settles_it(node: Node, status: int) -> None:
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        return JSONResponse({"error": "the bank did not answer"}, status)

    app = serve(node.idempotency, node.idempotency.leased(pay))
    assert post(app)[0] in (201, 409)
    retries_get_the_truth(node, app, keys)


def test_a_no_that_is_too_large_to_keep_is_held_too(node: Node) -> None:
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        return JSONResponse({"error": "x" * 3_000_000}, 402)

    app = serve(node.idempotency, node.idempotency.leased(pay))
    post(app)
    retries_get_the_truth(node, app, keys)


def test_a_remembered_failure_is_held_too(node: Node) -> None:
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        raise RuntimeError("the bank did not answer")

    app = serve(node.idempotency, node.idempotency.leased(classify=lambda *_: Outcome.REMEMBER)(pay))
    with TestClient(app, raise_server_exceptions=False) as client:
        client.post("/pay", json={}, headers={"Idempotency-Key": "k"})
    retries_get_the_truth(node, app, keys)


def test_a_phased_functions_no_is_held_and_the_run_goes_on(sql_node: Node) -> None:
    node, charges = sql_node, list[str]()

    async def charge(effect: Effect) -> None:
        charges.append(effect.key)
        raise NotExecuted("the client library says that nothing was sent")

    @node.idempotency.phased("pay", version=1)
    async def pay(op: AsyncPhasedOperation, _: Input) -> Response:
        try:
            charged: Any = await op.effect("charge", charge, source="cards")
        except NotExecuted:
            said = await tell(node.idempotency, Executed({"id": "ch_1"}, "ch_1"), charges[0])
            assert said is Resolution.KEPT
            return Response(402, {"error": "not charged"})
        return Response(201, charged)

    app = serve(node.idempotency, pay)
    assert post(app)[0] == 409

    async def complete() -> int:
        try:
            return await Completer(node.idempotency.engine).run_once()
        finally:
            await node.idempotency.engine.drivers.aio.close()

    asyncio.run(complete())
    assert post(app) == (201, {"id": "ch_1"})
    assert len(charges) == 1


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_jobs_no_is_held_and_the_yes_settles_it(sql_node: Node, is_async: bool) -> None:
    node, keys = sql_node, list[str]()
    idempotency = node.idempotency

    @idempotency.deferred
    async def order(_: Request) -> JSONResponse:
        await current_operation().enqueue("charge", {})
        return JSONResponse({}, 202)

    def no(job: Any) -> Response:
        keys.append(job.key)
        assert node.tell(YES, downstream_key=keys[0]) is Resolution.KEPT
        return Response(402, {"error": "the bank did not answer"})

    async def charge(job: Any, _: Any) -> Response:
        return await asyncio.to_thread(no, job)

    def charge_sync(job: Any, _: Any) -> Response:
        return no(job)

    idempotency.job("charge", source="cards")(charge if is_async else charge_sync)
    app = serve(idempotency, order)
    assert post(app)[0] == 202

    async def work() -> None:
        try:
            worker = OutboxWorker(idempotency.engine)
            await worker.run_once()
            await worker.drain()
        finally:
            await idempotency.engine.drivers.aio.close()

    asyncio.run(work())
    assert node.state("k") is State.COMPLETED
    assert post(app) == (201, {"id": "ch_1"})
    assert len(keys) == 1
