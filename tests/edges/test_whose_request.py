"""Which request a handler is called for: a middleware may make it anew, an application may make its own.

Its mark says it; or, inside an open request, its method, its path and its key together. What else is reached
while a key waits is not run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import ConfigurationError
from tests.edges.callers import Got, call_asgi, call_wsgi
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop

Run = dict[str, int]
Scope = dict[str, Any]
Remake = Callable[[Scope], Scope]

KNOWN = ("type", "asgi", "http_version", "method", "path", "root_path", "query_string", "scheme", "app")
ALLOWED = (b"host", b"content-type", b"content-length", b"x-tenant")


def without_the_key(scope: Scope) -> Scope:
    headers = [pair for pair in scope["headers"] if pair[0] in ALLOWED]
    return {name: scope[name] for name in KNOWN if name in scope} | {"headers": headers}


def with_the_key(scope: Scope) -> Scope:
    return without_the_key(scope) | {"headers": list(scope["headers"])}


def with_another_key(scope: Scope) -> Scope:
    rewritten = (b"idempotency-key", b"gateway-1")
    made = without_the_key(scope)
    return made | {"headers": [*made["headers"], rewritten]}


def at_another_path(scope: Scope) -> Scope:
    return without_the_key(scope) | {"path": scope["path"].removeprefix("/v1")}


def by_another_method(scope: Scope) -> Scope:
    return at_another_path(scope) | {"method": "PATCH"}


def below_a_root(scope: Scope) -> Scope:
    return at_another_path(scope) | {"root_path": "/v1"}


PLACED = [without_the_key, with_the_key, below_a_root]
REFUSED = [with_another_key, at_another_path, by_another_method]


KINDS = [
    *("fastapi", "fastapi-leased"),
    *("starlette", "starlette-sync", "starlette-leased", "starlette-sync-leased"),
    *("starlette-class", "starlette-class-leased"),
]


def pays(shop: Shop, kind: str) -> Any:
    """Applications with a handler at /pay, which counts."""

    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({"run": shop.charges})

    def sync_pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({"run": shop.charges})

    async def plain() -> Run:
        shop.charge()
        return {"run": shop.charges}

    methods = ["POST", "PATCH"]
    if kind.startswith("starlette"):
        handler: Any = sync_pay if "sync" in kind else pay
        if "leased" in kind:
            handler = shop.idempotency.leased(handler)
        if "class" in kind:

            class Pay(HTTPEndpoint):
                async def post(self, request: Request) -> Response:
                    return await pay(request)

                async def patch(self, request: Request) -> Response:
                    return await pay(request)

            for name in ("post", "patch") if "leased" in kind else ():
                setattr(Pay, name, shop.idempotency.leased(getattr(Pay, name)))

            handler = Pay
        paths = ("/pay", "/v1/pay")
        chosen = None if "class" in kind else methods
        return Starlette(routes=[Route(path, handler, methods=chosen) for path in paths])
    app = FastAPI()
    guarded: Any = shop.idempotency.leased(plain) if "leased" in kind else plain
    for path in ("/pay", "/v1/pay"):
        app.api_route(path, methods=methods)(guarded)
    return app


class Anew:
    """Makes each request anew."""

    def __init__(self, app: Any, remake: Remake, wraps: bool = False, fresh: bool = False) -> None:
        self.app, self.remake, self.wraps, self.fresh = app, remake, wraps, fresh

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def receive_counted() -> Any:
            return await receive()

        async def send_logged(message: Any) -> None:
            await send(message)

        channels = (receive_counted, send_logged) if self.wraps else (receive, send)
        call = self.app(self.remake(scope), *channels)
        if self.fresh:
            await asyncio.get_running_loop().create_task(call, context=contextvars.Context())
        else:
            await call


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("remake", PLACED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_a_middleware_makes_anew_is_the_same(
    shop: Shop, kind: str, remake: Remake, wraps: bool
) -> None:
    app = pays(shop, kind)
    app.add_middleware(Anew, remake=remake, wraps=wraps)
    got = shop.send(shop.guard(app), times=3, path="/v1/pay")
    assert [one.status for one in got] == [200] * 3, got
    assert got[2].replayed and shop.charges == 1


@pytest.mark.parametrize("remake", REFUSED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_a_middleware_makes_anew_elsewhere_is_not_run(
    shop: Shop, kind: str, remake: Remake, caplog: pytest.LogCaptureFixture
) -> None:
    """By where its answer goes it might be the same, and might be one of the application's own."""
    app = pays(shop, kind)
    app.add_middleware(Anew, remake=remake)
    got = shop.send(shop.guard(app), times=3, path="/v1/pay")
    assert all(isinstance(one.error, ConfigurationError) for one in got), got
    assert shop.charges == 0 and shop.states() == []
    assert "copy it (dict(scope)) and change the copy" in caplog.text and "'exempt'}" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_scope_in_a_context_of_its_own(shop: Shop, kind: str) -> None:
    app = pays(shop, kind)
    app.add_middleware(Anew, remake=dict, wraps=True, fresh=True)
    got = shop.send(shop.guard(app), times=3, path="/v1/pay")
    assert [one.status for one in got] == [200] * 3 and got[2].replayed and shop.charges == 1


