"""The API page of each framework: what it says is valid, and whoever knows only that can send a request."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from flask.views import MethodView
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.testclient import TestClient

import examples.shop.books
import examples.shop.fastapi
import examples.shop.litestar
from lab import environment
from samekey import ConfigurationError, Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.flask import Samekey
from samekey.openapi import describe, described
from samekey.tenants import by_api_key, single_tenant
from tests.chosen import whole

Send = Callable[..., Any]
"""Sends a request: method, path, json, headers. Gives status and content."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    examples.shop.books.prepare(url)
    return url


def fastapi_shop(url: str) -> Iterator[tuple[str, Send]]:
    with TestClient(examples.shop.fastapi.make(url)) as client:
        yield "/openapi.json", client.request


def litestar_shop(url: str) -> Iterator[tuple[str, Send]]:
    with LitestarClient(examples.shop.litestar.make(url)) as client:
        yield "/schema/openapi.json", client.request


def smorest_shop(url: str) -> Iterator[tuple[str, Send]]:
    """OpenAPI 3.0, and API keys in a header of their own."""
    import flask_smorest
    import marshmallow

    smorest: Any = flask_smorest

    class Wanted(marshmallow.Schema):
        sku = marshmallow.fields.String(required=True)
        quantity = marshmallow.fields.Integer(required=True)

    idempotency, app = Idempotency(url), Flask(__name__)
    app.config.update(API_TITLE="Shop", API_VERSION="1", OPENAPI_VERSION="3.0.3", OPENAPI_URL_PREFIX="/")
    api, orders = smorest.Api(app), smorest.Blueprint("orders", __name__)
    keys = by_api_key({"demo": "acme"}, header="X-Api-Key")
    Samekey(idempotency, app, tenant=keys, undecorated="pass")

    @orders.route("/orders")
    class Orders(MethodView):
        @orders.arguments(Wanted)  # type: ignore[untyped-decorator]
        @orders.response(201, Wanted)  # type: ignore[untyped-decorator]
        @idempotency.leased
        def post(self, wanted: dict[str, Any]) -> Any:
            return wanted

    api.register_blueprint(orders)
    client = app.test_client()
    yield "/openapi.json", lambda method, path, **sent: client.open(path, method=method, **sent)
    idempotency.close()


def content(answer: Any) -> Any:
    return json.loads(answer.get_data() if hasattr(answer, "get_data") else answer.content)


def found(part: Any, document: Any) -> Any:
    while "$ref" in part:
        inner = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            inner = inner[name]
        part = inner
    return part


def example_of(schema: Any, document: Any) -> Any:
    """A value by a schema alone."""
    schema = found(schema, document)
    if schema.get("type") == "object":
        return {name: example_of(one, document) for name, one in schema["properties"].items()}
    return {"string": "tea", "integer": int(schema.get("minimum", 1))}[schema["type"]]


def built(document: Any, path: str) -> dict[str, Any]:
    """A POST as an API page would send it, with nothing known but the document."""
    operation = document["paths"][path]["post"]
    headers: dict[str, str] = {}
    for parameter in (found(one, document) for one in operation["parameters"]):
        if parameter["in"] == "header":
            headers[parameter["name"]] = str(parameter.get("example", uuid.uuid4()))
    for name in (name for one in operation["security"] for name in one):
        scheme = document["components"]["securitySchemes"][name]
        if scheme["type"] == "apiKey":
            headers[scheme["name"]] = "demo"
        else:
            headers["Authorization"] = f"{scheme['scheme'].title()} demo"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return {"json": example_of(schema, document), "headers": headers}


@pytest.mark.parametrize("shop", [fastapi_shop, litestar_shop, smorest_shop])
def test_a_request_that_is_built_from_the_page_alone_succeeds(shop: Any, url: str) -> None:
    for place, send in shop(url):
        document = content(send("GET", place))
        request = built(document, "/orders")
        first, again = send("POST", "/orders", **request), send("POST", "/orders", **request)
        assert (first.status_code, again.status_code) == (201, 201), content(first)
        assert again.headers["Idempotent-Replayed"] == "true"
        said = document["paths"]["/orders"]["post"]["responses"]
        missing = {name: one for name, one in request["headers"].items() if name != "Idempotency-Key"}
        refused = send("POST", "/orders", json=request["json"], headers=missing)
        other = send("POST", "/orders", json={**request["json"], "sku": "milk"}, headers=request["headers"])
        for answer in (refused, other):
            response = found(said[str(answer.status_code)], document)
            examples = response["content"]["application/problem+json"]["examples"]
            assert content(answer)["code"] in examples
        assert {"400", "409", "422", "503"} <= said.keys()
        assert said["201"]["headers"].keys() >= {"Idempotent-Replayed", "Idempotency-Key-Expires"}


@pytest.mark.parametrize("shop", [fastapi_shop, litestar_shop, smorest_shop])
def test_the_document_is_valid(shop: Any, url: str) -> None:
    for place, send in shop(url):
        document = content(send("GET", place))
        must_be_valid(document)
        if document["openapi"].startswith("3.0"):
            assert '"const"' not in json.dumps(document)


def must_be_valid(document: Any) -> None:
    """By schemathesis, and every reference leads somewhere."""
    import schemathesis

    operations: Any = list(schemathesis.openapi.from_dict(document).get_all_operations())
    assert {one.ok().method for one in operations} >= {"post"}
    for reference in _references(document):
        found(reference, document)


def _references(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part
        for one in part.values():
            yield from _references(one)
    elif isinstance(part, list):
        for one in part:
            yield from _references(one)


@whole
def test_a_request_that_is_built_from_rest_frameworks_page_succeeds(tmp_path: Path) -> None:
    """By drf-spectacular's document; in a process with settings of its own."""
    command = [sys.executable, "-m", "tests.frames.spectacular_child", f"sqlite:///{tmp_path / 'drf.db'}"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["sent"]), ran.stderr


def test_what_the_document_says_itself_stays(url: str) -> None:
    idempotency, app = Idempotency(url), FastAPI()
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())

    @app.post("/orders", responses={409: {"description": "Sold out"}})
    @idempotency.leased
    async def place() -> str:
        return current_operation().id

    @app.post("/hidden", include_in_schema=False)
    @idempotency.leased
    async def hidden() -> None: ...

    before = app.openapi()
    made = described(before, app, idempotency)
    operation = made["paths"]["/orders"]["post"]
    assert operation["responses"]["409"]["description"].startswith("Sold out. The first request is still")
    assert "security" not in operation  # one tenant for all: nobody is asked who he is
    assert made["paths"].keys() == {"/orders", "/idempotency/{operation}"}
    assert "parameters" not in before["paths"]["/orders"]["post"]
    assert described(made, app)["paths"]["/orders"]["post"]["parameters"] == operation["parameters"]
    idempotency.close()


def test_what_cannot_be_described_is_a_sentence(url: str) -> None:
    idempotency, app = Idempotency(url), FastAPI()
    app.post("/orders")(lambda: None)
    describe(app, idempotency)
    with pytest.raises(ConfigurationError, match="guards nothing in this application"):
        app.openapi()
    with pytest.raises(ConfigurationError, match="described\\(document, app\\)"):
        describe(Starlette())
    idempotency.close()
