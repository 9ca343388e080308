"""An answer that says no, and a provider's yes that came while the work was under way.

Where the handler knew of what the yes tells (it has noted the provider's id, or went on to another step), its
answer stands: it may have given the money back. Where it did not know, one of the two is wrong, and neither
becomes the answer by itself: a lookup or a person looks at both.
"""

from __future__ import annotations

import asyncio
import threading
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
from samekey.errors import Contradicted
from samekey.stores.protocols import Actor
from samekey.workers.completer import Completer
from samekey.workers.outbox import OutboxWorker
from tests.evidence.conftest import Node
from tests.evidence.test_older_findings import look

SOMEBODY = Actor("somebody", "a test")
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


def somebody_must_look_at_both(node: Node, app: Starlette, keys: list[str]) -> None:
    """Nor does another yes decide it; a lookup does."""
    record = node.record("k")
    assert record.state is State.UNKNOWN
    assert str(record.error_code).startswith("answered_")
    node.tell(YES, "e2", downstream_key=keys[0])
    assert post(app)[0] == 409
    with pytest.raises(Contradicted):
        node.run(lambda: node.resolver.apply(record, NotExecuted, SOMEBODY))
    assert node.run(lambda: node.resolver.apply(record, YES, SOMEBODY))
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
def test_a_no_of_a_handler_that_did_not_know_is_held(node: Node, status: int) -> None:
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        return JSONResponse({"error": "the bank did not answer"}, status)

    app = serve(node.idempotency, node.idempotency.leased(pay))
    assert post(app)[0] == 409
    somebody_must_look_at_both(node, app, keys)


@pytest.mark.parametrize("status", [409, 500])
def test_the_answer_of_a_handler_that_knew_stands(node: Node, status: int) -> None:
    """It has charged, is sold out, and gave the money back."""
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        current_operation().provider_id = "ch_1"
        return JSONResponse({"error": "sold out"}, status)

    app = serve(node.idempotency, node.idempotency.leased(remember="everything")(pay))
    assert post(app) == (status, {"error": "sold out"})
    assert post(app) == (status, {"error": "sold out"})
    assert node.tell(YES, "e2", downstream_key=keys[0]) is Resolution.TOO_LATE
    assert len(keys) == 1
    if node.is_sql:
        look(node)
        assert node.shown("k") == []


def test_the_answer_about_a_later_step_stands(node: Node) -> None:
    """The authorisation is confirmed, the capture is declined: that is no contradiction."""

    async def pay(_: Request) -> JSONResponse:
        operation = current_operation()
        operation.source = "cards"
        said = await tell(node.idempotency, YES, operation.downstream_key("authorise"))
        assert said in (Resolution.KEPT, Resolution.TOO_EARLY)
        operation.downstream_key("capture")
        return JSONResponse({"error": "declined"}, 402)

    app = serve(node.idempotency, node.idempotency.leased(pay))
    assert post(app) == (402, {"error": "declined"})
    assert post(app) == (402, {"error": "declined"})


def test_what_another_attempt_may_have_made_is_not_known(node: Node) -> None:
    """The first attempt failed; the yes names no id, or another than that of the second."""
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        operation = current_operation()
        operation.source = "cards"
        keys.append(operation.downstream_key())
        if len(keys) == 1:
            raise NotExecuted
        said = await tell(node.idempotency, YES, keys[0])
        assert said in (Resolution.KEPT, Resolution.TOO_EARLY)
        operation.provider_id = "ch_2"
        return JSONResponse({"error": "declined"}, 402)

    app = serve(node.idempotency, node.idempotency.leased(pay))
    post(app)
    assert post(app)[0] == 409
    assert node.state("k") is State.UNKNOWN


def test_a_no_that_is_too_large_to_keep_is_held_too(node: Node) -> None:
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        return JSONResponse({"error": "x" * 3_000_000}, 402)

    app = serve(node.idempotency, node.idempotency.leased(pay))
    post(app)
    somebody_must_look_at_both(node, app, keys)


def test_a_remembered_failure_is_held_too(node: Node) -> None:
    keys: list[str] = []

    async def pay(_: Request) -> JSONResponse:
        keys.append(await a_yes_comes(node))
        raise RuntimeError("the bank did not answer")

    app = serve(node.idempotency, node.idempotency.leased(classify=lambda *_: Outcome.REMEMBER)(pay))
    with TestClient(app, raise_server_exceptions=False) as client:
        client.post("/pay", json={}, headers={"Idempotency-Key": "k"})
    somebody_must_look_at_both(node, app, keys)


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
@pytest.mark.parametrize("knows", [False, True], ids=["did not know", "knew"])
def test_the_no_of_a_job(sql_node: Node, is_async: bool, knows: bool) -> None:
    node, keys = sql_node, list[str]()
    idempotency = node.idempotency

    @idempotency.deferred
    async def order(_: Request) -> JSONResponse:
        await current_operation().enqueue("charge", {})
        return JSONResponse({}, 202)

    def no(job: Any) -> Response:
        keys.append(job.key)
        assert node.tell(YES, downstream_key=keys[0]) is Resolution.KEPT
        if knows:
            job.provider_id = "ch_1"
        return Response(402, {"error": "the bank did not answer"})

    async def charge(job: Any, _: Any) -> Response:
        return await asyncio.to_thread(no, job)

    def charge_sync(job: Any, _: Any) -> Response:
        return no(job)

    idempotency.job("charge", source="cards")(charge if is_async else charge_sync)
    app = serve(idempotency, order)
    assert post(app)[0] == 202

    work(idempotency)
    assert len(keys) == 1
    if knows:
        assert post(app) == (402, {"error": "the bank did not answer"})
        return
    assert node.record("k").error_code == "answered_402"
    assert node.state("k") is State.DEAD_LETTER
    node.tell(YES, "e2", downstream_key=keys[0])
    assert node.state("k") is State.DEAD_LETTER
    assert post(app)[0] == 409


def work(idempotency: Idempotency) -> None:
    async def working() -> None:
        try:
            worker = OutboxWorker(idempotency.engine)
            await worker.run_once()
            await worker.drain()
        finally:
            await idempotency.engine.drivers.aio.close()

    asyncio.run(working())


def test_a_yes_about_another_job_contradicts_no_answer(sql_node: Node) -> None:
    node, idempotency = sql_node, sql_node.idempotency
    told = threading.Event()

    @idempotency.deferred
    async def order(_: Request) -> JSONResponse:
        await current_operation().enqueue("charge", {})
        await current_operation().enqueue("deposit", {})
        return JSONResponse({}, 202)

    @idempotency.job("deposit", source="cards")
    def deposit(job: Any, _: Any) -> None:
        assert node.tell(YES, downstream_key=job.key) is Resolution.KEPT
        told.set()

    @idempotency.job("charge", source="cards")
    def charge(_: Any, __: Any) -> Response:
        assert told.wait(20)
        return Response(402, {"error": "declined"})

    app = serve(idempotency, order)
    assert post(app)[0] == 202
    work(idempotency)
    assert post(app) == (402, {"error": "declined"})