def test_without_its_scope_and_its_context_a_request_is_one_without_a_middleware(shop: Shop) -> None:
    """What is decorated does not run; what is not, does, and the log says so."""
    app = pays(shop, "fastapi-leased")
    app.add_middleware(Anew, remake=without_the_key, fresh=True)
    got = shop.send(shop.guard(app))
    assert all(isinstance(one.error, ConfigurationError) for one in got) and shop.charges == 0


class Buffers:
    """Reads the whole request, makes another of it, and sends its answer when that is there."""

    def __init__(self, app: Any, remake: Remake) -> None:
        self.app, self.remake = app, remake

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        message = await receive()
        held: list[Any] = []

        async def receive_again() -> Any:
            return message

        async def hold(message: Any) -> None:
            held.append(message)

        await self.app(self.remake(scope), receive_again, hold)
        for one in held:
            await send(one)


@pytest.mark.parametrize("remake", [without_the_key, with_the_key])
def test_a_request_that_is_made_anew_as_a_whole_is_known_by_its_place(shop: Shop, remake: Remake) -> None:
    app = pays(shop, "fastapi")
    app.add_middleware(Buffers, remake=remake)
    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [200] * 3 and got[2].replayed and shop.charges == 1


def moved_with_the_key(scope: Scope) -> Scope:
    return with_the_key(scope) | {"path": scope["path"].removeprefix("/v1")}


@pytest.mark.parametrize("remake", [moved_with_the_key, with_another_key])
def test_what_cannot_be_placed_is_not_run(
    shop: Shop, remake: Remake, caplog: pytest.LogCaptureFixture
) -> None:
    app = pays(shop, "fastapi")
    app.add_middleware(Buffers, remake=remake)
    got = shop.send(shop.guard(app), path="/v1/pay")
    assert [one.status for one in got] == [500, 500] and shop.charges == 0 and shop.states() == []
    assert all(isinstance(one.error, ConfigurationError) for one in got)
    assert "copy it (dict(scope)) and change the copy" in caplog.text


@pytest.mark.parametrize("sends", ["nowhere", "to ours", "by our request"])
def test_a_request_of_the_application_is_not_run_for_a_key_that_waits(shop: Shop, sends: str) -> None:
    """Wherever its answer goes: the key is not spent on it, and it does not run for each retry."""
    audits: list[int] = []
    app, audit = pays(shop, "fastapi"), FastAPI()

    @audit.post("/log")
    async def log() -> None:
        audits.append(1)

    class Audit:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            request = Request(scope, receive)

            async def forget(message: Any) -> None:
                if sends == "to ours" and message.get("status") == 401:
                    await send(message)
                elif sends == "by our request":
                    assert request.url.path == "/pay"

            if scope["type"] == "http":
                try:
                    await audit(without_the_key(scope) | {"path": "/log"}, receive, forget)
                except ConfigurationError as error:
                    refused.append(error)
            await self.app(scope, receive, send)

    refused: list[ConfigurationError] = []
    app.mount("/audit", audit)
    app.add_middleware(Audit)
    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [200] * 3 and got[2].replayed and shop.charges == 1
    assert len(refused) == 3 and audits == []


