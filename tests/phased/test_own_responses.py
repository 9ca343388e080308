"""Phased functions may return what their framework's other handlers return: a response of its own."""

from __future__ import annotations

import json
from datetime import date
from http import HTTPStatus
from typing import Any

import httpx
import litestar
import pytest
import werkzeug.test
from fastapi import FastAPI
from flask import Flask, make_response
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from samekey import Idempotency, Input
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.engine.handler.own_responses import answer_returned, of_framework
from samekey.errors import ConfigurationError, NotSerialisable
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.django.world import project


def of_fastapi(idempotency: Idempotency, charges: list[str]) -> Any:
    app = FastAPI()
    app.add_middleware(AsgiMiddleware, idempotency=idempotency, tenant=lambda _scope: "acme")

    @app.post("/rides")
    @idempotency.phased("ride", version=1)
    async def ride(op: Any, input: Input) -> Any:
        async def charge(_effect: Any) -> str:
            charges.append(op.id)
            return "ch_1"

        charged = await op.effect("charged", charge, source="acme")
        return JSONResponse({"charge": charged}, 201, {"x-ride": "7"})

    return TestClient(app)


def of_flask(idempotency: Idempotency, charges: list[str]) -> Any:
    app = Flask("rides")

    @app.post("/rides")
    @idempotency.phased("ride", version=1)
    def ride(op: Any, input: Input) -> Any:
        def charge(_effect: Any) -> str:
            charges.append(op.id)
            return "ch_1"

        charged = op.effect("charged", charge, source="acme")
        return make_response({"charge": charged}, 201, {"x-ride": "7"})

    return werkzeug.test.Client(WsgiMiddleware(app, idempotency=idempotency, tenant=lambda _environ: "acme"))


@pytest.mark.parametrize("made", [of_fastapi, of_flask])
def test_it_is_the_answer_first_and_replayed(made: Any, sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    charges: list[str] = []
    client = made(idempotency, charges)
    for replayed in (None, "true"):
        got = client.post("/rides", json={}, headers={"Idempotency-Key": "k"})
        body = got.json if made is of_flask else got.json()
        assert (got.status_code, body) == (201, {"charge": "ch_1"})
        assert got.headers["x-ride"] == "7" and got.headers.get("idempotent-replayed") == replayed
    assert len(charges) == 1
    idempotency.close()


@pytest.mark.parametrize("value", [None, {"status_code": 1}, "text", 7, object()])
def test_nothing_else_is_taken_for_one(value: Any) -> None:
    assert of_framework(value) is None


def of_rest_framework() -> Any:
    project()
    from rest_framework.response import Response

    return Response({"id": date(2026, 11, 16)}, status=201, headers={"x-ride": "7"})


def of_a_template() -> Any:
    project()
    from django.template import engines
    from django.template.response import SimpleTemplateResponse

    template = engines["django"].from_string('{"id": "{{ number }}"}')
    return SimpleTemplateResponse(
        template, {"number": "2026-11-16"}, "application/json", 201, headers={"x-ride": "7"}
    )


def of_litestar() -> Any:
    return litestar.Response({"id": date(2026, 11, 16)}, headers={"x-ride": "7"})


@pytest.mark.parametrize("made", [of_rest_framework, of_a_template, of_litestar])
def test_what_is_rendered_late_is_rendered(made: Any) -> None:
    answer = of_framework(made(), 201)
    assert answer is not None
    assert (answer.status, json.loads(answer.body)) == (201, {"id": "2026-11-16"})
    assert answer.header(b"x-ride") == b"7"
    assert (answer.header(b"content-type") or b"").startswith(b"application/json")


def test_a_background_task_is_said_to_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    answer = of_framework(JSONResponse({}, background=BackgroundTask(print)))
    assert answer is not None and "is not run" in caplog.text


def test_what_somebody_else_has_answered_is_none() -> None:
    with pytest.raises(NotSerialisable, match="httpx was answered by somebody else"):
        of_framework(httpx.Response(200, json={"secret": 1}))


@pytest.mark.parametrize(
    ("value", "status", "body", "header"),
    [
        (({"a": 1}, 201), 201, {"a": 1}, None),
        (({"a": 1}, "201 CREATED"), 201, {"a": 1}, None),
        (({"a": 1}, HTTPStatus.CREATED), 201, {"a": 1}, None),
        (({"a": 1}, 201, {"X-A": "1"}), 201, {"a": 1}, b"1"),
        (({"a": 1}, 201, [("X-A", "1")]), 201, {"a": 1}, b"1"),
        (({"a": 1}, {"X-A": "1"}), 200, {"a": 1}, b"1"),
        ((Flask("x").response_class('{"a": 1}', mimetype="application/json"), 201), 201, {"a": 1}, None),
        ((1, 2), 200, [1, 2], None),
        ((1, 2, 3), 200, [1, 2, 3], None),
        (({"a": 1}, True), 200, [{"a": 1}, True], None),
    ],
)
def test_a_tuple_is_read_as_flask_reads_it(value: Any, status: int, body: Any, header: bytes | None) -> None:
    answer = answer_returned(value)
    assert (answer.status, json.loads(answer.body), answer.header(b"x-a")) == (status, body, header)
    assert answer.header(b"content-type") == b"application/json"


def test_a_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="line break"):
        answer_returned(({}, 201, [("X-A", "1\r\nX-B: 2")]))
