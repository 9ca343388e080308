"""A job that the handler takes back, with a savepoint of its own, was never enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from samekey import JobContext, current_operation
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.errors import NothingEnqueued
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import AsgiClient, Client, WsgiClient
from tests.outbox.world import Kind, Outbox, assert_accepted, order, tenant_of

pytestmark = pytest.mark.parametrize("kind", ["async", "sync"])


def shop(outbox: Outbox, kind: Kind, then: Sequence[str]) -> Client:
    """Its handler enqueues ``charge``, takes that back with a savepoint, and enqueues ``then``."""
    if kind == "sync":
        app = flask.Flask(__name__)

        @app.post("/orders")
        @outbox.idempotency.deferred
        def place() -> Any:
            operation = current_operation()
            operation.connection.execute("insert into orders values ('written')")
            operation.connection.execute("savepoint fallback")
            operation.enqueue("charge")
            operation.connection.execute("rollback to savepoint fallback")
            for name in then:
                operation.enqueue(name)
            return flask.Response(status=202)

        app.config["PROPAGATE_EXCEPTIONS"] = True
        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=outbox.idempotency, tenant=tenant_of
        )
        return WsgiClient(app, outbox.threads)

    @outbox.idempotency.deferred
    async def place_async(_request: Any) -> Any:
        operation = current_operation()
        await operation.connection.execute("insert into orders values ('written')")
        await operation.connection.execute("savepoint fallback")
        await operation.enqueue("charge")
        await operation.connection.execute("rollback to savepoint fallback")
        for name in then:
            await operation.enqueue(name)
        return PlainTextResponse("accepted", 202)

    starlette = Starlette(routes=[Route("/orders", place_async, methods=["POST"])])
    starlette.add_middleware(AsgiMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
    return AsgiClient(starlette, outbox.loop)


def runs_of(outbox: Outbox) -> list[tuple[str, str]]:
    """The jobs ``charge`` and ``invoice``; gives the list of their runs."""
    runs: list[tuple[str, str]] = []
    for name in ("charge", "invoice"):

        def does(job: JobContext, _payload: Any, name: str = name) -> Any:
            runs.append((name, job.key))
            return {"done": name}

        outbox.idempotency.job(name)(does)
    return runs


@pytest.mark.parametrize("then", [("invoice",), ("charge", "invoice")])
def test_the_first_job_that_stands_is_the_one_that_answers(
    outbox: Outbox, kind: Kind, then: Sequence[str]
) -> None:
    runs = runs_of(outbox)
    client = shop(outbox, kind, then)
    assert_accepted(client.send(order("k")))
    outbox.work()
    final = client.send(order("k"))
    assert (final.status, final.json()) == (200, {"done": then[0]})
    assert sorted(name for name, _ in runs) == sorted(then)
    assert len({key for _, key in runs}) == len(then)


def test_a_handler_that_takes_back_its_only_job_has_enqueued_nothing(outbox: Outbox, kind: Kind) -> None:
    runs_of(outbox)
    got = shop(outbox, kind, ()).send(order("k"))
    assert got.status == 500 and isinstance(got.error, NothingEnqueued)
    assert "savepoints" in str(got.error)
    assert (outbox.orders(), outbox.jobs(), outbox.states()) == ([], [], [])
    assert_accepted(shop(outbox, kind, ("invoice",)).send(order("k")))