@pytest.mark.parametrize("kind", ["fastapi", "fastapi-leased"])
def test_a_key_that_the_application_sends_on_is_not_spent(shop: Shop, kind: str) -> None:
    """An audit service, mounted, is called in-process by a middleware inside, with the client's headers."""
    audits: list[int] = []
    app, audit = pays(shop, kind), FastAPI()

    @audit.post("/log")
    async def log() -> None:
        audits.append(1)

    class Audit:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                answers.append(await call_asgi(audit, Ask().request("/log", shop.world.name)))
            await self.app(scope, receive, send)

    answers: list[Any] = []
    app.mount("/audit", audit)
    app.add_middleware(Audit)
    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [200] * 3 and got[2].replayed and shop.charges == 1
    assert audits == [] and "'exempt'}" in str(answers[0].error)
    assert shop.states() == ["completed"]


def test_an_exempt_handler_may_be_sent_the_key(shop: Shop) -> None:
    audits: list[int] = []
    app, audit = pays(shop, "fastapi"), FastAPI()

    @audit.post("/log")
    @shop.idempotency.exempt
    async def log() -> None:
        audits.append(1)

    class Audit:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await call_asgi(audit, Ask().request("/log", shop.world.name))
            await self.app(scope, receive, send)

    app.mount("/audit", audit)
    app.add_middleware(Audit)
    got = shop.send(shop.guard(app), times=3)
    assert [one.status for one in got] == [200] * 3 and got[2].replayed
    assert (shop.charges, len(audits)) == (1, 3)


@pytest.mark.parametrize("sync", [False, True])
def test_a_handler_that_uses_a_client_of_its_own_application(shop: Shop, sync: bool) -> None:
    """In-process, through the guard: another request with a key and an answer of its own."""
    app = FastAPI()
    booked: list[int] = []

    @app.post("/book")
    async def book() -> Run:
        booked.append(1)
        return {"booked": len(booked)}

    def ask() -> Any:
        return Ask(keys=(b"of-its-own",)).request("/book", shop.world.name)

    async def pay() -> Any:
        shop.charge()
        return (await call_asgi(app, ask())).json()

    def sync_pay() -> Any:
        shop.charge()
        sent = {name.decode(): value.decode() for name, value in ask().headers}
        return TestClient(app).post("/book", headers=sent).json()

    app.post("/pay")(sync_pay if sync else pay)
    shop.guard(app)
    for number, key in enumerate((b"first", b"second"), 1):
        got = shop.send(app, path="/pay", keys=(key,))
        assert [one.json() for one in got] == [{"booked": 1}] * 2 and got[1].replayed
        assert (shop.charges, len(booked)) == (number, 1)


def test_a_handler_may_send_its_key_on(shop: Shop) -> None:
    """What it calls there is a part of what it does."""
    calls: list[int] = []
    app, ledger = FastAPI(), FastAPI()

    @ledger.post("/book")
    async def book() -> None:
        calls.append(1)

    @app.post("/pay")
    async def pay() -> Run:
        shop.charge()
        return {"booked": (await call_asgi(ledger, Ask().request("/book", shop.world.name))).status}

    app.mount("/ledger", ledger)
    got = shop.send(shop.guard(app), times=3)
    assert [one.json() for one in got] == [{"booked": 200}] * 3 and got[2].replayed
    assert (shop.charges, len(calls)) == (1, 1)


# --- the same in WSGI ------------------------------------------------------------------------------

Environ = dict[str, Any]


def flask_pays(shop: Shop, *, leased: bool) -> flask.Flask:
    app = flask.Flask(__name__)

    def pay() -> Any:
        shop.charge()
        return {"run": shop.charges, "sent": flask.request.get_json()}

    view = shop.idempotency.leased(pay) if leased else pay
    app.add_url_rule("/pay", "pay", view, methods=["POST", "PATCH"])
    app.add_url_rule("/v1/pay", "v1", view, methods=["POST", "PATCH"])
    return app


def environ_without_the_key(environ: Environ) -> Environ:
    sent = ("HTTP_HOST", "HTTP_X_TENANT")
    kept = ("wsgi.", "SERVER_", "REQUEST_", "PATH_", "QUERY_", "SCRIPT_", "CONTENT_")
    return {name: value for name, value in environ.items() if name.startswith(kept) or name in sent}


def environ_with_the_key(environ: Environ) -> Environ:
    return environ_without_the_key(environ) | {"HTTP_IDEMPOTENCY_KEY": environ["HTTP_IDEMPOTENCY_KEY"]}


def environ_at_another_path(environ: Environ) -> Environ:
    return environ_without_the_key(environ) | {"PATH_INFO": environ["PATH_INFO"].removeprefix("/v1")}


