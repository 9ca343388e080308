"""Endpoints that are no plain functions: objects, generators, classes. Each claims where its framework calls
it: after authentication and validation, on a replay too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import NotExecuted, current_operation
from tests.edges.callers import Got
from tests.edges.shop import Shop
from tests.edges.wrong import problems

TOKEN = ((b"authorization", b"good"), (b"content-type", b"application/json"))
ORDER = b'{"amount": 1}'


class Order(BaseModel):
    amount: int


def authenticate(authorization: str = Header("")) -> None:
    if authorization != "good":
        raise HTTPException(401)


def statuses(got: list[Got]) -> list[int]:
    return [one.status for one in got]


def endpoints(shop: Shop) -> dict[str, Any]:
    class Async:
        async def __call__(self, order: Order) -> dict[str, int]:
            shop.charge()
            return {"amount": order.amount}

    class Sync:
        def __call__(self, order: Order) -> dict[str, int]:
            shop.charge()
            return {"amount": order.amount}

    class Stream:
        async def __call__(self, order: Order) -> AsyncIterator[dict[str, str]]:
            shop.charge()
            yield {"operation": current_operation().id}

    async def pieces(order: Order) -> AsyncIterator[dict[str, str]]:
        shop.charge()
        yield {"operation": current_operation().id}
        yield {"operation": current_operation().id}

    def pieces_in_threads(order: Order) -> Iterator[dict[str, str]]:
        shop.charge()
        yield {"operation": current_operation().id}
        yield {"operation": current_operation().id}

    async def nothing(order: Order) -> AsyncIterator[int]:
        shop.charge()
        for number in range(0):
            yield number

    return {
        "async object": Async(),
        "sync object": Sync(),
        "object that streams": Stream(),
        "generator": pieces,
        "sync generator": pieces_in_threads,
        "generator of nothing": nothing,
    }


KINDS = [
    "async object",
    "sync object",
    "object that streams",
    "generator",
    "sync generator",
    "generator of nothing",
]


@pytest.mark.parametrize("kind", KINDS)
def test_authentication_and_validation_come_before_the_key(shop: Shop, kind: str) -> None:
    app = FastAPI()
    app.post("/pay", dependencies=[Depends(authenticate)])(endpoints(shop)[kind])
    guarded = shop.guard(app)
    assert statuses(shop.send(guarded, body=ORDER)) == [401, 401] and shop.states() == []
    assert statuses(shop.send(guarded, body=b"{}", headers=TOKEN)) == [422, 422] and shop.states() == []
    paid = shop.send(guarded, body=ORDER, headers=TOKEN)
    assert statuses(paid) == [200, 200] and paid[1].replayed and paid[0].body == paid[1].body
    assert shop.charges == 1 and shop.states() == ["completed"]
    assert statuses(shop.send(guarded, body=ORDER)) == [401, 401]


@pytest.mark.parametrize("response", [StreamingResponse, EventSourceResponse])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_generators_of_other_responses(shop: Shop, response: Any, kind: str) -> None:
    app = FastAPI()

    async def pieces() -> AsyncIterator[str]:
        shop.charge()
        yield "one"
        yield "two"

    def pieces_in_threads() -> Iterator[str]:
        shop.charge()
        yield "one"
        yield "two"

    handler = pieces if kind == "async" else pieces_in_threads
    app.post("/pay", dependencies=[Depends(authenticate)], response_class=response)(handler)
    guarded = shop.guard(app)
    assert statuses(shop.send(guarded)) == [401, 401]
    first, again = shop.send(guarded, headers=TOKEN)
    assert first.status == 200 and b"one" in first.body and b"two" in first.body and shop.charges == 1
    # Server-sent events have no end, so they are not kept.
    assert (again.code == "result_unavailable") if response is EventSourceResponse else again.replayed
    assert statuses(shop.send(guarded)) == [401, 401]


@pytest.mark.parametrize("when", ["before the first piece", "after it"])
@pytest.mark.parametrize("error", [KeyError, NotExecuted])
def test_a_generator_that_fails(shop: Shop, when: str, error: type[Exception]) -> None:
    app = FastAPI()

    @app.post("/pay")
    async def pieces() -> AsyncIterator[dict[str, int]]:
        shop.charge()
        if when == "before the first piece":
            raise error
        yield {"one": 1}
        raise error

    shop.send(shop.guard(app), times=3)
    said = error is NotExecuted and when == "before the first piece"
    assert (shop.charges, shop.states()) == ((3, ["failed_retryable"]) if said else (1, ["unknown"]))


@pytest.mark.parametrize("when", ["before its first step", "in its claim"])
def test_an_answer_in_the_place_of_a_generators_is_the_only_one(shop: Shop, when: str) -> None:
    """A framework begins to answer before the generator runs; a middleware that gives up answers anew."""

    class GivesUp:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def forward(message: Any) -> None:
                await send(message)
                if when == "before its first step":
                    raise ArithmeticError

            try:
                await self.app(scope, receive, forward if scope["type"] == "http" else send)
            except (ArithmeticError, ExceptionGroup, asyncio.CancelledError):
                await JSONResponse({"late": 1}, 503)(scope, receive, send)

    def fails(scope: Any) -> str:
        raise asyncio.CancelledError

    app = FastAPI()

    @app.post("/pay")
    async def pieces() -> AsyncIterator[dict[str, int]]:
        shop.charge()
        yield {"one": 1}

    app.add_middleware(GivesUp)
    options = {} if when == "before its first step" else {"binding": fails}
    (got,) = shop.send(shop.guard(app, **options), times=1)
    assert (
        (got.status, got.body, got.error) == (503, b'{"late":1}', None)
        and shop.charges == 0
        and shop.states() == []
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_generator_that_calls_a_guarded_function(shop: Shop, first: bool) -> None:
    """Before its first piece and after it: it is a part of what it does."""

    @shop.idempotency.leased
    async def charge() -> None:
        shop.charge()

    app = FastAPI()

    @app.post("/pay")
    async def pieces() -> AsyncIterator[dict[str, int]]:
        if first:
            await charge()
        yield {"one": 1}
        if not first:
            await charge()
        yield {"two": 2}

    got = shop.send(shop.guard(app), times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed and shop.charges == 1


@pytest.mark.parametrize("kind", ["generator", "undecorated", "leased", "atomic"])
@pytest.mark.parametrize("behind", [False, True])
def test_an_answer_that_breaks_off(shop: Shop, kind: str, behind: bool) -> None:
    """Starlette's middleware ends such an answer as if it were whole, and raises afterwards."""
    app = FastAPI()

    async def pieces() -> AsyncIterator[str]:
        if kind == "atomic":
            await current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        yield "debit"
        raise ConnectionError

    async def streams() -> StreamingResponse:
        shop.charge()
        return StreamingResponse(pieces(), 201)

    async def generator() -> AsyncIterator[str]:
        shop.charge()
        yield "debit"
        raise ConnectionError

    decorators = {"leased": shop.idempotency.leased, "atomic": shop.idempotency.atomic}
    handler: Any = generator if kind == "generator" else decorators.get(kind, lambda one: one)(streams)
    app.post("/pay", response_model=None)(handler)
    if behind:

        @app.middleware("http")
        async def timed(request: Request, call_next: Any) -> Any:
            return await call_next(request)

    got = shop.send(shop.guard(app), times=3)
    if kind == "atomic":
        assert statuses(got) == [500] * 3 and shop.store.effects(shop.world) == 0
    else:
        assert got[2].code == "outcome_unknown" and shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("decorated", [False, True])
