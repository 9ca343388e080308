"""What an application does after its answer, where the client is given another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import StreamingResponse
from flask import Flask, after_this_request
from starlette.testclient import TestClient

from lab.proxy import FaultProxy, cut_after
from lab.servers.postgres import NamedServer
from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware

OUTCOMES = [pytest.param(False, id="committed"), pytest.param(True, id="gone before its commit")]


@pytest.fixture
def url(postgres_server: NamedServer) -> Iterator[str]:
    made = postgres_server.create_database()
    yield made
    postgres_server.drop_database(made)


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    made = Idempotency(url, timeout=5)
    run(made.engine.drivers.sync, lambda: migrate(made.engine.queries))
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("create table orders (number int)")
    yield made
    made.close()


def end(url: str, pid: int) -> None:
    """The server ends a connection, and has done so when this returns."""
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", (pid,))


@pytest.mark.parametrize("anew", [False, True], ids=["as it is", "sent on in pieces"])
@pytest.mark.parametrize("ended", OUTCOMES)
def test_background_tasks_and_dependencies_do_not_follow_an_answer_that_was_withheld(
    idempotency: Idempotency, url: str, ended: bool, anew: bool
) -> None:
    app, done = FastAPI(), []

    async def pass_on(request: Any, call_next: Any) -> Any:
        """The usual way to log or to wrap an answer."""
        made = await call_next(request)
        body = b"".join([piece async for piece in made.body_iterator])
        return StreamingResponse(iter([body]), made.status_code, media_type="application/json")

    if anew:
        app.middleware("http")(pass_on)

    async def dependency() -> Any:
        yield None
        done.append("dependency")

    @app.post("/orders", status_code=201, dependencies=[Depends(dependency)])
    @idempotency.atomic
    async def order(tasks: BackgroundTasks) -> dict[str, bool]:
        tasks.add_task(done.append, "task")
        connection = current_operation().connection
        pid = await connection.fetchval("select pg_backend_pid()")
        await connection.execute("insert into orders values (1)")
        if ended:
            await asyncio.to_thread(end, url, pid)
        return {"ordered": True}

    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("acme"))
    with TestClient(app) as client:
        got = client.post("/orders", headers={"Idempotency-Key": "k1"})
    assert (got.status_code, sorted(done)) == ((503, []) if ended else (201, ["dependency", "task"]))


class Tracing:
    """A layer around Flask's application, as tracing and profiling have it: it wraps the iterable."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        chunks = self.app(dict(environ), start_response)
        try:
            yield from chunks
        finally:
            chunks.close()


@pytest.mark.parametrize("around", [None, Tracing])
@pytest.mark.parametrize("ended", OUTCOMES)
def test_callbacks_of_flask_do_not_follow_an_answer_that_was_withheld(
    idempotency: Idempotency, url: str, ended: bool, around: Any
) -> None:
    app, done = Flask(__name__), []
    app.teardown_request(lambda _error: done.append("teardown"))

    @app.post("/orders")
    @idempotency.atomic
    def order() -> Any:
        @after_this_request
        def receipt(response: Any) -> Any:
            response.call_on_close(lambda: done.append("receipt"))
            return response

        connection = current_operation().connection
        pid = connection.execute("select pg_backend_pid()").fetchone()[0]
        connection.execute("insert into orders values (1)")
        if ended:
            end(url, pid)
        return {"ordered": True}, 201

    inner = app.wsgi_app if around is None else around(app.wsgi_app)
    app.wsgi_app = WSGIMiddleware(  # type: ignore[method-assign]
        inner, idempotency=idempotency, tenant=single_tenant("acme")
    )
    with app.test_client().post("/orders", headers={"Idempotency-Key": "k1"}) as got:
        status = got.status_code
    assert (status, done) == ((503, ["teardown"]) if ended else (201, ["teardown", "receipt"]))


def test_an_uncertain_commit_without_a_key_does_not_ask_for_a_second_operation(
    postgres_server: NamedServer,
) -> None:
    url = postgres_server.create_database()
    app = FastAPI()
    with FaultProxy.before(url) as proxy:
        idempotency = Idempotency(proxy.url_for(url), timeout=5)
        run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("create table orders (number int)")

        @app.post("/orders", status_code=201)
        @idempotency.atomic(required=False)
        async def order() -> dict[str, bool]:
            await current_operation().connection.execute("insert into orders values (1)")
            return {"ordered": True}

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("acme"))
        with TestClient(app, raise_server_exceptions=False) as client:
            assert client.post("/orders").status_code == 201
            proxy.on_commit(cut_after)
            got = client.post("/orders")
        idempotency.close()
    with psycopg.connect(url) as other:
        assert other.execute("select count(*) from orders").fetchone() == (2,)
    postgres_server.drop_database(url)
    assert got.status_code == 500 and "retry-after" not in got.headers
    assert "Find out before you send it again" in got.json()["detail"]
