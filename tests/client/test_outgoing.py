"""Calls to a provider from inside an operation: the key of the step, and ends that the engine knows."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import httpx2
import pytest
import requests
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from lab.processes import free_port, wait_until
from samekey import AsyncPhasedOperation, Effect, Idempotency, Input, JobContext, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.record import Record
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
    ProviderUnclear,
    step,
)
from samekey.outgoing.httpx import ProviderTransport as OldTransport
from samekey.outgoing.httpx2 import AsyncProviderTransport, ProviderTransport
from samekey.outgoing.requests import ProviderAdapter
from samekey.tenants import single_tenant
from samekey.workers.outbox import OutboxWorker

from .scripted import Cut, Hang, Say, Scripted, problem, scripted

MADE = Say(200, b'{"id": "ch_1", "object": "charge"}')
Caller = Callable[[str, Outgoing, dict[str, Any]], Any]


def _httpx2(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    with httpx2.Client(transport=ProviderTransport(outgoing)) as client:
        return client.post(url, json=body)


def _httpx(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    with httpx.Client(transport=OldTransport(outgoing)) as client:
        return client.post(url, json=body)


def _async(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    return _async_post(url, outgoing, body)


async def _async_post(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    async with httpx2.AsyncClient(transport=AsyncProviderTransport(outgoing)) as client:
        return await client.post(url, json=body)


def _requests(url: str, outgoing: Outgoing, body: dict[str, Any]) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", ProviderAdapter(outgoing))
        return session.post(url, json=body)


@pytest.fixture
def idempotency(sqlite_url: str) -> Iterator[Idempotency]:
    made = Idempotency(sqlite_url)
    yield made
    made.close()


class Service:
    """One guarded handler, and what became of its operation."""

    def __init__(self, idempotency: Idempotency, handler: Any) -> None:
        app = Starlette(routes=[Route("/charges", handler, methods=["POST"])])
        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
        self._client = TestClient(app, raise_server_exceptions=False)
        self._idempotency = idempotency
        self.steps: dict[str, str | None] = {}
        """What a handler has told of its steps: the provider's ids."""

    def post(self, key: str = "k") -> Any:
        return self._client.post("/charges", headers={"Idempotency-Key": key}, json={"cents": 450})

    def record(self, key: str) -> Record:
        found = self._idempotency.find(downstream_key=key)
        assert found is not None
        return found


def leased(idempotency: Idempotency, url: str, outgoing: Outgoing, call: Caller = _async) -> Service:
    @idempotency.leased
    async def charge(_request: Any) -> JSONResponse:
        answer = call(url, outgoing, {"amount": 450})
        if call is _async:
            answer = await answer
        return JSONResponse({"status": answer.status_code}, 201)

    return Service(idempotency, charge)


def sent_key(server: Scripted) -> str:
    (key,) = server.keys
    assert key is not None
    return key


@pytest.mark.parametrize("call", [_httpx2, _async, _httpx, _requests], ids=lambda call: call.__name__)
def test_a_leased_call_carries_the_key_of_its_operation_and_notes_the_providers_id(
    idempotency: Idempotency, call: Caller
) -> None:
    with scripted(MADE) as server:
        service = leased(idempotency, f"{server.url}/v1/charges", Outgoing(STRIPE), call)
        first, again = service.post(), service.post()
    assert (first.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert len(server.seen) == 1
    record = service.record(sent_key(server))
    assert record.state is State.COMPLETED and sent_key(server) == record.downstream_key()
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") == record


@pytest.mark.parametrize("call", [_httpx2, _async, _requests], ids=lambda call: call.__name__)
@pytest.mark.parametrize(
    "said",
    [Cut(), Say(200, b"x" * 999, cut_body=True), Say(502), Say(504), Say(500), problem(409, "in_progress")],
    ids=["cut", "cut body", "502", "504", "500", "409 in progress"],
)
def test_what_leaves_open_whether_it_happened_is_unknown(
    idempotency: Idempotency, said: Any, call: Caller
) -> None:
    with scripted(said) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE), call)
        answers = [service.post().json()["code"] for _ in range(2)]
    assert answers == ["outcome_unknown", "outcome_unknown"] and len(server.seen) == 1
    assert service.record(sent_key(server)).state is State.UNKNOWN