def test_a_stream_that_calls_a_guarded_function(shop: Shop, decorated: bool, sync: bool) -> None:
    """The pieces of an answer are the handler's own lines, and run in its operation."""

    @shop.idempotency.leased
    def charge() -> str:
        shop.charge()
        return current_operation().id

    def pieces() -> Iterator[str]:
        yield current_operation().id
        yield charge()

    async def pieces_in_the_loop() -> AsyncIterator[str]:
        yield current_operation().id
        yield charge()

    async def streams() -> StreamingResponse:
        return StreamingResponse(pieces() if sync else pieces_in_the_loop())

    app = FastAPI()
    app.post("/pay")(shop.idempotency.leased(streams) if decorated else streams)
    got = shop.send(shop.guard(app), times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed and shop.charges == 1
    middle = len(got[0].body) // 2
    assert got[0].body[:middle] == got[0].body[middle:]


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("form", ["response", "with context", "generator", "tuple"])
def test_pieces_of_flask_that_call_a_guarded_function(
    shop: Shop, form: str, decorated: bool, breaks: bool
) -> None:
    @shop.idempotency.leased
    def charge() -> str:
        shop.charge()
        return current_operation().id

    def pieces() -> Iterator[str]:
        yield current_operation().id
        yield charge()
        if breaks:
            raise NotExecuted

    def view() -> Any:
        if form == "response":
            return flask.Response(pieces())
        if form == "with context":
            return flask.Response(flask.stream_with_context(pieces()))
        return pieces() if form == "generator" else (pieces(), 200)

    app = flask.Flask(__name__)
    app.add_url_rule("/pay", "pay", shop.idempotency.leased(view) if decorated else view, methods=["POST"])
    got = shop.send(shop.guard_wsgi(app), times=3)
    assert shop.charges == 1
    if breaks:
        assert shop.states() == ["unknown"]
        return
    assert statuses(got) == [200] * 3 and got[2].replayed
    middle = len(got[0].body) // 2
    assert got[0].body[:middle] == got[0].body[middle:]


def test_a_generator_whose_key_is_optional_and_was_not_sent(shop: Shop) -> None:
    app = FastAPI()
    app.post("/pay")(endpoints(shop)["generator"])
    got = shop.send(shop.guard(app), keys=(), body=ORDER, headers=TOKEN)
    assert statuses(got) == [200, 200] and shop.charges == 2 and shop.states() == []


def test_a_rate_limit_of_a_dependency_burns_no_key(shop: Shop) -> None:
    def limited() -> None:
        raise HTTPException(429)

    app = FastAPI()
    app.post("/pay", dependencies=[Depends(limited)])(endpoints(shop)["async object"])
    got = shop.send(shop.guard(app), body=ORDER, headers=TOKEN)
    assert statuses(got) == [429, 429] and shop.states() == []


class Authenticated(HTTPEndpoint):
    async def dispatch(self) -> None:
        if Request(self.scope).headers.get("authorization") != "good":
            await JSONResponse({}, 401)(self.scope, self.receive, self.send)
        else:
            await super().dispatch()


def classes(shop: Shop) -> dict[str, Any]:
    """Classes that dispatch by themselves: they may authenticate anywhere, and act without their methods."""

    class Calls(Authenticated):
        async def post(self, request: Request) -> Any:
            shop.charge()
            return JSONResponse({"operation": current_operation().id})

    class Answers(HTTPEndpoint):
        async def dispatch(self) -> None:
            if self.scope["method"] != "POST":
                await super().dispatch()
                return
            shop.charge()
            await JSONResponse({})(self.scope, self.receive, self.send)

        async def get(self, request: Request) -> Any:
            return JSONResponse({})

    class Posts(Answers):
        async def post(self, request: Request) -> Any:
            raise AssertionError("never called")

    class ByName(HTTPEndpoint):
        async def dispatch(self) -> None:
            await HTTPEndpoint.dispatch(self)

        async def post(self, request: Request) -> Any:
            shop.charge()
            return JSONResponse({})

    return {"calls": Calls, "answers": Answers, "posts": Posts, "by name": ByName}


@pytest.mark.parametrize("kind", ["calls", "answers", "posts", "by name"])
def test_a_class_that_dispatches_by_itself(shop: Shop, kind: str) -> None:
    endpoint = classes(shop)[kind]
    app = Starlette(routes=[Route("/pay", endpoint)])
    (found,) = problems(app, shop.idempotency.engine)
    assert "decorators of its own" in found and "POST" in found
    assert problems(app, shop.idempotency.engine, {"/pay": "exempt"}) == []
    assert problems(app, shop.idempotency.engine, decorators="around") == []
    guarded = shop.guard(app, decorators="around")
    paid = shop.send(guarded, times=3, headers=TOKEN)
    assert statuses(paid) == [200] * 3 and paid[2].replayed and shop.charges == 1
    assert statuses(shop.send(guarded, times=1, method="GET", headers=TOKEN)) in ([200], [405])


def test_a_class_that_dispatches_by_itself_and_is_decorated(shop: Shop) -> None:
    """Where it dispatches, or its method; the option is about those that are not."""
    leased = shop.idempotency.leased

    class Whole(HTTPEndpoint):
        @leased
        async def dispatch(self) -> None:
            shop.charge()
            await JSONResponse({})(self.scope, self.receive, self.send)

    class Mixed(Authenticated):
        @leased
        async def post(self, request: Request) -> Any:
            shop.charge()
            return JSONResponse({})

        async def patch(self, request: Request) -> Any:
            shop.charge()
            return JSONResponse({})

    guarded = shop.guard(Starlette(routes=[Route("/pay", Whole, methods=["POST"])]))
    _, again = shop.send(guarded)
    assert again.replayed and shop.charges == 1

    mixed = Starlette(routes=[Route("/pay", Mixed)])
    assert "PATCH" in problems(mixed, shop.idempotency.engine)[0]
    guarded = shop.guard(mixed, decorators="around")
    for method, after in (("POST", 401), ("PATCH", 200)):
        key = (method.encode(),)
        assert shop.send(guarded, method=method, keys=key, headers=TOKEN)[1].replayed
        assert statuses(shop.send(guarded, times=1, method=method, keys=key, headers=TOKEN[1:])) == [after]
    assert shop.charges == 3


def test_a_class_that_says_no_by_itself_frees_no_key(shop: Shop) -> None:
    class Refuses(HTTPEndpoint):
        async def dispatch(self) -> None:
            shop.charge()
            await JSONResponse({}, 429)(self.scope, self.receive, self.send)

    app = Starlette(routes=[Route("/pay", Refuses)])
    shop.send(shop.guard(app, decorators="around"), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]
