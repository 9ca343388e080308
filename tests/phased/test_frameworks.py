"""Phased operations behind real frameworks: FastAPI with a model, Starlette, Flask, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from flask import Flask, abort
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import AsyncPhasedOperation, Backoff, Idempotency, Input, PhasedOperation, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from samekey.workers.completer import Completer
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware
from tests.edges.wrong import problems
from tests.phased.world import end_lease, execute, kept, snapshot, state_of

AT_ONCE = Backoff(first=timedelta(0))


class RideRequest(BaseModel):
    """What does not survive a plain dump: aliases, dates, exact numbers, ids."""

    model_config = ConfigDict(extra="forbid")

    pick_up: str = Field(alias="pickUp", min_length=1)
    at: datetime
    cents: Decimal
    id: UUID
    note: str | None = None


class StrictRequest(RideRequest):
    """A date is no text here, except in JSON."""

    model_config = ConfigDict(strict=True)


class Secret(BaseModel):
    token: SecretStr


class Number(BaseModel):
    value: float


RIDE = {
    "pickUp": "Bern",
    "at": datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC).isoformat(),
    "cents": "12.30",
    "id": str(uuid4()),
}


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    made = Idempotency(url)
    yield made
    made.close()


def phase(_connection: Any, value: Any) -> Any:
    return value


def guarded(idempotency: Idempotency, app: Any) -> TestClient:
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("acme"))
    return TestClient(app, raise_server_exceptions=False)


def test_fastapi_with_a_model(idempotency: Idempotency) -> None:
    app, seen = FastAPI(), []

    @app.post("/cities/{city}/rides", status_code=201)
    @idempotency.phased("create_ride", backoff=AT_ONCE)
    async def create_ride(op: AsyncPhasedOperation, ride: RideRequest) -> Response:
        """Creates a ride."""
        seen.append(ride)
        await op.transaction("noted", phase, ride.pick_up)
        if op.attempts == 1:
            return Response(503)
        return Response(201, {"from": ride.pick_up, "city": op.params["city"], "tenant": op.tenant})

    with guarded(idempotency, app) as client:
        key = {"Idempotency-Key": "k1"}
        assert client.post("/cities/bern/rides", headers=key, json=RIDE).status_code == 503
        first = client.post("/cities/bern/rides", headers=key, json=RIDE)
        assert first.json() == {"from": "Bern", "city": "bern", "tenant": "acme"}
        again = client.post("/cities/bern/rides", headers=key, json=dict(reversed(RIDE.items())))
        assert (again.status_code, again.content) == (201, first.content)
        # A resumed attempt sees exactly what the first one saw.
        assert len(seen) == 2 and seen[0] == seen[1] == RideRequest.model_validate_json(
            seen[0].model_dump_json(by_alias=True)
        )
        assert seen[0].cents == Decimal("12.30") and isinstance(seen[0].id, UUID)
        assert kept(idempotency.engine.url) == {"inputs": 0, "phases": 0}

        # FastAPI refuses what does not fit, before any key is taken; and it documents the model.
        for bad in ({}, {**RIDE, "pickUp": ""}, {**RIDE, "more": 1}, [1]):
            refused = client.post("/cities/bern/rides", headers={"Idempotency-Key": "k2"}, json=bad)
            assert refused.status_code == 422, bad
        assert state_of(idempotency.engine.url, "k2") is None
        operation = client.get("/openapi.json").json()["paths"]["/cities/{city}/rides"]["post"]
        assert "RideRequest" in str(operation["requestBody"])
        assert operation["description"] == "Creates a ride."


class Ride(BaseModel):
    """What a client may see."""

    model_config = ConfigDict(populate_by_name=True)

    number: int = Field(alias="rideNumber")
    note: str | None = None


class Teapot(PlainTextResponse):
    media_type = "text/x-tea"

    def render(self, content: Any) -> bytes:
        return repr(sorted(content.items())).encode()


SECRET = {"number": 7, "card": "4242", "internal": True}


def shaped_app(idempotency: Idempotency, style: str, result: Any, **route: Any) -> FastAPI:
    app, router = FastAPI(), APIRouter(prefix="/v1")

    async def ride_async(op: AsyncPhasedOperation, input: Input) -> Any:
        await op.transaction("one", phase, 1)
        return result

    def ride(op: PhasedOperation, input: Input) -> Any:
        op.transaction("one", phase, 1)
        return result

    declare = idempotency.phased("ride", backoff=AT_ONCE)
    endpoint = declare(ride_async) if style == "async" else declare(ride)
    router.post("/rides", **route)(endpoint)
    app.include_router(router)
    return app


SHAPES: dict[str, tuple[Any, dict[str, Any], int, str, bytes]] = {
    "model": (
        SECRET,
        {"response_model": Ride, "status_code": 201},
        201,
        "application/json",
        b'{"rideNumber":7,"note":null}',
    ),
    "left out": (
        SECRET,
        {"response_model": Ride, "response_model_exclude_none": True, "response_model_by_alias": False},
        200,
        "application/json",
        b'{"number":7}',
    ),
    "status": ({"a": 1}, {"status_code": 202}, 202, "application/json", b'{"a": 1}'),
    "no content": (None, {"status_code": 204}, 204, "application/json", b""),
    "class": (
        SECRET,
        {"response_model": Ride, "response_class": Teapot},
        200,
        "text/x-tea; charset=utf-8",
        b"[('note', None), ('rideNumber', 7)]",
    ),
    "our response": (
        Response(203, SECRET, {"X-Ride": "7"}),
        {"response_model": Ride, "status_code": 201},
        203,
        "application/json",
        b'{"rideNumber":7,"note":null}',
    ),
    "an error": (
        Response(402, {"reason": "declined"}),
        {"response_model": Ride, "status_code": 201},
        402,
        "application/json",
        b'{"reason": "declined"}',
    ),
    "nothing said": ({"a": 1}, {}, 200, "application/json", b'{"a": 1}'),
}


@pytest.mark.parametrize("style", ["async", "sync"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fastapi_gives_its_shape_to_the_answer_and_no_field_leaks(
    idempotency: Idempotency, shape: str, style: str
) -> None:
    result, route, status, media, body = SHAPES[shape]
    app = shaped_app(idempotency, style, result, **route)
    with guarded(idempotency, app) as client:
        for number in range(2):
            got = client.post("/v1/rides", headers={"Idempotency-Key": "k1"}, json={})
            assert (got.status_code, got.content) == (status, body)
            assert status == 204 or got.headers["content-type"] == media
            assert ("idempotent-replayed" in got.headers) == (number == 1)
            assert got.headers.get("x-ride") == ("7" if shape == "our response" else None)


@pytest.mark.parametrize("learnt", ["at start-up", "by importing it"])
def test_the_completer_gives_the_same_shape_or_leaves_it_to_one_that_can(
    url: str, learnt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no request: it knows the routes of the application that it starts with, or has imported."""
    first = Idempotency(url)
    app = shaped_app(first, "sync", Response(503), response_model=Ride, status_code=201)
    with guarded(first, app) as client:
        assert client.post("/v1/rides", headers={"Idempotency-Key": "k1"}, json={}).status_code == 503
    end_lease(url, "k1")

    without = Idempotency(url)
    without.phased("ride")(lambda op, input: op.transaction("one", phase, 1) and SECRET)
    before = snapshot(url, "k1")
    assert asyncio.run(complete_once(without)) == 1
    assert snapshot(url, "k1") == before, "nothing was stored that the route would have left out"
    end_lease(url, "k1")

    second = Idempotency(url)
    app = shaped_app(second, "sync", SECRET, response_model=Ride, status_code=201)
    if learnt == "at start-up":
        assert problems(app, second.engine) == []
    else:
        monkeypatch.setitem(globals(), "app_of_a_worker", app)
    assert asyncio.run(complete_once(second)) == 1
    with guarded(second, app) as client:
        got = client.post("/v1/rides", headers={"Idempotency-Key": "k1"}, json={})
        assert (got.status_code, got.content) == (201, b'{"rideNumber":7,"note":null}')


