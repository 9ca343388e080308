"""An answer that is there at once is one, also where a layer in between hands it on in pieces."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import litestar
import litestar.background_tasks
import pytest
from fastapi import BackgroundTasks, FastAPI, Request
from flask import Flask
from pydantic import BaseModel
from starlette.testclient import TestClient

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware


class Model(BaseModel):
    body: str = "of a letter"


@dataclass
class Plain:
    id: int = 1


def _restreamed(idempotency: Idempotency) -> FastAPI:
    """With the usual idiom of a layer, which sends everything on in pieces, of no length that it tells."""
    app = FastAPI()

    @app.middleware("http")
    async def passes(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        if "content-length" in response.headers:
            del response.headers["content-length"]
        return response

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "t")
    return app


def _writes() -> None:
    current_operation().connection.execute("insert into orders values (1)")


def _prepare(url: str) -> Any:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
    connection.execute("create table orders (id integer)")
    connection.commit()
    return lambda: connection.execute("select count(*) from orders").fetchone()[0]


@pytest.mark.parametrize("value", [{"a": 1}, Model(), Plain(), "text", 7, None, (1, 2)], ids=repr)
def test_what_follows_it_sees_what_was_committed(sqlite_url: str, value: Any) -> None:
    idempotency = Idempotency(sqlite_url)
    count = _prepare(sqlite_url)
    seen: list[int] = []
    app = _restreamed(idempotency)

    @app.post("/", response_model=None)
    @idempotency.atomic
    def order(tasks: BackgroundTasks) -> Any:
        _writes()
        tasks.add_task(lambda: seen.append(count()))
        return value

    with TestClient(app) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 200
    assert seen == [1]
    idempotency.close()


LARGE = "x" * 2_000_000


def test_a_large_one_is_committed_behind_a_layer_that_streams(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    count = _prepare(sqlite_url)
    app = _restreamed(idempotency)

    @app.post("/")
    @idempotency.atomic
    def order() -> Any:
        _writes()
        return {"large": LARGE}

    with TestClient(app) as client:
        sent = client.post("/", headers={"Idempotency-Key": "k"})
        assert (sent.status_code, len(sent.content) > len(LARGE), count()) == (200, True, 1)
        again = client.post("/", headers={"Idempotency-Key": "k"})
        assert (again.status_code, again.json()["code"], count()) == (409, "result_unavailable", 1)
    idempotency.close()


def test_a_large_one_is_committed_behind_a_layer_that_cuts_it(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    count = _prepare(sqlite_url)
    app = Flask("large")

    @app.post("/")
    @idempotency.atomic
    def order() -> Any:
        _writes()
        return LARGE

    inside = app.wsgi_app

    def cut(environ: Any, start_response: Any) -> Iterator[bytes]:
        for chunk in inside(environ, start_response):
            yield from (chunk[at : at + 65536] for at in range(0, len(chunk), 65536))

    app.wsgi_app = WSGIMiddleware(  # type: ignore[method-assign]
        cut, idempotency=idempotency, tenant=lambda _: "t", undecorated="pass"
    )
    client = app.test_client()
    sent = client.post("/", headers={"Idempotency-Key": "k"})
    assert (sent.status_code, sent.text == LARGE, count()) == (200, True, 1)
    again = client.post("/", headers={"Idempotency-Key": "k"})
    assert (again.status_code, count()) == (409, 1)
    idempotency.close()


def _in_two_messages(app: Any) -> Any:
    """A layer of Litestar's that sends each body on in a piece of its own, and then ends."""

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        async def sends(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0].lower() != b"content-length"]
                message = {**message, "headers": headers}
            elif message["type"] == "http.response.body" and not message.get("more_body"):
                await send({**message, "more_body": True})
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await app(scope, receive, sends)

    return layer


@pytest.mark.parametrize("value", [{"a": 1}, Model(), "text"], ids=repr)
@pytest.mark.parametrize("as_response", [True, False])
def test_what_follows_an_answer_of_litestars_sees_what_was_committed(
    sqlite_url: str, value: Any, as_response: bool
) -> None:
    idempotency = Idempotency(sqlite_url)
    count = _prepare(sqlite_url)
    seen: list[int] = []

    async def follows() -> None:
        seen.append(count())

    @litestar.post("/", background=None if as_response else litestar.background_tasks.BackgroundTask(follows))
    @idempotency.atomic
    async def order() -> Any:
        await current_operation().connection.execute("insert into orders values (1)")
        if as_response:
            return litestar.Response(value, background=litestar.background_tasks.BackgroundTask(follows))
        return value

    app: Any = litestar.Litestar([order], middleware=[_in_two_messages])
    guarded: Any = IdempotencyMiddleware(app, idempotency=idempotency, tenant=lambda _: "t")
    with TestClient(guarded) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 201
    assert seen == [1]
    idempotency.close()
