"""A request that is refused for its key learns in which part it differs, and not what the first one held."""

from __future__ import annotations

from functools import partial
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.testclient import TestClient

from samekey import FingerprintRules, Idempotency, KeyReused, ietf, stripe
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware

RULES = FingerprintRules(
    headers=("Api-Version",), exclude_query=("utm_source",), secrets=(b"a secret that tests share",)
)
FIRST: dict[str, Any] = {
    "method": "POST",
    "path": "/pay/1",
    "query": "to=1",
    "headers": {"Idempotency-Key": "k", "Content-Type": "application/json", "Api-Version": "1"},
    "body": b'{"cents": 1}',
}
CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"body": b'{"cents": 2}'}, ["body"]),
    ({"query": "to=2"}, ["query"]),
    ({"path": "/pay/2"}, ["path"]),
    ({"method": "PATCH"}, ["method"]),
    ({"headers": {**FIRST["headers"], "Api-Version": "2"}}, ["headers"]),
    ({"headers": {**FIRST["headers"], "Content-Type": "application/x+json"}}, ["media type"]),
    ({"path": "/pay/2", "query": "", "body": b""}, ["path", "query", "body"]),
]


def idempotency_on(url: str, profile: Any = ietf) -> Idempotency:
    made = Idempotency(url, policy=profile(fingerprint=RULES))
    made.migrate()
    return made


class Asgi:
    def __init__(self, idempotency: Idempotency) -> None:
        app = FastAPI(openapi_url=None)

        @app.api_route("/pay/{number}", methods=["POST", "PATCH"])
        @idempotency.leased
        async def pay(request: Request, number: int) -> Any:
            return {"paid": number}

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
        self._client = TestClient(app)
        self._client.__enter__()

    def close(self) -> None:
        self._client.__exit__(None, None, None)

    def send(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> Any:
        got = self._client.request(method, f"{path}?{query}", headers=headers, content=body)
        return got.status_code, got.json()


class Wsgi:
    def __init__(self, idempotency: Idempotency) -> None:
        app = flask.Flask("shop")

        @app.route("/pay/<int:number>", methods=["POST", "PATCH"])
        @idempotency.leased
        def pay(number: int) -> Any:
            return {"paid": number}

        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=idempotency, tenant=single_tenant()
        )
        self._client = app.test_client()
        self.close = idempotency.close

    def send(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> Any:
        got = self._client.open(path, method=method, query_string=query, headers=headers, data=body)
        return got.status_code, got.get_json()


@pytest.mark.parametrize("store", ["sqlite_url", "postgres_url"])
@pytest.mark.parametrize("kind", [Asgi, Wsgi])
def test_a_refusal_names_the_parts_that_differ(
    request: pytest.FixtureRequest, store: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = idempotency_on(request.getfixturevalue(store))
    client = kind(idempotency)
    assert client.send(**FIRST) == (200, {"paid": 1})
    assert client.send(**{**FIRST, "query": "utm_source=mail&to=1"}) == (200, {"paid": 1}), (
        "it does not count"
    )
    for change, parts in CHANGES:
        status, problem = client.send(**{**FIRST, **change})
        assert (status, problem["code"], problem["differs"]) == (422, "reused", parts)
        assert f"different in its {' and '.join(parts)}, so nothing was done" in problem["detail"]
        assert f"another request: {', '.join(parts)} differs" in caplog.text
    client.close()


def test_stripes_envelope_names_them_in_its_sentence(sqlite_url: str) -> None:
    idempotency = idempotency_on(sqlite_url, partial(stripe, methods={"POST", "PATCH"}))
    client = Wsgi(idempotency)
    client.send(**FIRST)
    status, answer = client.send(**{**FIRST, "body": b"{}"})
    assert status == 400 and "different in its body" in answer["error"]["message"]
    idempotency.close()


def test_a_call_is_told_in_its_own_words(sqlite_url: str) -> None:
    idempotency = idempotency_on(sqlite_url)

    def call(name: str, payload: int) -> Any:
        return idempotency.once(tenant="t", key="k", name=name, payload=payload, run=lambda: 1)

    call("book", 1)
    for name, payload, says in (
        ("book", 2, "payload"),
        ("send", 1, "function"),
        ("send", 2, "function and payload"),
    ):
        with pytest.raises(KeyReused, match=f"first used with another {says}. Nothing"):
            call(name, payload)
    idempotency.close()