def environ_with_another_key(environ: Environ) -> Environ:
    return environ_without_the_key(environ) | {"HTTP_IDEMPOTENCY_KEY": "gateway-1"}


def environ_with_a_script_name(environ: Environ) -> Environ:
    moved = {"SCRIPT_NAME": "/v1", "PATH_INFO": environ["PATH_INFO"].removeprefix("/v1")}
    return environ_without_the_key(environ) | moved


class Limited:
    """A stream around the body."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.stream.read(size)
        return data


def made_anew(
    shop: Shop, remake: Callable[[Environ], Environ], *, leased: bool, wraps: bool = False
) -> list[Got]:
    app = flask_pays(shop, leased=leased)
    inner: Any = app.wsgi_app

    def anew(environ: Environ, start_response: Any) -> Any:
        made = remake(environ)
        if wraps:
            made["wsgi.input"] = Limited(made["wsgi.input"])
        return inner(made, start_response)

    anew.app = inner  # type: ignore[attr-defined]
    return shop.send(shop.guard_wsgi(anew), times=3, path="/v1/pay")


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize(
    "remake", [environ_without_the_key, environ_with_the_key, environ_with_a_script_name]
)
def test_an_environ_that_a_middleware_makes_anew_is_the_same(
    shop: Shop, remake: Callable[[Environ], Environ], leased: bool, wraps: bool
) -> None:
    got = made_anew(shop, remake, leased=leased, wraps=wraps)
    assert [one.status for one in got] == [200] * 3, got
    assert got[2].replayed and shop.charges == 1 and got[2].json()["sent"] is not None


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("remake", [environ_at_another_path, environ_with_another_key])
def test_an_environ_that_a_middleware_makes_anew_elsewhere_is_not_run(
    shop: Shop, remake: Callable[[Environ], Environ], leased: bool
) -> None:
    got = made_anew(shop, remake, leased=leased)
    assert [one.status for one in got] == [500] * 3 and shop.charges == 0 and shop.states() == []


def test_a_key_that_flask_sends_on_before_the_request_is_not_spent(shop: Shop) -> None:
    audits: list[int] = []
    app = flask_pays(shop, leased=False)
    inner: Any = app.wsgi_app

    @app.post("/log")
    def log() -> Any:
        audits.append(1)
        return {}

    @app.before_request
    def audit() -> None:
        if flask.request.path == "/pay":
            answers.append(call_wsgi(inner, Ask().request("/log", shop.world.name)).status)

    answers: list[int] = []
    got = shop.send(shop.guard_wsgi(inner), times=3)
    assert [one.status for one in got] == [200] * 3 and got[2].replayed and shop.charges == 1
    assert answers == [500] * 3 and audits == [] and shop.states() == ["completed"]


# --- middleware that dispatches --------------------------------------------------------------------------


class Rpc:
    """One path for all: what is called stands in the body."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/rpc":
            await self.app(scope, receive, send)
            return
        held: list[Any] = []

        async def hold(message: Any) -> None:
            held.append(message)

        async def called() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        await self.app(without_the_key(scope) | {"path": "/pay"}, called, hold)
        for message in held:
            await send(message)


@pytest.mark.parametrize("kind", KINDS)
def test_a_middleware_that_dispatches_by_requests_of_its_own(shop: Shop, kind: str) -> None:
    """Nobody would claim, and each retry would run it."""
    app = pays(shop, kind)
    app.add_middleware(Rpc)
    got = shop.send(shop.guard(app), times=3, path="/rpc")
    assert all(isinstance(one.error, ConfigurationError) for one in got)
    assert shop.charges == 0 and shop.states() == []
    assert [one.status for one in shop.send(app, path="/rpc", keys=())] == (
        [500, 500] if "leased" in kind else [200, 200]
    )


def test_a_wsgi_middleware_that_dispatches_by_requests_of_its_own(shop: Shop) -> None:
    app = flask_pays(shop, leased=False)
    inner: Any = app.wsgi_app

    def rpc(environ: Environ, start_response: Any) -> Any:
        made = environ_without_the_key(environ) | {"PATH_INFO": "/pay"}
        return inner(made, start_response)

    rpc.app = inner  # type: ignore[attr-defined]
    got = shop.send(shop.guard_wsgi(rpc), times=3, path="/rpc")
    assert [one.status for one in got] == [500] * 3 and shop.charges == 0 and shop.states() == []
