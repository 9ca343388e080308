"""A body is read no earlier than at the claim: what nobody claims streams through, and whoever gets the
request next finds it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import flask
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import ConfigurationError, Input
from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import call_asgi, call_wsgi, environ_of, http_scope
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop
from tests.edges.world import Stores

Run = dict[str, Any]
BODY = b'{"amount": 1}'


def legacy_app() -> FastAPI:
    app = FastAPI()

    @app.post("/two")
    async def two(request: Request) -> Run:
        return {"sent": (await request.body()).decode()}

    return app


def one_app() -> FastAPI:
    app = FastAPI()

    @app.post("/one")
    async def one() -> Run:
        return {}

    return app


def cascade(first: Any, second: Any) -> Any:
    """Tries the one, and where that knows no route, the other."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []

        async def hold(message: Any) -> None:
            held.append(message)

        await first(scope, receive, hold)
        if held[0]["status"] == 404:
            await second(scope, receive, send)
        for message in held if held[0]["status"] != 404 else ():
            await send(message)

    return app


def counted(app: Any) -> Any:
    """A middleware that puts a function of its own around ``receive``."""

    async def counts(scope: Any, receive: Any, send: Any) -> None:
        async def received() -> Any:
            return await receive()

        await app(scope, received, send)

    counts.app = app  # type: ignore[attr-defined]
    return counts


@pytest.mark.parametrize("keys", [(), (b"key-0001",)])
@pytest.mark.parametrize("second", ["legacy", "guarded", "counted"])
def test_the_next_application_of_a_cascade_finds_the_body(shop: Shop, keys: Any, second: str) -> None:
    first, then = shop.guard(one_app()), cast(Any, legacy_app())
    if second != "legacy":
        then = IdempotencyMiddleware(then, idempotency=shop.idempotency, tenant=tenant_of)
    whole = cascade(first, counted(then) if second == "counted" else then)
    ask = Ask(keys=keys, body=BODY).request("/two", shop.world.name)

    async def call() -> Any:
        return await asyncio.wait_for(call_asgi(whole, ask), 10)

    got = shop.loop.run(call())
    assert got.json() == {"sent": BODY.decode()}


def hides(app: Any) -> Any:
    async def function(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return function


@pytest.mark.parametrize("hide", [hides, lambda app: app])
def test_an_upload_to_a_route_that_is_left_alone_is_neither_capped_nor_kept(
    stores: Stores, hide: Any
) -> None:
    """It is given piece by piece, before the client has sent the last one."""
    app = FastAPI()

    @app.post("/up")
    async def up(request: Request) -> Run:
        sizes = []
        async for piece in request.stream():
            sizes.append(len(piece))
            asked.set()
        return {"size": sum(sizes)}

    asked = asyncio.Event()
    store = stores.get(max_body=1000)
    guarded = IdempotencyMiddleware(
        hide(app), idempotency=store.idempotency, tenant=tenant_of, undecorated="pass"
    )
    request = Ask(body=b"").request("/up", "ann").with_header("transfer-encoding", b"chunked")

    async def call() -> list[Any]:
        sent, pieces = list[Any](), iter(range(30))

        async def receive() -> Any:
            number = next(pieces)
            if number > 0:
                await asyncio.wait_for(asked.wait(), 10)
            return {"type": "http.request", "body": b"x" * 100, "more_body": number < 29}

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(guarded(http_scope(request), receive, send), 10)
        return sent

    sent = stores.loop.run(call())
    assert sent[0]["status"] == 200 and sent[1]["body"] == b'{"size":3000}'


@pytest.mark.parametrize("hide", [hides, lambda app: app])
def test_a_handler_that_is_left_alone_hears_its_client_leave(shop: Shop, hide: Any) -> None:
    heard = []

    async def up(request: Request) -> Response:
        try:
            await request.body()
        except ClientDisconnect:
            heard.append("left")
        return Response()

    app = hide(Starlette(routes=[Route("/up", up, methods=["POST"])]))
    guarded = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass")
    ask = replace(Ask(body=BODY).request("/up", shop.world.name), client_leaves=True)
    shop.loop.run(call_asgi(guarded, ask))
    assert heard == ["left"]


@pytest.mark.parametrize("handler", ["reads", "does not read", "reads by itself first", "sync"])
@pytest.mark.parametrize("middleware", [None, "reads", "BaseHTTPMiddleware"])
def test_the_claim_has_the_body_and_so_has_the_handler(
    shop: Shop, handler: str, middleware: str | None
) -> None:
    """Whoever reads first: the retry is recognised, and another body is refused."""
    seen: list[bytes] = []

    @shop.idempotency.leased
    async def guarded(request: Request) -> Response:
        shop.charge()
        if handler == "reads":
            seen.append(await request.body())
        return JSONResponse({})

    async def first(request: Request) -> Response:
        seen.append(await request.body())
        return await guarded(request)

    @shop.idempotency.leased
    def sync(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    endpoint = {"reads by itself first": first, "sync": sync}.get(handler, guarded)
    app = Starlette(routes=[Route("/pay", endpoint, methods=["POST"])])

    async def reads(request: Request, call_next: Any) -> Any:
        if middleware == "reads":
            assert await request.body() == BODY
        return await call_next(request)

    if middleware is not None:
        app.add_middleware(BaseHTTPMiddleware, dispatch=reads)
    undecorated = "pass" if handler == "reads by itself first" else "guard"
    whole = shop.guard(app, undecorated=undecorated)
    got = shop.send(whole, body=BODY)
    assert [one.status for one in got] == [200, 200] and got[1].replayed and shop.charges == 1
    assert set(seen) <= {BODY} and (handler == "reads") <= bool(seen)
    if middleware is None:
        (other,) = shop.send(whole, times=1, body=b"{}")
        assert other.code == "reused" and shop.charges == 1


def test_a_sync_function_in_the_event_loop_before_the_body_is_there(shop: Shop) -> None:
    """Nothing is claimed and nothing is run; once the body is there, it runs."""

    @shop.idempotency.leased
    def charge() -> None:
        shop.charge()

    async def pay(request: Request) -> Response:
        if request.query_params:
            await request.body()
        charge()
        return Response()

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]), undecorated="pass")
    (refused,) = shop.send(app, times=1, body=BODY)
    assert isinstance(refused.error, ConfigurationError) and "async def" in str(refused.error)
    assert (shop.charges, shop.states()) == (0, [])
    (got,) = shop.send(app, times=1, body=BODY, query=b"read=1")
    assert got.status == 200 and shop.charges == 1


