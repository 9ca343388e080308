"""docs/cors.md: a page of another origin can read whatever samekey says, in each framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from flask import Flask
from litestar import post
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.flask import Samekey
from samekey.litestar import SamekeyPlugin
from samekey.tenants import single_tenant
from tests.django.world import world
from tests.test_docs import blocks, run_block

Send = Callable[..., Any]
"""Method, headers, and a body that tells one request from another."""

STARLETTE, LITESTAR, FLASK = range(3)


def starlette(idempotency: Idempotency) -> Iterator[Send]:
    @idempotency.leased
    async def place(request: Request) -> JSONResponse:
        return JSONResponse({}, 201)

    app = Starlette(routes=[Route("/orders", place, methods=["POST"])])
    names = {"app": app, "idempotency": idempotency, "tenant": single_tenant()}
    run_block(_code(STARLETTE), {**names, "IdempotencyMiddleware": IdempotencyMiddleware})
    with TestClient(app) as client:
        yield lambda method, headers, body: client.request(method, "/orders", headers=headers, content=body)


def litestar(idempotency: Idempotency) -> Iterator[Send]:
    @post("/orders")
    @idempotency.leased
    async def create_order() -> dict[str, int]:
        return {}

    names: dict[str, Any] = {"create_order": create_order, "SamekeyPlugin": SamekeyPlugin}
    names |= {"idempotency": idempotency, "tenant": single_tenant()}
    run_block(_code(LITESTAR), names)
    with LitestarClient(names["app"]) as client:
        yield lambda method, headers, body: client.request(method, "/orders", headers=headers, content=body)


def in_flask(idempotency: Idempotency) -> Iterator[Send]:
    app = Flask("shop")

    @app.post("/orders")
    @idempotency.leased
    def place() -> Any:
        return {}, 201

    run_block(_code(FLASK), {"app": app, "samekey": Samekey(idempotency, tenant=single_tenant())})
    client = app.test_client()
    yield lambda method, headers, body: client.open("/orders", method=method, headers=headers, data=body)


def _code(block: int) -> str:
    return blocks("docs/cors.md", "python")[block]


ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "idempotency-key"}


def check(send: Send) -> None:
    origin = {"Origin": "https://shop.example"}
    preflight = send("OPTIONS", {**origin, **ASKS}, b"")
    assert preflight.status_code in (200, 204)
    assert "idempotency-key" in preflight.headers["Access-Control-Allow-Headers"].lower()
    key = {**origin, "Idempotency-Key": "k"}
    answers = [send("POST", key, b"a"), send("POST", key, b"a"), send("POST", key, b"b")]
    answers.append(send("POST", origin, b"a"))
    assert [one.status_code for one in answers] == [201, 201, 422, 400]
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    for answer in answers:
        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert "Idempotent-Replayed" in answer.headers["Access-Control-Expose-Headers"]
    strange = send("POST", {"Origin": "https://evil.example", "Idempotency-Key": "k"}, b"a")
    assert strange.headers.get("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("framework", [starlette, litestar, in_flask])
def test_the_page_is_right_for(framework: Callable[..., Iterator[Send]], tmp_path: Path) -> None:
    idempotency = Idempotency(f"sqlite:///{tmp_path / 'cors.db'}")
    for send in framework(idempotency):
        check(send)
    idempotency.close()


def cors(get_response: Any) -> Any:
    """As that of django-cors-headers, above samekey's."""

    def middleware(request: Any) -> Any:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        response = HttpResponse() if asks else get_response(request)
        if request.headers.get("Origin") == "https://shop.example":
            response["Access-Control-Allow-Origin"] = "https://shop.example"
            response["Access-Control-Allow-Headers"] = "Idempotency-Key"
            response["Access-Control-Expose-Headers"] = "Idempotent-Replayed"
        return response

    return middleware


def test_the_page_is_right_for_django(sqlite_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.leased
        def place(request: Any) -> HttpResponse:
            return HttpResponse("{}", status=201)

        return [path("orders", place)]

    above = ["tests.frames.test_cors.cors", "samekey.django.IdempotencyMiddleware"]
    with world(sqlite_url, urls, MIDDLEWARE=above):
        client = Client()
        check(lambda method, headers, body: client.generic(method, "/orders", body, headers=headers))


def test_flask_cors_is_said_to_stand_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import flask_cors

    idempotency, app = Idempotency(f"sqlite:///{tmp_path / 'cors.db'}"), Flask("shop")
    Samekey(idempotency, app, tenant=single_tenant(), undecorated="pass")
    flask_cors.CORS(app)
    for _ in range(2):
        assert app.test_client().post("/nothing").status_code == 404
    assert caplog.text.count("docs/cors.md has the lines") == 1
    idempotency.close()