async def complete_once(idempotency: Idempotency) -> int:
    try:
        return await Completer(idempotency.engine).run_once()
    finally:
        await idempotency.engine.drivers.aio.close()


def test_an_answer_that_does_not_fit_is_not_stored_and_nothing_runs_twice(idempotency: Idempotency) -> None:
    app = shaped_app(idempotency, "sync", {"card": "4242"}, response_model=Ride)
    with guarded(idempotency, app) as client:
        for _ in range(2):
            got = client.post("/v1/rides", headers={"Idempotency-Key": "k1"}, json={})
            assert got.status_code in (409, 500) and b"4242" not in got.content
    assert state_of(idempotency.engine.url, "k1") != "completed"


def test_fastapi_authenticates_before_anything_is_looked_up(idempotency: Idempotency) -> None:
    """Dependencies of the route run first, on replays too."""
    allowed: list[bool] = [True]

    def check() -> None:
        if not allowed[0]:
            raise HTTPException(401)

    app = FastAPI()

    @app.post("/rides", dependencies=[Depends(check)])
    @idempotency.phased("create_ride")
    async def create_ride(op: AsyncPhasedOperation, input: Input) -> dict[str, str]:
        return {"done": await op.transaction("done", phase, "yes")}

    with guarded(idempotency, app) as client:
        key = {"Idempotency-Key": "k1"}
        assert client.post("/rides", headers=key).json() == {"done": "yes"}
        allowed[0] = False
        assert client.post("/rides", headers=key).status_code == 401