def test_a_body_that_does_not_come_in_time_is_refused_at_the_claim(stores: Stores) -> None:
    runs: list[int] = []
    store = stores.get(body_timeout=timedelta(seconds=1))

    @store.idempotency.leased
    async def pay(request: Request) -> Response:
        runs.append(1)
        return Response()

    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/pay", pay, methods=["POST"])]),
        idempotency=store.idempotency,
        tenant=tenant_of,
    )
    request = Ask(body=BODY).request("/pay", "slow")

    async def call() -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(app(http_scope(request), receive, send), 20)
        return int(sent[0]["status"])

    assert stores.loop.run(call()) == 408 and runs == []


# --- WSGI ------------------------------------------------------------------------------------------


def hides_wsgi(app: Any) -> Any:
    def function(environ: Any, start_response: Any) -> Any:
        return app(environ, start_response)

    return function


class Counted:
    """A source that knows how much was read of it."""

    def __init__(self, size: int) -> None:
        self.size, self.read_so_far = size, 0

    def read(self, size: int = -1) -> bytes:
        wanted = self.size - self.read_so_far
        found = wanted if size < 0 else min(size, wanted)
        self.read_so_far += found
        return b"x" * found


@pytest.mark.parametrize("known", [True, False])
def test_an_upload_to_a_view_that_is_left_alone_is_not_capped(stores: Stores, known: bool) -> None:
    app, reads = flask.Flask(__name__), list[int]()

    @app.post("/up")
    def up() -> Any:
        while flask.request.stream.read(100):
            reads.append(source.read_so_far)
        return {}

    inner: Any = app.wsgi_app
    guarded = WsgiMiddleware(
        inner if known else hides_wsgi(inner),
        idempotency=stores.get(max_body=1000).idempotency,
        tenant=tenant_of,
        undecorated="pass",
    )
    source = Counted(3000)
    environ = environ_of(Ask(body=b"").request("/up", "ann")) | {"CONTENT_LENGTH": "3000"}
    environ["wsgi.input"] = source
    statuses: list[str] = []

    def start(status: str, headers: Any, error: Any = None) -> Any:
        statuses.append(status)

    list(guarded(environ, start))
    assert statuses == ["200 OK"] and source.read_so_far == 3000
    assert reads[0] < 3000, "it comes piece by piece"


@pytest.mark.parametrize("reader", ["read", "readline", "readlines", "iterate", "some", "readinto"])
@pytest.mark.parametrize("before", [0, 3, 7])
@pytest.mark.parametrize("length", [True, False])
def test_every_way_to_read_the_input_of_wsgi(shop: Shop, reader: str, before: int, length: bool) -> None:
    """Before and after the claim, each byte once and in its order."""
    body, seen = b"one\ntwo\n\nthree", list[bytes]()

    @shop.idempotency.leased
    def pay(environ: Any, start_response: Any) -> Any:
        source = environ["wsgi.input"]
        if reader == "read":
            seen.append(source.read())
        elif reader == "readline":
            seen.extend(iter(source.readline, b""))
        elif reader == "readlines":
            seen.extend(source.readlines())
        elif reader == "iterate":
            seen.extend(source)
        elif reader == "some":
            seen.extend(iter(lambda: source.read(2), b""))
        else:
            space = bytearray(100)
            seen.append(bytes(space[: source.readinto(space)]))
        start_response("200 OK", [])
        return [b""]

    def app(environ: Any, start_response: Any) -> Any:
        if before:
            seen.append(environ["wsgi.input"].read(before))
        return pay(environ, start_response)

    guarded = shop.guard_wsgi(app, undecorated="pass")

    def outside(environ: Any, start_response: Any) -> Any:
        if not length:
            environ["wsgi.input_terminated"] = True
            del environ["CONTENT_LENGTH"]
        return guarded(environ, start_response)

    ask = Ask(body=body).request("/pay", shop.world.name)
    got = call_wsgi(outside, ask)
    assert got.status == 200 and b"".join(seen) == body
    assert call_wsgi(outside, ask).replayed


@pytest.mark.parametrize("web", ["fastapi", "flask"])
def test_a_phased_function_has_the_body(shop: Shop, web: str) -> None:
    if web == "fastapi":

        @shop.idempotency.phased(f"bodies-{shop.world.name}")
        async def pay(op: Any, given: Input) -> Run:
            return {"sent": given.json()}

        app: Any = FastAPI()
        app.post("/pay")(pay)
        guarded = shop.guard(app)
    else:

        @shop.idempotency.phased(f"bodies-{shop.world.name}")
        def pay_sync(op: Any, given: Input) -> Run:
            return {"sent": given.json()}

        app = flask.Flask(__name__)
        app.post("/pay")(pay_sync)
        app.wsgi_app = guarded = shop.guard_wsgi(app.wsgi_app)
    got = shop.send(guarded, body=BODY)
    assert [one.json() for one in got] == [{"sent": {"amount": 1}}] * 2 and got[1].replayed
