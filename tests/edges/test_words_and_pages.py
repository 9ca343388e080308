"""What a handler said itself decides about its writes, whatever page is made of it on the way out."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from fastapi.testclient import TestClient
from flask import Flask, abort, jsonify, make_response, redirect

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware

Post = Callable[[], tuple[int, bool]]
Act = Callable[[], Any]


class Till:
    """An application with one POST, in an envelope or not, that writes a row and then ends as it is told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = 0
        with sqlite3.connect(path) as connection:
            connection.execute("create table paid (id integer primary key)")
        self.idempotency = Idempotency(f"sqlite:///{path}")

    @property
    def rows(self) -> int:
        with sqlite3.connect(self.path) as connection:
            found: int = connection.execute("select count(*) from paid").fetchone()[0]
            return found

    def fastapi(self, end: Act, *, envelope: bool, mode: str = "atomic") -> Post:
        app = FastAPI()
        if envelope:

            @app.middleware("http")
            async def wrap(request: Request, call_next: Any) -> Response:
                answer = await call_next(request)
                return JSONResponse({"code": answer.status_code})

        app.add_middleware(IdempotencyMiddleware, idempotency=self.idempotency, tenant=single_tenant())

        async def pay() -> Any:
            self.runs += 1
            if mode == "atomic":
                await current_operation().connection.execute("insert into paid default values")
            return end()

        app.post("/", response_model=None)(getattr(self.idempotency, mode)(pay))
        client = TestClient(app, raise_server_exceptions=False, follow_redirects=False)

        def post() -> tuple[int, bool]:
            got = client.post("/", headers={"Idempotency-Key": "k"})
            return got.status_code, "idempotent-replayed" in got.headers

        return post

    def flask(self, end: Act, *, envelope: bool, mode: str = "atomic") -> Post:
        app = Flask("till")
        if envelope:

            @app.after_request
            def wrap(answer: Any) -> Any:
                return make_response(jsonify(code=answer.status_code), 200)

        def pay() -> Any:
            self.runs += 1
            if mode == "atomic":
                current_operation().connection.execute("insert into paid default values")
            return end()

        app.post("/")(getattr(self.idempotency, mode)(pay))
        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=self.idempotency, tenant=single_tenant()
        )

        def post() -> tuple[int, bool]:
            got = app.test_client().post("/", headers={"Idempotency-Key": "k"})
            return got.status_code, "Idempotent-Replayed" in got.headers

        return post


@pytest.fixture
def till(tmp_path: Path) -> Any:
    made = Till(tmp_path / "till.db")
    yield made
    made.idempotency.close()


def _raise(error: Exception) -> Act:
    def act() -> Any:
        raise error

    return act


RAISED: dict[str, tuple[str, Act]] = {
    "a redirect of Flask's": ("flask", lambda: abort(redirect("/done", 303))),
    "a response of Flask's": ("flask", lambda: abort(make_response({"id": 7}, 201))),
    "a redirect of FastAPI's": ("fastapi", _raise(HTTPException(303, headers={"Location": "/done"}))),
    "a success of FastAPI's": ("fastapi", _raise(HTTPException(200, detail="done"))),
}


@pytest.mark.parametrize("what", RAISED)
def test_a_success_that_is_raised_is_rolled_back_and_never_told(till: Till, what: str) -> None:
    framework, end = RAISED[what]
    post: Post = getattr(till, framework)(end, envelope=False)
    assert [post(), post()] == [(500, False), (500, False)]
    assert (till.runs, till.rows) == (2, 0)


@pytest.mark.parametrize("what", RAISED)
def test_a_success_that_is_raised_is_the_answer_where_nothing_is_rolled_back(till: Till, what: str) -> None:
    framework, end = RAISED[what]
    post: Post = getattr(till, framework)(end, envelope=False, mode="leased")
    first = post()
    assert first[0] < 400 and post() == (first[0], True)
    assert till.runs == 1


def _answer(framework: str, status: int) -> Act:
    if framework == "flask":
        return lambda: make_response({}, status)
    return lambda: JSONResponse({}, status)


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_failure_in_an_envelope_is_rolled_back_and_runs_again(
    till: Till, framework: str, status: int
) -> None:
    post: Post = getattr(till, framework)(_answer(framework, status), envelope=True)
    assert [post(), post()] == [(500, False), (500, False)]
    assert (till.runs, till.rows) == (2, 0)


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_a_refusal_in_an_envelope_is_rolled_back_and_remembered_as_it_is(till: Till, framework: str) -> None:
    post: Post = getattr(till, framework)(_answer(framework, 402), envelope=True)
    assert [post(), post()] == [(200, False), (200, True)]
    assert (till.runs, till.rows) == (1, 0)


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_a_failure_in_an_envelope_is_not_kept_as_a_success_of_leased_work(till: Till, framework: str) -> None:
    post: Post = getattr(till, framework)(_answer(framework, 503), envelope=True, mode="leased")
    assert [post(), post()] == [(409, False), (409, False)]
    assert till.runs == 1


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_a_success_in_an_envelope_is_committed(till: Till, framework: str) -> None:
    post: Post = getattr(till, framework)(_answer(framework, 201), envelope=True)
    assert [post(), post()] == [(200, False), (200, True)]
    assert (till.runs, till.rows) == (1, 1)


@pytest.mark.parametrize(("said", "made"), [(201, 503), (201, 429)])
def test_a_status_that_is_changed_in_place_frees_no_key(till: Till, said: int, made: int) -> None:
    """The handler's word is what it returned, whatever becomes of the object."""
    app = Flask("till")

    @app.after_request
    def change(answer: Any) -> Any:
        answer.status_code = made
        return answer

    @app.post("/")
    @till.idempotency.leased
    def pay() -> Any:
        till.runs += 1
        return make_response({}, said)

    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=till.idempotency, tenant=single_tenant()
    )
    for _ in range(3):
        app.test_client().post("/", headers={"Idempotency-Key": "k"})
    assert till.runs == 1


def test_headers_may_be_any_iterable_and_are_the_answers_own(tmp_path: Path) -> None:
    asyncio.run(_headers_of_any_kind(tmp_path))


async def _headers_of_any_kind(tmp_path: Path) -> None:
    idempotency = Idempotency(f"sqlite:///{tmp_path / 'store.db'}")
    headers = [(b"content-type", b"text/plain"), (b"location", b"/orders/1")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": (one for one in headers)})
        await send({"type": "http.response.body", "body": b"made"})

    guarded = IdempotencyMiddleware(app, idempotency=idempotency, tenant=single_tenant())
    transport = httpx2.ASGITransport(app=guarded)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        for replayed in (False, True):
            got = await client.post("/", headers={"Idempotency-Key": "k"})
            assert (got.headers["location"], got.headers["content-type"]) == ("/orders/1", "text/plain")
            assert ("idempotent-replayed" in got.headers) is replayed
    await idempotency.aclose()