def test_fastapi_runs_a_sync_function_in_a_thread(idempotency: Idempotency) -> None:
    app = FastAPI()

    @app.post("/rides")
    @idempotency.phased("create_ride")
    def create_ride(op: PhasedOperation, ride: RideRequest) -> Response:
        return Response(201, op.transaction("noted", phase, ride.pick_up))

    with guarded(idempotency, app) as client:
        sent = [client.post("/rides", headers={"Idempotency-Key": "k1"}, json=RIDE) for _ in range(2)]
        assert [(r.status_code, r.text) for r in sent] == [(201, "Bern")] * 2


def test_starlette_with_a_model(idempotency: Idempotency) -> None:
    """No framework validates it, so samekey does."""

    @idempotency.phased("create_ride")
    async def create_ride(op: AsyncPhasedOperation, ride: StrictRequest) -> Response:
        return Response(201, await op.transaction("noted", phase, [ride.pick_up, dict(op.params)]))

    routes = [Route("/rides/{number:int}/{id:uuid}/{share:float}", create_ride, methods=["POST"])]
    with guarded(idempotency, Starlette(routes=routes)) as client:
        path = f"/rides/7/{RIDE['id']}/0.5"
        got = client.post(path, headers={"Idempotency-Key": "k1"}, json=RIDE)
        assert got.json() == ["Bern", {"number": 7, "id": RIDE["id"], "share": 0.5}]
        for bad in (b"", b"{", b'{"pickUp": 5}', b"\xff"):
            refused = client.post(path, headers={"Idempotency-Key": "k2"}, content=bad)
            assert refused.status_code == 422 and "does not fit" in refused.json()["detail"]
        assert state_of(idempotency.engine.url, "k2") is None
        huge = client.post(
            f"/rides/7/{RIDE['id']}/{'9' * 400}.0", headers={"Idempotency-Key": "k3"}, json=RIDE
        )
        assert huge.json()[1]["share"] == "inf", "what cannot be stored as a number is kept as text"


@pytest.mark.parametrize(("model", "body"), [(Secret, b'{"token": "x"}'), (Number, b'{"value": NaN}')])
def test_a_model_that_does_not_survive_storage_is_refused_before_anything_runs(
    idempotency: Idempotency, model: Any, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []

    async def keep(_op: Any, input: Any) -> None:
        ran.append(input)

    keep.__annotations__["input"] = model
    endpoint = idempotency.phased("keep")(keep)
    with guarded(idempotency, Starlette(routes=[Route("/keep", endpoint, methods=["POST"])])) as client:
        refused = client.post("/keep", headers={"Idempotency-Key": "k1"}, content=body)
        assert refused.status_code == 422 and "cannot be kept" in refused.json()["detail"]
    assert not ran and state_of(idempotency.engine.url, "k1") is None
    assert "does not come back" in caplog.text


def test_flask_with_a_model_and_route_parameters(idempotency: Idempotency) -> None:
    app, seen = Flask(__name__), []

    @idempotency.phased("create_ride", backoff=AT_ONCE)
    def create_ride(op: PhasedOperation, ride: StrictRequest) -> Any:
        seen.append((ride, dict(op.params)))
        op.transaction("noted", phase, ride.pick_up)
        return Response(503 if op.attempts == 1 else 201, {"from": ride.pick_up})

    app.post("/cities/<city>/rides/<int:number>")(create_ride)
    app.wsgi_app = WSGIMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=idempotency, tenant=single_tenant("acme")
    )
    client, key = app.test_client(), {"Idempotency-Key": "k1"}
    sent = [client.post("/cities/bern/rides/7", headers=key, json=RIDE) for _ in range(3)]
    assert [r.status_code for r in sent] == [503, 201, 201]
    assert sent[2].data == sent[1].data and sent[2].headers["Idempotent-Replayed"] == "true"
    assert seen[0] == seen[1] and seen[0][1] == {"city": "bern", "number": 7}
    assert client.post("/cities/bern/rides/7", headers={"Idempotency-Key": "k2"}, data="{").status_code == 422


def test_an_annotation_that_is_only_there_for_type_checkers(idempotency: Idempotency) -> None:
    async def function(op: Any, input: Any) -> None: ...

    function.__annotations__["input"] = "samekey.Input"  # never imported under that name here
    idempotency.phased("one")(function)
    assert idempotency.engine.phases.definitions["one", 1].model is None


def test_a_dependency_by_annotation_is_not_a_model(idempotency: Idempotency) -> None:
    from samekey import ConfigurationError

    async def function(op: Any, input: Annotated[RideRequest, Depends()]) -> None: ...

    function.__annotations__["input"] = Annotated[RideRequest, Depends()]
    with pytest.raises(ConfigurationError, match="Pydantic model"):
        idempotency.phased("one")(function)