def test_a_call_inside_before_effect_is_no_proof_that_nothing_happened(idempotency: Idempotency) -> None:
    @idempotency.leased
    async def hasty(_request: Any) -> JSONResponse:
        with current_operation().before_effect():
            await _async_post(server.url, Outgoing(STRIPE), {})
        return JSONResponse({}, 201)

    with scripted(Cut()) as server:
        service = Service(idempotency, hasty)
        assert [service.post().json()["code"] for _ in range(2)] == ["outcome_unknown"] * 2
    assert len(server.seen) == 1


def test_a_202_is_the_providers_answer(idempotency: Idempotency) -> None:
    accepted = Say(202, b'{"id": "ch_1"}', (("location", "/charges/ch_1"), ("retry-after", "1")))
    with scripted(accepted) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE))
        assert service.post().json() == {"status": 202}
    assert len(server.seen) == 1
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") is not None


def test_a_provider_that_says_nothing_is_unknown_when_the_time_is_over(idempotency: Idempotency) -> None:
    outgoing = Outgoing(STRIPE, patience=Patience(deadline=timedelta(seconds=1.5), attempts=1))
    with scripted(Hang()) as server:
        service = leased(idempotency, server.url, outgoing)
        assert service.post().json()["code"] == "outcome_unknown"


@pytest.mark.parametrize("call", [_httpx2, _async, _requests], ids=lambda call: call.__name__)
def test_what_never_left_frees_the_key(idempotency: Idempotency, call: Caller) -> None:
    service = leased(idempotency, f"http://127.0.0.1:{free_port()}", Outgoing(STRIPE), call)
    assert [service.post().status_code for _ in range(2)] == [503, 503]


def test_a_429_frees_the_key_and_the_next_one_is_sent_under_the_same(idempotency: Idempotency) -> None:
    with scripted(Say(429), MADE) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE))
        assert [service.post().status_code for _ in range(2)] == [503, 201]
    assert len(server.keys) == 1


@pytest.mark.parametrize("status", [400, 401, 402, 404])
def test_a_definite_answer_is_the_handlers(idempotency: Idempotency, status: int) -> None:
    with scripted(Say(status)) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE))
        assert service.post().json() == {"status": status}


def test_retries_within_the_deadline_settle_what_one_attempt_could_not(idempotency: Idempotency) -> None:
    outgoing = Outgoing(STRIPE, patience=Patience(deadline=timedelta(seconds=20)))
    with scripted(Cut(), Say(504), MADE) as server:
        assert leased(idempotency, server.url, outgoing).post().status_code == 201
    assert len(server.seen) == 3 and len(server.keys) == 1


def test_a_handlers_own_retry_that_never_leaves_proves_nothing_about_the_first(
    idempotency: Idempotency,
) -> None:
    @idempotency.leased
    async def charge(_request: Any) -> JSONResponse:
        async with httpx2.AsyncClient(transport=AsyncProviderTransport(Outgoing(STRIPE))) as client:
            url = f"http://127.0.0.1:{port}/"
            with pytest.raises(ProviderUnclear):
                await client.post(url, json={})
            closed.set()
            stopped.wait(10)
            await client.post(url, json={})
        raise AssertionError("unreachable")

    closed, stopped = threading.Event(), threading.Event()
    service = Service(idempotency, charge)
    with scripted(Cut()) as server:
        port = server.port

        def close_the_port() -> None:
            closed.wait(10)
            server.stop()
            stopped.set()

        threading.Thread(target=close_the_port).start()
        assert service.post().json()["code"] == "outcome_unknown"


