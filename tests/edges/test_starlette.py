"""What is Starlette's own: classes, mounts, middleware inside and outside, errors, background tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router

from samekey import ConfigurationError, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.outcome import OnError
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient, Client, LoopThread
from tests.edges.counting import touches
from tests.edges.scenarios import Ask
from tests.edges.world import Store, Stores, World

Serve = Callable[..., Client]


@pytest.fixture
def store(stores: Stores) -> Store:
    return stores.get()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def serve(store: Store, loop: LoopThread) -> Serve:
    def make(*routes: Any, **options: Any) -> Client:
        app = Starlette(routes=list(routes))
        app.add_middleware(IdempotencyMiddleware, **_guard(store), **options)
        return AsgiClient(app, loop)

    return make


def _guard(store: Store) -> dict[str, Any]:
    return {"idempotency": store.idempotency, "tenant": tenant_of}


def test_endpoints_in_classes(serve: Serve, store: Store, world: World) -> None:
    class Payments(HTTPEndpoint):
        @store.idempotency.leased
        async def post(self, request: Request) -> Response:
            return JSONResponse({"run": world.begin()[0], "body": await request.json()})

        @store.idempotency.atomic
        def patch(self, request: Request) -> Response:
            number = world.begin()[0]
            current_operation().connection.execute(store.insert, (world.name, number))
            return JSONResponse({"run": number})

        async def delete(self, request: Request) -> Response:
            return JSONResponse({"run": world.begin(guarded=False)[0]})

    client = serve(Route("/pay/{name}", Payments))
    for method in ("POST", "PATCH"):
        ask = Ask(method=method, keys=(method.encode(),)).request("/pay/x", world.name)
        first, again = client.send(ask), client.send(ask)
        assert first.status == 200 and again.replayed and again.body == first.body
        assert client.send(Ask(method=method, keys=()).request("/pay/x", world.name)).code == "missing"
    assert client.send(Ask(method="DELETE").request("/pay/x", world.name)).json() == {"run": 3}
    assert store.effects(world) == 1


def test_a_class_without_the_method_is_a_refusal_of_the_router(
    serve: Serve, store: Store, world: World
) -> None:
    class ReadOnly(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return JSONResponse({})

    client = serve(Route("/things", ReadOnly))
    with touches(store.idempotency) as touched:
        assert client.send(Ask().request("/things", world.name)).status == 405
    assert touched == []


def test_mounted_applications(serve: Serve, store: Store, world: World) -> None:
    @store.idempotency.leased
    async def pay(request: Request) -> Response:
        return JSONResponse({"run": world.begin()[0], "id": request.path_params["number"]})

    async def plain(request: Request) -> Response:
        return JSONResponse({"run": world.begin(guarded=False)[0]})

    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        status = 404 if scope["path"].endswith("lost") else 200
        await JSONResponse({"run": world.begin(guarded=False)[0]}, status)(scope, receive, send)

    inner = Starlette(routes=[Route("/pay/{number:int}", pay, methods=["POST"])])
    client = serve(
        Mount("/v1", app=inner),
        Mount("/v2/{shop}", routes=[Route("/plain", plain, methods=["POST"])]),
        Mount("/foreign", app=foreign),
    )
    for path in ("/v1/pay/7", "/v2/acme/plain", "/foreign/thing"):
        ask = Ask(keys=(path.encode(),)).request(path, world.name)
        first, again = client.send(ask), client.send(ask)
        assert first.status == 200 and again.replayed and again.body == first.body, path
    assert client.send(Ask(keys=()).request("/v1/pay/7", world.name)).code == "missing"
    # The router of a mounted application may have said it.
    lost = Ask(keys=(b"lost",)).request("/foreign/lost", world.name)
    assert [client.send(lost).replayed for _ in range(2)] == [False, False]
    with touches(store.idempotency) as touched:
        for path in ("/v1/nothing", "/v2/acme/nothing"):
            assert client.send(Ask().request(path, world.name)).status == 404
    assert touched == []


def test_mounts_in_the_scope_of_an_endpoint(stores: Stores, loop: LoopThread, world: World) -> None:
    store = stores.get(scope="tenant+endpoint")

    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"run": world.begin(guarded=False)[0]})(scope, receive, send)

    app = Starlette(routes=[Mount("/foreign", app=foreign)])
    app.add_middleware(IdempotencyMiddleware, **_guard(store))
    client = AsgiClient(app, loop)
    assert client.send(Ask().request("/foreign/a", world.name)).json() == {"run": 1}
    assert client.send(Ask().request("/foreign/b", world.name)).json() == {"run": 2}
    assert client.send(Ask().request("/foreign/b", world.name)).replayed


def test_the_router_refuses_by_itself(serve: Serve, store: Store, world: World) -> None:
    """404, 405 and a redirect are not remembered, touch no store and need no caller (X7)."""

    async def handler(request: Request) -> Response:
        return JSONResponse({"run": world.begin(guarded=False)[0]})

    client = serve(Route("/get", handler, methods=["GET"]), Route("/slash/", handler, methods=["POST"]))
    with touches(store.idempotency) as touched:
        for path, status in (("/nothing", 404), ("/get", 405), ("/slash", 307)):
            for tenant in ("alice", "nobody"):
                got = client.send(Ask(tenant=tenant).request(path, world.name))
                assert (got.status, got.replayed) == (status, False), path
    assert (touched, world.runs) == ([], 0)


def test_a_default_of_ones_own_is_guarded(store: Store, loop: LoopThread, world: World) -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"run": world.begin(guarded=False)[0]})(scope, receive, send)

    app = Starlette()
    app.router = Router(default=fallback)
    app.add_middleware(IdempotencyMiddleware, **_guard(store))
    client = AsgiClient(app, loop)
    ask = Ask().request("/anything", world.name)
    assert [client.send(ask).replayed for _ in range(2)] == [False, True]


class Declined(Exception):
    """Handled into a 402."""


class Overloaded(Exception):
    """Handled into a 503."""


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_handled_exceptions(mode: str, store: Store, loop: LoopThread, world: World) -> None:
    async def handler(request: Request) -> Response:
        if mode == "atomic":
            await current_operation().connection.execute(store.insert, (world.name, world.runs))
        if world.begin()[0] == 1:
            raise {"402": Declined, "503": Overloaded}.get(request.url.query, Declined)
        return JSONResponse({"run": world.runs})

    async def handle(request: Request, error: Exception) -> Response:
        return JSONResponse({"why": type(error).__name__}, 402 if isinstance(error, Declined) else 503)

    guarded = getattr(store.idempotency, mode)(handler)
    app = Starlette(
        routes=[Route("/pay", guarded, methods=["POST"])],
        exception_handlers={Declined: handle, Overloaded: handle},
    )
    app.add_middleware(IdempotencyMiddleware, **_guard(store))
    client = AsgiClient(app, loop)
    ask = Ask(query=b"402").request("/pay", world.name)
    first, again = client.send(ask), client.send(ask)
    if mode == "leased":  # a page that somebody made of an error proves nothing
        assert first.code == again.code == "outcome_unknown" and world.runs == 1
        return
    assert (first.status, first.json()) == (402, {"why": "Declined"}), "an error rolls back, a retry runs"
    assert again.json() == {"run": 2} and store.effects(world) == 1
    world.runs = 0
    ask = Ask(query=b"503", keys=(b"key-2",)).request("/pay", world.name)
    assert client.send(ask).status == 503
    assert client.send(ask).json() == {"run": 2} and store.effects(world) == 2


@pytest.mark.parametrize(
    ("status", "on_error", "again"),
    [
        *((404, "unknown", 404), (409, "unknown", 409), (500, "unknown", 409), (502, "unknown", 409)),
        *((404, "retry", 404), (503, "retry", 200), (502, "retry", 409), (429, "unknown", 200)),
    ],
)
def test_the_frameworks_own_http_exception(
    status: int, on_error: OnError, again: int, serve: Serve, store: Store, world: World
) -> None:
    """Below 500 it is an answer. From 500 on it is an error like any other (X2)."""

    @store.idempotency.leased(on_error=on_error)
    async def handler(request: Request) -> Response:
        if world.begin()[0] == 1:
            raise HTTPException(status)
        return JSONResponse({})

    client = serve(Route("/pay", handler, methods=["POST"]))
    ask = Ask().request("/pay", world.name)
    assert [client.send(ask).status for _ in range(2)] == [status, again]


@pytest.mark.parametrize("inside", [True, False])
def test_middleware_of_the_framework(inside: bool, store: Store, loop: LoopThread, world: World) -> None:
    @store.idempotency.leased
    async def handler(request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"run": world.begin()[0], "got": body, "pad": "x" * 1000})

    async def add_header(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["x-middleware"] = str(world.runs)
        return response

    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    others: list[tuple[Any, dict[str, Any]]] = [
        (BaseHTTPMiddleware, {"dispatch": add_header}),
        (GZipMiddleware, {"minimum_size": 500}),
        (CORSMiddleware, {"allow_origins": ["https://shop.example"], "allow_credentials": True}),
    ]
    if not inside:
        app.add_middleware(IdempotencyMiddleware, **_guard(store))
    for kind, options in others:
        app.add_middleware(kind, **options)
    if inside:
        app.add_middleware(IdempotencyMiddleware, **_guard(store))
    client = AsgiClient(app, loop)
    headers = ((b"origin", b"https://shop.example"), (b"accept-encoding", b"gzip"))
    ask = Ask(headers=headers).request("/pay", world.name)
    first, again = client.send(ask), client.send(ask)
    assert first.status == 200 and again.replayed and again.content == first.content
    for got in (first, again):
        assert got.header("access-control-allow-origin") == "https://shop.example"
        encoding = None if inside else "gzip"  # another client may not be able to read it
        assert (got.header("content-encoding"), got.header("x-middleware")) == (encoding, "1")
    refused = client.send(Ask(headers=headers, body=b"{}").request("/pay", world.name))
    assert refused.status == 422
    if not inside:
        assert refused.header("access-control-allow-origin") == "https://shop.example"
    assert world.runs == 1


def test_an_error_behind_middleware_of_the_framework(store: Store, loop: LoopThread, world: World) -> None:
    @store.idempotency.leased(on_error="unknown")
    async def handler(request: Request) -> Response:
        world.begin()
        raise ValueError

    async def dispatch(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        return response

    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.add_middleware(IdempotencyMiddleware, **_guard(store))
    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    client = AsgiClient(app, loop)
    ask = Ask().request("/pay", world.name)
    first = client.send(ask)
    assert first.code == "outcome_unknown" and isinstance(first.error, ValueError)
    assert client.send(ask).code == "outcome_unknown"


def test_background_tasks(serve: Serve, store: Store, world: World) -> None:
    """They run, after the answer and outside the promise: one that fails changes nothing."""
    ran: list[str] = []

    async def later(what: str) -> None:
        ran.append(what)
        if what == "fails":
            raise RuntimeError(what)

    @store.idempotency.leased
    async def handler(request: Request) -> Response:
        world.begin()
        return JSONResponse({}, background=BackgroundTask(later, request.url.query))

    client = serve(Route("/pay", handler, methods=["POST"]))
    for what in ("works", "fails"):
        ask = Ask(keys=(what.encode(),), query=what.encode()).request("/pay", world.name)
        first, again = client.send(ask), client.send(ask)
        assert first.status == 200 and again.replayed
        assert isinstance(first.error, RuntimeError) is (what == "fails")
        assert again.error is None
    assert ran == ["works", "fails"]


def test_without_the_middleware(store: Store, loop: LoopThread, world: World) -> None:
    @store.idempotency.leased
    async def handler(request: Request) -> Response:
        return JSONResponse({"run": world.begin()[0]})

    client = AsgiClient(Starlette(routes=[Route("/pay", handler, methods=["POST"])]), loop)
    got = client.send(Ask().request("/pay", world.name))
    assert got.status == 500 and isinstance(got.error, ConfigurationError)
    assert "IdempotencyMiddleware" in str(got.error) and world.runs == 0


def test_a_method_that_is_not_guarded_passes_a_decorated_handler(
    serve: Serve, store: Store, world: World
) -> None:
    """One handler for GET and POST: GET never needs the header (K8)."""

    @store.idempotency.leased
    async def handler(request: Request) -> Response:
        return JSONResponse({"run": world.begin(guarded=False)[0]})

    client = serve(Route("/pay", handler, methods=["GET", "POST"]))
    got = client.send(Ask(method="GET", keys=(), body=b"").request("/pay", world.name))
    assert (got.status, got.error) == (200, None)


def test_two_guards_in_one_request(serve: Serve, store: Store, world: World) -> None:
    @store.idempotency.atomic
    async def inner(request: Request) -> Response:
        return JSONResponse({"run": world.begin()[0]})

    @store.idempotency.leased(ttl=3600)
    async def outer(request: Request) -> Response:
        return await inner(request)

    async def hides_the_mark(request: Request) -> Response:
        return await inner(request)

    client = serve(
        Route("/nested", outer, methods=["POST"]), Route("/hidden", hides_the_mark, methods=["POST"])
    )
    for path in ("/nested", "/hidden"):
        got = client.send(Ask(keys=(path.encode(),)).request(path, world.name))
        assert got.status == 409 and isinstance(got.error, ConfigurationError), path
        assert "Two guards" in str(got.error)
    assert world.runs == 0


def test_a_decorated_function_that_a_handler_calls_which_is_left_alone(
    serve: Serve, store: Store, world: World
) -> None:
    @store.idempotency.leased
    async def inner(request: Request) -> Response:
        return JSONResponse({"run": world.begin()[0]})

    async def hides_the_mark(request: Request) -> Response:
        return await inner(request)

    client = serve(Route("/hidden", hides_the_mark, methods=["POST"]), undecorated="pass")
    got = [client.send(Ask().request("/hidden", world.name)) for _ in range(2)]
    assert [one.json() for one in got] == [{"run": 1}] * 2 and got[1].replayed and world.runs == 1
    assert client.send(Ask(keys=()).request("/hidden", world.name)).code == "missing"


def test_around_the_whole_application(store: Store, loop: LoopThread, world: World) -> None:
    """Not by add_middleware but as the outermost layer: routes are found all the same."""

    @store.idempotency.leased
    async def handler(request: Request, extra: int) -> Response:
        return JSONResponse({"run": world.begin()[0], "extra": extra})

    async def plain(request: Request) -> Response:
        if world.begin(guarded=False)[0] < 3:
            raise TimeoutError
        return JSONResponse({})

    routes = [
        Route("/pay", partial(handler, extra=5), methods=["POST"]),
        Route("/plain", plain, methods=["POST"]),
    ]
    client = AsgiClient(IdempotencyMiddleware(Starlette(routes=routes), **_guard(store)).__call__, loop)
    ask = Ask().request("/pay", world.name)
    first, again = client.send(ask), client.send(ask)
    assert first.json() == {"run": 1, "extra": 5} and again.replayed and again.error is None
    assert client.send(Ask(keys=()).request("/pay", world.name)).code == "missing"
    # Starlette sends its error page before it raises; the error, not the page, is what happened.
    ask = Ask(keys=(b"key-2",)).request("/plain", world.name)
    got = client.send(ask)
    assert got.code == "outcome_unknown" and isinstance(got.error, TimeoutError)
    assert client.send(ask).code == "outcome_unknown"
