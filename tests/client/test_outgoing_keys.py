"""Calls to a provider: without a key, several of them, and where each provider wants it."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.states import State
from samekey.outgoing import (
    ADYEN,
    PAYPAL,
    SQUARE,
    STRIPE,
    STRIPE_V2,
    Outgoing,
    Patience,
    Profile,
    step,
)
from samekey.outgoing.httpx2 import AsyncProviderTransport, ProviderTransport
from samekey.tenants import single_tenant

from .calls import (
    MADE,
    Service,
    by_httpx2,
    by_requests,
    leased,
    post_async,
    sent_key,
)
from .scripted import Say, scripted

# --- without a key


@pytest.fixture
def heard(idempotency: Idempotency) -> list[str]:
    reasons: list[str] = []

    def hear(event: Any) -> None:
        if event.name == "outgoing.keyless":
            reasons.append(event.facts["reason"])

    idempotency.events.subscribe(hear)
    return reasons


def test_a_handler_that_forgets_its_providers_key_is_reported(
    idempotency: Idempotency, heard: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    outgoing = Outgoing(STRIPE, keys="check", events=idempotency.events)
    with scripted(MADE) as server:
        with caplog.at_level(logging.ERROR, "samekey"):
            assert leased(idempotency, server.url, outgoing).post().status_code == 201
        assert heard == ["forgotten"] and "without Idempotency-Key" in caplog.text
        assert server.seen[0].key is not None  # and added all the same
        strict = replace(outgoing, strict=True)

        @idempotency.leased
        async def forgetful(_request: Any) -> JSONResponse:
            await post_async(server.url, strict, {})
            return JSONResponse({}, 201)

        assert Service(idempotency, forgetful).post("other").status_code == 503
    assert len(server.seen) == 1 and heard == ["forgotten", "forgotten"]


def test_a_key_that_the_handler_has_asked_for_itself_has_the_id(idempotency: Idempotency) -> None:
    @idempotency.leased
    async def careful(_request: Any) -> JSONResponse:
        operation = current_operation()
        operation.source = "stripe"
        key = {"Idempotency-Key": operation.downstream_key("pay")}
        async with httpx2.AsyncClient(transport=AsyncProviderTransport(Outgoing(STRIPE))) as client:
            await client.post(server.url, json={}, headers=key)
        return JSONResponse({}, 201)

    with scripted(MADE) as server:
        service = Service(idempotency, careful)
        assert service.post().status_code == 201
    record = idempotency.find(provider_id="ch_1", tenant="single", source="stripe")
    assert record is not None and sent_key(server) == record.downstream_key("pay")
    assert service.record(sent_key(server)) == record


def test_a_key_in_the_body_is_seen_outside_an_operation_too(
    idempotency: Idempotency, heard: list[str]
) -> None:
    outgoing = Outgoing(SQUARE, strict=True, events=idempotency.events)
    with scripted(MADE) as server:
        for call in (by_httpx2, by_requests):
            assert call(server.url, outgoing, {"idempotency_key": "mine"}).status_code == 200
    assert heard == [] and len(server.seen) == 2


def test_a_handler_that_remembers_it_is_not(idempotency: Idempotency, heard: list[str]) -> None:
    outgoing = Outgoing(STRIPE, keys="check", strict=True, events=idempotency.events)

    @idempotency.leased
    async def careful(_request: Any) -> JSONResponse:
        key = {"Idempotency-Key": current_operation().downstream_key()}
        async with httpx2.AsyncClient(transport=AsyncProviderTransport(outgoing)) as client:
            await client.post(server.url, json={}, headers=key)
        return JSONResponse({}, 201)

    with scripted(MADE) as server:
        service = Service(idempotency, careful)
        assert service.post().status_code == 201
    assert heard == [] and service.record(sent_key(server)).state is State.COMPLETED


@pytest.mark.parametrize("strict", [False, True])
def test_a_call_that_no_operation_can_be_seen_for_is_reported_or_refused(
    idempotency: Idempotency, heard: list[str], strict: bool
) -> None:
    outgoing = Outgoing(STRIPE, strict=strict, events=idempotency.events)

    @idempotency.leased
    async def elsewhere(_request: Any) -> JSONResponse:
        # run_in_executor does not take the context along, as asyncio.to_thread does
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(None, by_httpx2, server.url, outgoing, {})
        return JSONResponse({"status": answer.status_code}, 201)

    with scripted(MADE) as server:
        assert Service(idempotency, elsewhere).post().status_code == (503 if strict else 201)
    assert heard == ["no_operation"] and [one.key for one in server.seen] == ([] if strict else [None])


def test_a_call_inside_a_transaction_is_reported(idempotency: Idempotency, heard: list[str]) -> None:
    @idempotency.atomic
    async def mixed(_request: Any) -> JSONResponse:
        connection = current_operation().connection
        await connection.execute("create table t (x)")
        await connection.execute("insert into t values (1)")
        await post_async(server.url, Outgoing(STRIPE, events=idempotency.events), {})
        return JSONResponse({}, 201)

    with scripted(MADE) as server:
        assert Service(idempotency, mixed).post().status_code == 201
    assert heard == ["transaction"] and server.seen[0].key is not None


def test_a_question_needs_no_key(idempotency: Idempotency, heard: list[str]) -> None:
    outgoing = Outgoing(STRIPE, strict=True, events=idempotency.events)
    with scripted(Say(502)) as server, httpx2.Client(transport=ProviderTransport(outgoing)) as client:
        assert client.get(server.url).status_code == 502
    assert heard == [] and server.seen[0].key is None


# --- several calls


def test_two_different_calls_under_one_key_are_refused_and_steps_have_their_own(
    idempotency: Idempotency,
) -> None:
    outgoing = Outgoing(STRIPE)

    @idempotency.leased
    async def both(request: Any) -> JSONResponse:
        named = request.headers["x-named"] == "yes"
        ids = []
        for number, name in enumerate(("authorise", "capture")):
            with step(name if named else ""):
                answer = await post_async(f"{server.url}/{name}", outgoing, {"number": number})
                ids.append(answer.json()["id"])
        return JSONResponse(ids, 201)

    app = Starlette(routes=[Route("/charges", both, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    client = TestClient(app, raise_server_exceptions=False)
    with scripted(MADE, Say(200, b'{"id": "ch_2"}'), Say(200, b'{"id": "ch_3"}')) as server:
        refused = client.post("/charges", headers={"Idempotency-Key": "a", "X-Named": "no"})
        assert refused.json()["code"] == "outcome_unknown" and len(server.seen) == 1
        done = client.post("/charges", headers={"Idempotency-Key": "b", "X-Named": "yes"})
        assert done.json() == ["ch_2", "ch_3"] and len(server.keys) == 3
    for place, provider_id in ((1, "ch_2"), (2, "ch_3")):
        record = idempotency.find(provider_id=provider_id, tenant="single", source="stripe")
        assert record is not None
        assert record == idempotency.find(downstream_key=str(server.seen[place].key))


# --- providers, as they publish it


@pytest.mark.parametrize(
    ("profile", "header", "longest", "window"),
    [
        (STRIPE, "idempotency-key", 255, timedelta(hours=24)),
        (STRIPE_V2, "idempotency-key", 255, timedelta(days=30)),
        (ADYEN, "idempotency-key", 64, timedelta(days=7)),
        (PAYPAL, "paypal-request-id", 108, timedelta(hours=3)),
    ],
    ids=lambda one: one.name if isinstance(one, Profile) else "",
)
def test_a_key_stands_where_the_provider_wants_it_and_is_no_longer_than_it_takes(
    idempotency: Idempotency, profile: Profile, header: str, longest: int, window: timedelta
) -> None:
    with scripted(MADE) as server:
        leased(idempotency, server.url, Outgoing(profile, provider_id="/id")).post()
    sent = server.seen[0].headers[header]
    record = idempotency.find(provider_id="ch_1", tenant="single", source=profile.name)
    assert record is not None and sent == profile.sent_key(record.downstream_key())
    assert 30 < len(sent) <= longest and profile.window == window


def test_squares_key_stands_in_the_body(idempotency: Idempotency) -> None:
    with scripted(Say(200, b'{"payment": {"id": "sq_1"}}')) as server:
        leased(idempotency, server.url, Outgoing(SQUARE)).post()
    record = idempotency.find(provider_id="sq_1", tenant="single", source="square")
    assert record is not None and server.seen[0].key is None
    body = json.loads(server.seen[0].body)
    assert body == {"amount": 450, "idempotency_key": SQUARE.sent_key(record.downstream_key())}
    assert len(body["idempotency_key"]) == 45


def test_adyens_own_words_for_in_progress(idempotency: Idempotency) -> None:
    outgoing = Outgoing(ADYEN, patience=Patience(deadline=timedelta(seconds=20)))
    busy = Say(422, b'{"errorCode": "704"}', (("transient-error", "true"),))
    with scripted(busy, Say(200, b'{"pspReference": "psp_1"}')) as server:
        assert leased(idempotency, server.url, outgoing).post().status_code == 201
    assert idempotency.find(provider_id="psp_1", tenant="single", source="adyen") is not None


def test_the_id_may_be_found_by_a_function_and_a_wrong_pointer_is_said_at_once(
    idempotency: Idempotency,
) -> None:
    with scripted(MADE) as server:
        outgoing = Outgoing(STRIPE, provider_id=lambda answer: json.loads(answer.body)["object"])
        leased(idempotency, server.url, outgoing).post()
    assert idempotency.find(provider_id="charge", tenant="single", source="stripe") is not None
    with pytest.raises(ValueError, match="JSON Pointer"):
        Outgoing(STRIPE, provider_id="id")