class OutOfStock(Exception):
    """An error of the application's own, which it makes a page of."""


def shop(idempotency: Idempotency, framework: str, refuse: list[Any], ran: list[str]) -> Any:
    """Reserves, may refuse by raising, then charges. Gives a function that posts."""

    def order(op: PhasedOperation, input: Input) -> Response:
        op.transaction("reserved", phase, 1)
        if refuse:
            refuse[0]()
        op.effect("charged", lambda _effect: ran.append("charge"))
        return Response(201, {"done": True})

    endpoint: Any = idempotency.phased("order", backoff=Backoff(first=timedelta(hours=1)))(order)
    key = {"Idempotency-Key": "k1"}
    if framework == "flask":
        flask = Flask(__name__)
        flask.post("/orders")(endpoint)
        flask.register_error_handler(OutOfStock, lambda _error: ({"reason": "sold out"}, 409))
        wrapped = WSGIMiddleware(flask.wsgi_app, idempotency=idempotency, tenant=single_tenant("acme"))
        flask.wsgi_app = wrapped  # type: ignore[method-assign]
        return lambda: flask.test_client().post("/orders", headers=key)
    app = FastAPI()
    app.post("/orders")(endpoint)
    app.add_exception_handler(OutOfStock, lambda *_: PlainTextResponse("sold out", 409))
    client = guarded(idempotency, app)
    return lambda: client.post("/orders", headers=key)


def raised(error: Exception) -> Any:
    def refuse() -> None:
        raise error

    return refuse


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_a_refusal_that_is_raised_after_a_phase_is_the_answer_and_nothing_goes_on(
    idempotency: Idempotency, framework: str
) -> None:
    ran: list[str] = []
    fastapi = raised(HTTPException(409, "sold out", {"x-why": "tea"}))
    refuse = [fastapi if framework == "fastapi" else lambda: abort(409, "sold out")]
    post = shop(idempotency, framework, refuse, ran)
    first = post()
    assert first.status_code == 409 and "sold out" in first.text
    refuse.clear()  # new stock comes in
    end_lease(idempotency.engine.url, "k1")
    assert asyncio.run(complete_once(idempotency)) == 0
    again = post()
    assert (again.status_code, again.text) == (409, first.text) and "idempotent-replayed" in again.headers
    assert framework == "flask" or again.headers["x-why"] == "tea"
    assert not ran, "nobody is charged who was told that there is nothing left"


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
@pytest.mark.parametrize("error", [OutOfStock(), HTTPException(503)])
def test_no_page_that_is_made_of_an_error_is_the_answer_of_what_goes_on(
    idempotency: Idempotency, framework: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    refuse = [raised(error)]
    post = shop(idempotency, framework, refuse, ran)
    for _ in range(2):
        got = post()
        told = got.get_json() if framework == "flask" else got.json()
        assert (got.status_code, told["code"]) == (409, "in_progress")
    assert "was left by an error" in caplog.text
    refuse.clear()
    end_lease(idempotency.engine.url, "k1")
    assert asyncio.run(complete_once(idempotency)) == 1
    assert post().status_code == 201 and ran == ["charge"]


def test_a_refusal_out_of_an_effect_is_no_proof_and_not_the_answer(idempotency: Idempotency) -> None:
    """The call may have been made before its function refused."""
    app = FastAPI()

    @app.post("/orders")
    @idempotency.phased("order")
    def order(op: PhasedOperation, input: Input) -> Response:
        op.effect("charged", lambda _effect: raised(HTTPException(402))())
        raise AssertionError("unreachable")

    with guarded(idempotency, app) as client:
        got = client.post("/orders", headers={"Idempotency-Key": "k1"})
        assert (got.status_code, got.json()["code"]) == (409, "outcome_unknown")
    assert state_of(idempotency.engine.url, "k1") == "unknown"


def test_the_input_survives_byte_for_byte(idempotency: Idempotency) -> None:
    seen: list[Input] = []

    @idempotency.phased("keep", backoff=AT_ONCE)
    async def keep(op: AsyncPhasedOperation, input: Input) -> Response:
        seen.append(input)
        await op.transaction("kept", phase, None)
        return Response(503 if op.attempts == 1 else 200)

    with guarded(idempotency, Starlette(routes=[Route("/{name}", keep, methods=["POST"])])) as client:
        headers = {"Idempotency-Key": "k1", "Content-Type": "application/octet-stream"}
        for _ in range(2):
            client.post("/Zo%C3%AB?a=%00&b", headers=headers, content=bytes(range(256)))
    assert len(seen) == 2 and seen[0] == seen[1]
    assert seen[0].body == bytes(range(256)) and seen[0].query == "a=%00&b"
    assert seen[0].params == {"name": "Zoë"}
    assert execute(idempotency.engine.url, "select count(*) from samekey.inputs") == [(0,)]
