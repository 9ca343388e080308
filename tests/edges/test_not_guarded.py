"""Requests by a method that is not guarded: they reach a decorated handler as they would without us, whatever
stands in between; what else is decorated does not run in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import ConfigurationError, current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import call_asgi, call_wsgi
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop

Run = dict[str, int]


class Strips:
    """Takes a prefix off the path; on request it makes the scope anew."""

    def __init__(self, app: Any, anew: bool = False) -> None:
        self.app, self.anew = app, anew

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = dict(scope, path=scope["path"].removeprefix("/v1"))
            if self.anew:
                scope = {name: scope[name] for name in scope if not name.startswith("samekey")}
        await self.app(scope, receive, send)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("kind", ["fastapi", "sync", "request"])
def test_a_get_behind_a_middleware_that_rewrites_its_path(shop: Shop, kind: str, anew: bool) -> None:
    async def plain() -> Run:
        shop.charge()
        return {"run": shop.charges}

    def sync() -> Run:
        shop.charge()
        return {"run": shop.charges}

    async def asks(request: Request) -> Run:
        shop.charge()
        return {"run": shop.charges}

    app = FastAPI()
    handler: Any = {"fastapi": plain, "sync": sync, "request": asks}[kind]
    app.api_route("/pay", methods=["GET", "POST"])(shop.idempotency.leased(handler))
    app.add_middleware(Strips, anew=anew)
    guarded = shop.guard(app)
    (first,) = shop.send(guarded, times=1, path="/v1/pay", method="GET", keys=())
    posts = shop.send(guarded, path="/v1/pay")
    (last,) = shop.send(guarded, times=1, path="/v1/pay", method="GET")
    assert [first.status, last.status] == [200, 200], (first, last)
    if anew:  # nothing shows that it is the request whose key waits
        assert all(isinstance(one.error, ConfigurationError) for one in posts) and shop.charges == 2
    else:
        assert [one.status for one in posts] == [200, 200] and posts[1].replayed and shop.charges == 3


def test_a_get_of_starlette_behind_a_middleware_that_rewrites_its_path(shop: Shop) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    async def page(request: Request) -> Response:
        return await pay(request)  # once more at each reload

    app = Starlette(
        routes=[Route("/pay", pay, methods=["GET", "POST"]), Route("/page", page, methods=["GET"])]
    )
    app.add_middleware(Strips)
    guarded = shop.guard(app)
    (got,) = shop.send(guarded, times=1, path="/v1/pay", method="GET", keys=())
    assert got.status == 200 and shop.charges == 1
    (refused,) = shop.send(guarded, times=1, path="/v1/page", method="GET", keys=())
    assert isinstance(refused.error, ConfigurationError) and shop.charges == 1


def test_a_post_inside_a_get_does_not_run_a_decorated_handler(shop: Shop) -> None:
    """An application that calls itself, below its guard."""
    app, inner = FastAPI(), FastAPI()

    @inner.post("/pay")
    @shop.idempotency.leased
    async def pay() -> Run:
        shop.charge()
        return {}

    @app.get("/page")
    async def page() -> Run:
        return {"inner": (await call_asgi(inner, Ask().request("/pay", shop.world.name))).status}

    app.mount("/inner", inner)
    guarded = shop.guard(app)
    shop.send(guarded, times=1, path="/inner/pay")
    (got,) = shop.send(guarded, times=1, path="/page", method="GET", keys=())
    assert got.json() == {"inner": 500} and shop.charges == 1


# --- WSGI ------------------------------------------------------------------------------------------


def loops(app: Any) -> Any:
    def generator(environ: Any, start_response: Any) -> Any:
        yield from app(environ, start_response)

    generator.app = app  # type: ignore[attr-defined]
    return generator


def hides(app: Any) -> Any:
    def generator(environ: Any, start_response: Any) -> Any:
        for chunk in app(environ, start_response):
            yield bytes(chunk)

    return generator


def strips(app: Any) -> Any:
    def middleware(environ: Any, start_response: Any) -> Any:
        return app(dict(environ, PATH_INFO=environ["PATH_INFO"].removeprefix("/v1")), start_response)

    middleware.app = app  # type: ignore[attr-defined]
    return middleware


@pytest.mark.parametrize(
    "wrap", [loops, hides, strips, lambda app: loops(strips(app)), lambda app: hides(strips(app))]
)
def test_a_get_of_flask_behind_ordinary_middleware(shop: Shop, wrap: Callable[[Any], Any]) -> None:
    app = flask.Flask(__name__)
    app.config["PROPAGATE_EXCEPTIONS"] = True

    @shop.idempotency.leased
    def pay() -> Any:
        shop.charge()
        return {"run": shop.charges}

    @app.get("/page")
    def page() -> Any:
        return pay()

    app.add_url_rule("/pay", "pay", pay, methods=["GET", "POST"])
    app.add_url_rule("/v2/pay", "pay2", pay, methods=["GET", "POST"])
    guarded = shop.guard_wsgi(wrap(app.wsgi_app), undecorated="pass")
    paths = ["/v2/pay"] if wrap in (loops, hides) else ["/v1/pay", "/v2/pay"]
    for path in paths:
        (got,) = shop.send(guarded, times=1, path=path, method="GET", keys=())
        assert got.status == 200, got
    before = shop.charges
    (refused,) = shop.send(guarded, times=1, path="/page", method="GET", keys=())
    assert isinstance(refused.error, ConfigurationError) and shop.charges == before
    posts = shop.send(guarded, path="/v2/pay")
    assert [one.status for one in posts] == [200, 200] and posts[1].replayed


@pytest.mark.parametrize("wrap", [loops, hides])
def test_an_undecorated_view_without_a_key_behind_a_generator(shop: Shop, wrap: Callable[[Any], Any]) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    def pay() -> Any:
        return {"mode": current_operation().mode}

    (got,) = shop.send(shop.guard_wsgi(wrap(app.wsgi_app)), times=1, keys=())
    assert got.status == 200 and got.json() == {"mode": "leased"}


def test_a_generator_is_closed_and_its_guarded_function_runs_no_longer(shop: Shop) -> None:
    closed: list[int] = []

    @shop.idempotency.leased
    def pay(environ: Any) -> bytes:
        shop.charge()
        return b"paid"

    def app(environ: Any, start_response: Any) -> Any:
        kept.append(environ)
        try:
            start_response("200 OK", [])
            yield pay(environ)
        finally:
            closed.append(1)

    kept: list[Any] = []
    guarded = shop.guard_wsgi(app)
    got = call_wsgi(guarded, Ask(method="GET", keys=()).request("/pay", shop.world.name))
    assert got.body == b"paid" and closed == [1] and shop.charges == 1
    with pytest.raises(ConfigurationError):
        pay(kept[0])


class Overrides:
    """Takes the method from a header, as forms in browsers need it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = dict(scope, method="POST")
        await self.app(scope, receive, send)


@pytest.mark.parametrize("kind", ["decorated", "undecorated", "hidden"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_handler_of_posts_that_is_reached_by_another_method(shop: Shop, method: str, kind: str) -> None:
    """Each such request would run it once more, and nobody would know."""

    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    handler = pay if kind == "undecorated" else shop.idempotency.leased(pay)
    app: Any = Starlette(routes=[Route("/pay", handler, methods=["POST"])])

    async def hides(scope: Any, receive: Any, send: Any) -> None:
        await Overrides(app)(scope, receive, send)

    guarded = IdempotencyMiddleware(
        hides if kind == "hidden" else Overrides(app), idempotency=shop.idempotency, tenant=tenant_of
    )
    got = shop.send(guarded, method=method)
    assert all(isinstance(one.error, ConfigurationError) for one in got) and shop.charges == 0
    without = shop.send(guarded, method=method, keys=())
    assert [one.status for one in without] == [200, 200] if kind == "undecorated" else [500, 500]
