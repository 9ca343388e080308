"""A class whose method overrides a guarded one and calls it: two guards would meet in the middle of a
request. It is said at start-up, and nothing runs, so that no key is burnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import werkzeug.test
from flask import Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import ConfigurationError, Idempotency
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware

Post = Callable[[str], int]


def of_flask(idempotency: Idempotency, guard: Any, runs: list[str], **options: Any) -> Post:
    class Base(MethodView):
        @guard  # type: ignore[untyped-decorator]
        def post(self) -> Any:
            runs.append("base")
            return {}, 201

    class Child(Base):
        def post(self) -> Any:
            runs.append("child")
            return super().post()

    app = Flask("shop")
    app.add_url_rule("/base", view_func=Base.as_view("base"))
    app.add_url_rule("/child", view_func=Child.as_view("child"))
    served = WsgiMiddleware(app, idempotency=idempotency, tenant=lambda _environ: "acme", **options)
    client = werkzeug.test.Client(served)

    def post(path: str) -> int:
        try:
            return client.post(path, headers={"Idempotency-Key": f"key-{path}"}).status_code
        except ConfigurationError:
            return 500  # as a server tells it

    return post


def of_starlette(idempotency: Idempotency, guard: Any, runs: list[str], **options: Any) -> Post:
    class Base(HTTPEndpoint):
        @guard  # type: ignore[untyped-decorator]
        async def post(self, request: Request) -> Any:
            runs.append("base")
            return JSONResponse({}, 201)

    class Child(Base):
        async def post(self, request: Request) -> Any:
            runs.append("child")
            return await super().post(request)

    app = Starlette(routes=[Route("/base", Base), Route("/child", Child)])
    app.add_middleware(AsgiMiddleware, idempotency=idempotency, tenant=lambda _scope: "acme", **options)
    client = TestClient(app, raise_server_exceptions=False)
    return lambda path: client.post(path, headers={"Idempotency-Key": f"key-{path}"}).status_code


FRAMEWORKS = pytest.mark.parametrize("made", [of_flask, of_starlette])


@FRAMEWORKS
def test_an_override_of_a_guarded_method_is_refused_and_nothing_runs(
    made: Any, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = Idempotency(sqlite_url)
    runs: list[str] = []
    post = made(idempotency, idempotency.atomic(strict=False), runs)
    assert [post("/child"), post("/child")] == [500, 500]
    assert runs == [], "nothing has run, so no key is burnt"
    assert "Child.post is not decorated, but leads to" in caplog.text
    idempotency.close()


@FRAMEWORKS
def test_the_class_itself_is_served(made: Any, sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    runs: list[str] = []
    with pytest.warns(RuntimeWarning, match="wrote nothing"):
        assert made(idempotency, idempotency.atomic, runs)("/base") == 201
    idempotency.close()


@FRAMEWORKS
def test_leased_work_is_one_part_where_the_key_is_required_outside_too(made: Any, sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    runs: list[str] = []
    post = made(idempotency, idempotency.leased, runs, routes={"/child": "required"})
    assert [post("/child"), post("/child")] == [201, 201]
    assert runs == ["child", "base"]
    idempotency.close()
