"""Applications that the middleware cannot see into, and requests that take another way than it thinks: a
decorated handler decides for itself, with a key and without."""

from __future__ import annotations

from typing import Any

import flask
import pytest
from fastapi import FastAPI

from samekey import current_operation
from tests.edges.shop import Shop

Run = dict[str, Any]


def function(app: Any) -> Any:
    """A middleware in the style of a function, which hides what it wraps."""

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return middleware


def copies(app: Any) -> Any:
    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        await app(dict(scope), receive, send)

    return middleware


class Strips:
    """Takes a prefix off the path; it can be looked through, but what it does cannot be seen."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix("/v1")
            scope = dict(scope, path=path, raw_path=path.encode())
        await self.app(scope, receive, send)


def function_wsgi(app: Any) -> Any:
    def middleware(environ: Any, start_response: Any) -> Any:
        return app(environ, start_response)

    return middleware


def copies_wsgi(app: Any) -> Any:
    def middleware(environ: Any, start_response: Any) -> Any:
        yield from app(dict(environ), start_response)

    return middleware


class StripsWsgi:
    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"].removeprefix("/v1")
        return self.app(dict(environ, PATH_INFO=path), start_response)


def shown() -> Run:
    return {"mode": current_operation().mode}


def fastapi_app(shop: Shop) -> FastAPI:
    app = FastAPI()

    @app.post("/optional")
    @shop.idempotency.leased(required=False)
    async def optional() -> Run:
        shop.charge()
        return shown()

    @app.post("/must")
    @shop.idempotency.leased
    def must() -> Run:
        shop.charge()
        return shown()

    @app.post("/plain")
    async def plain() -> Run:
        shop.charge()
        return shown()

    @app.post("/{path:path}")
    async def everything_else(path: str) -> Run:
        raise AssertionError("not reached")

    return app


def flask_app(shop: Shop) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.post("/optional")
    @shop.idempotency.leased(required=False)
    def optional() -> Any:
        shop.charge()
        return shown()

    @app.post("/must")
    @shop.idempotency.leased
    def must() -> Any:
        shop.charge()
        return shown()

    @app.post("/plain")
    def plain() -> Any:
        shop.charge()
        return shown()

    @app.post("/<path:path>")
    def everything_else(path: str) -> Any:
        raise AssertionError("not reached")

    return app


def guarded(shop: Shop, web: str, wrap: Any, **options: Any) -> Any:
    if web == "flask":
        return shop.guard_wsgi(wrap(flask_app(shop).wsgi_app), **options)
    from samekey.asgi import IdempotencyMiddleware
    from tests.edges.apps import tenant_of

    app = wrap(fastapi_app(shop))
    return IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of, **options)


WAYS = [
    ("fastapi", function),
    ("fastapi", copies),
    ("fastapi", Strips),
    ("flask", function_wsgi),
    ("flask", copies_wsgi),
    ("flask", StripsWsgi),
]


@pytest.mark.parametrize("undecorated", ["guard", "pass"])
@pytest.mark.parametrize(("web", "wrap"), WAYS)
def test_without_a_key_a_decorated_handler_decides(shop: Shop, web: str, wrap: Any, undecorated: Any) -> None:
    """Also where the router has said that another, undecorated handler would be reached."""
    app = guarded(shop, web, wrap, undecorated=undecorated)
    prefix = "/v1" if wrap in (Strips, StripsWsgi) else ""
    (ran,) = shop.send(app, times=1, path=f"{prefix}/optional", keys=())
    assert (ran.status, ran.json()) == (200, {"mode": "leased"}) and shop.charges == 1
    (refused,) = shop.send(app, times=1, path=f"{prefix}/must", keys=())
    assert (refused.status, refused.code) == (400, "missing") and shop.charges == 1
    (left,) = shop.send(app, times=1, path=f"{prefix}/plain", keys=())
    assert (left.status, left.json()) == (200, {"mode": "leased"}) and shop.charges == 2
    assert shop.states() == []


@pytest.mark.parametrize(("web", "wrap"), WAYS)
def test_with_a_key_only_decorated_handlers_are_guarded(
    shop: Shop, web: str, wrap: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = guarded(shop, web, wrap, undecorated="pass")
    prefix = "/v1" if wrap in (Strips, StripsWsgi) else ""
    for number, path in enumerate(("/optional", "/must"), 1):
        got = shop.send(app, path=prefix + path, keys=(path.encode(),))
        assert [one.status for one in got] == [200, 200] and got[1].replayed and shop.charges == number
    left = shop.send(app, path=f"{prefix}/plain", keys=(b"plain",))
    assert [one.status for one in left] == [200, 200] and shop.charges == 4
    assert not [one for one in caplog.records if one.levelname == "ERROR"], "left alone, as was said"