def phased(idempotency: Idempotency, url: str, outgoing: Outgoing, **options: Any) -> Service:
    async def call(_effect: Effect) -> int:
        answer = await _async_post(url, outgoing, {"amount": 450})
        return int(answer.status_code)

    @idempotency.phased("charge", version=1)
    async def charge(op: AsyncPhasedOperation, _input: Input) -> Response:
        return Response(201, {"status": await op.effect("charged", call, source="stripe", **options)})

    return Service(idempotency, charge)


def test_a_phased_call_carries_the_key_of_its_effect(idempotency: Idempotency) -> None:
    with scripted(Cut(), MADE) as server:
        service = phased(idempotency, server.url, Outgoing(STRIPE), provider_window=timedelta(hours=24))
        assert service.post().status_code == 409
        wait_until(lambda: service.post().status_code == 201)  # it rests a moment before the next attempt
    assert len(server.seen) == 2
    record = service.record(sent_key(server))
    assert sent_key(server) == record.downstream_key("charged")
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") == record


def test_an_effect_that_trusts_a_key_for_longer_than_the_provider_is_refused(
    idempotency: Idempotency,
) -> None:
    with scripted(MADE) as server:
        service = phased(idempotency, server.url, Outgoing(STRIPE), provider_window=timedelta(hours=48))
        assert service.post().status_code >= 409
    assert server.seen == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async job", "sync job"])
def test_a_job_carries_its_key(idempotency: Idempotency, is_async: bool) -> None:
    outgoing = Outgoing(STRIPE)
    with scripted(Cut(), MADE) as server:
        if is_async:

            @idempotency.job("charge", source="stripe", max_attempts=5)
            async def charge(job: JobContext, _payload: Any) -> Response:
                answer = await _async_post(server.url, outgoing, {"amount": 450})
                return Response(201, {"charge": answer.json()["id"], "key": job.key})
        else:

            @idempotency.job("charge", source="stripe", max_attempts=5)
            def charge_sync(job: JobContext, _payload: Any) -> Response:
                answer = _httpx2(server.url, outgoing, {"amount": 450})
                return Response(201, {"charge": answer.json()["id"], "key": job.key})

        @idempotency.deferred
        async def accept(_request: Any) -> JSONResponse:
            await current_operation().enqueue("charge")
            return JSONResponse({}, 202)

        service = Service(idempotency, accept)
        assert service.post().status_code == 202
        _work(idempotency)
        _make_due(idempotency)
        _work(idempotency)
        answer = service.post()
    assert answer.json() == {"charge": "ch_1", "key": sent_key(server)} and len(server.seen) == 2
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") is not None


def _work(idempotency: Idempotency) -> None:
    async def once() -> None:
        worker = OutboxWorker(idempotency.engine)
        await worker.run_once()
        await worker.drain()

    asyncio.run(once())


def _make_due(idempotency: Idempotency) -> None:
    session = idempotency.engine.drivers.sync.open()
    session.connection.execute("update samekey_jobs set due_at = 0")
    session.commit()


class Old(JobContext):
    """A job at its second attempt, so old."""

    def __init__(self, age: float) -> None:
        self.key, self.age, self.attempts = "k", age, 2


def test_a_job_is_not_sent_again_when_the_provider_may_not_know_its_key_any_more() -> None:
    from samekey.engine.sending import sends

    with scripted(MADE) as server:
        with sends(Old(20 * 3600.0)):
            assert _httpx2(server.url, Outgoing(STRIPE), {}).status_code == 200
        with sends(Old(23 * 3600.0)), pytest.raises(ProviderUnclear, match="does not know its key"):
            _httpx2(server.url, Outgoing(STRIPE), {})
        with sends(Old(23 * 3600.0)):
            assert _httpx2(server.url, Outgoing(ADYEN), {}).status_code == 200
    assert len(server.seen) == 2


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
            await _async_post(server.url, strict, {})
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
        for call in (_httpx2, _requests):
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
        answer = await loop.run_in_executor(None, _httpx2, server.url, outgoing, {})
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
        await _async_post(server.url, Outgoing(STRIPE, events=idempotency.events), {})
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
                answer = await _async_post(f"{server.url}/{name}", outgoing, {"number": number})
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
