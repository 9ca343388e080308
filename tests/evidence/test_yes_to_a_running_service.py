"""A provider's yes against what the service itself believes: through real requests, nothing is sent twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import (
    NOT_FOUND,
    Backoff,
    Executed,
    Idempotency,
    NotExecuted,
    Resolution,
    Response,
    current_operation,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Program, Statement
from tests.evidence.conftest import HOUR, Node

AT_ONCE = Backoff(first=timedelta(0))
Charge = Callable[[Any], Awaitable[Any]]


def client_of(idempotency: Idempotency, handler: Any) -> TestClient:
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda scope: "acme")
    return TestClient(app, raise_server_exceptions=False)


def post(client: TestClient) -> Any:
    return client.post("/pay", json={}, headers={"Idempotency-Key": "k"})


async def told(node: Node, **named: str) -> Resolution:
    return await node.idempotency.resolve_async(
        Executed({"id": "ch_1"}, "ch_1"),
        source="cards",
        event_id="e1",
        tenant="acme",
        occurred_at=datetime.now(UTC),
        verify=lambda: True,
        **named,
    )


def phased(node: Node, charge: Charge, *, quoted: bool = False, **effect: Any) -> TestClient:
    async def quote(effect: Any) -> dict[str, int]:
        return {"price": 1}

    @node.idempotency.phased("pay", version=1, backoff=AT_ONCE)
    async def pay(op: Any, input: Any) -> Response:
        if quoted:
            await op.effect("quote", quote, source="cards")
        return Response(201, await op.effect("charge", charge, source="cards", **effect))

    return client_of(node.idempotency, pay)


def age_intents(node: Node) -> None:
    """As if they had been meant an hour ago: a lookup that finds nothing is believed."""
    queries = node.idempotency.engine.queries
    aged = queries.build("aged", f"update {{phases}} set intent_at = intent_at - {HOUR}")

    def program() -> Program[None]:
        yield Statement(aged, {})

    node.run(program)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_call_that_says_that_nothing_happened(sql_node: Node, quoted: bool) -> None:
    """The webhook came while it ran, and says that it did: its word is the result."""
    calls: list[str] = []

    async def charge(effect: Any) -> Any:
        calls.append(effect.key)
        assert await told(sql_node, downstream_key=effect.key) is Resolution.KEPT
        raise NotExecuted("the client library thought that nothing was sent")

    with phased(sql_node, charge, quoted=quoted) as client:
        assert post(client).status_code == 409, "no answer is made of an error that a provider contradicts"
        got = post(client)
    assert (got.status_code, got.json()) == (201, {"id": "ch_1"})
    assert len(calls) == 1


def test_a_function_may_not_answer_for_an_error_that_the_provider_contradicts(sql_node: Node) -> None:
    calls: list[str] = []

    async def charge(effect: Any) -> Any:
        calls.append(effect.key)
        assert await told(sql_node, downstream_key=effect.key) is Resolution.KEPT
        raise NotExecuted("nothing was sent")

    @sql_node.idempotency.phased("pay", version=1, backoff=AT_ONCE)
    async def pay(op: Any, input: Any) -> Response:
        try:
            return Response(201, await op.effect("charge", charge, source="cards"))
        except NotExecuted:
            return Response(422, {"error": "no money was moved"})

    with client_of(sql_node.idempotency, pay) as client:
        assert post(client).status_code == 409
        assert post(client).status_code == 201
    assert len(calls) == 1


def test_a_word_that_names_the_operation_alone(sql_node: Node) -> None:
    calls: list[str] = []

    async def charge(effect: Any) -> Any:
        calls.append(effect.key)
        operation_id = sql_node.record("k").id
        assert await told(sql_node, operation_id=operation_id) is Resolution.KEPT
        raise ConnectionResetError("charged, and the answer was lost")

    async def lookup(effect: Any) -> Any:
        return NOT_FOUND

    with phased(sql_node, charge, lookup=lookup) as client:
        assert post(client).status_code == 409
        age_intents(sql_node)
        assert post(client).json() == {"id": "ch_1"}
    assert len(calls) == 1


def test_a_word_that_comes_while_the_lookup_is_under_way(sql_node: Node) -> None:
    """The lookup began before, and finds nothing."""
    calls: list[str] = []

    async def charge(effect: Any) -> Any:
        calls.append(effect.key)
        raise ConnectionResetError("charged, and the answer was lost")

    async def lookup(effect: Any) -> Any:
        assert await told(sql_node, downstream_key=effect.key) is Resolution.KEPT
        return NOT_FOUND

    with phased(sql_node, charge, lookup=lookup) as client:
        assert post(client).status_code == 409
        age_intents(sql_node)
        assert post(client).json() == {"id": "ch_1"}
    assert len(calls) == 1


@pytest.mark.parametrize("mode", ["leased", "phased", "deferred"])
def test_a_route_that_is_declared_in_another_mode_meanwhile(sql_node: Node, mode: str) -> None:
    calls: list[str] = []
    idempotency = sql_node.idempotency

    @idempotency.leased
    async def pay(request: Request) -> JSONResponse:
        operation = current_operation()
        operation.source = "cards"
        calls.append("leased")
        paid = Executed(Response(201, {"id": "ch_1"}))
        resolution = await idempotency.resolve_async(
            paid,
            source="cards",
            event_id="e1",
            tenant="acme",
            occurred_at=datetime.now(UTC),
            verify=lambda: True,
            downstream_key=operation.downstream_key(),
        )
        assert resolution is Resolution.KEPT
        raise NotExecuted("the client library thought that nothing was sent")

    with client_of(idempotency, pay) as client:
        assert post(client).status_code == 503
    later = Node(sql_node.url)

    async def charge(effect: Any) -> Any:
        calls.append("phased")
        return {}

    @later.idempotency.job("charge")
    async def job(job: Any, payload: Any) -> Response:
        calls.append("job")
        return Response(201, {})

    @later.idempotency.leased
    async def leased(request: Request) -> JSONResponse:
        calls.append("leased again")
        return JSONResponse({}, status_code=201)

    @later.idempotency.phased("pay", version=1)
    async def in_phases(op: Any, input: Any) -> Response:
        return Response(201, await op.effect("charge", charge))

    @later.idempotency.deferred
    async def deferred(request: Request) -> JSONResponse:
        await current_operation().enqueue("charge", {})
        return JSONResponse({}, status_code=202)

    handler = {"leased": leased, "phased": in_phases, "deferred": deferred}[mode]
    with client_of(later.idempotency, handler) as client:
        got = post(client)
    # Told at once where the request itself can settle it; else once the reconciler has been by.
    assert got.status_code == (409 if mode == "deferred" else 201)
    assert sql_node.record("k").state == ("unknown" if mode == "deferred" else "completed")
    assert calls == ["leased"]
    later.close()
