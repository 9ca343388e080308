"""What a deferred handler leaves behind: a thread or a task that still enqueues when the handler has ended.

Its job would belong to nothing, or stand in another tenant's transaction, and a worker would do it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.engine.jobs import Envelope
from samekey.errors import OperationOver
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import AsgiClient, Client, WsgiClient
from tests.outbox.world import Kind, Outbox, order, tenant_of

PATIENCE = 20.0
LEFT_OVER = "left over"


class Gate:
    """The lock of a connection, which threads of a certain name only ask for once it is opened."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.opened = threading.Event()
        self.reached = threading.Semaphore(0)

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        if threading.current_thread().name == LEFT_OVER:
            self.reached.release()
            assert self.opened.wait(PATIENCE)
        return bool(self._lock.acquire(*args, **kwargs))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def client_of(outbox: Outbox, handler: Callable[[], Any]) -> Client:
    app = flask.Flask(__name__)
    app.config["PROPAGATE_EXCEPTIONS"] = True
    app.post("/orders")(outbox.idempotency.deferred(handler))
    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=outbox.idempotency, tenant=tenant_of
    )
    return WsgiClient(app, outbox.threads)


def declare(outbox: Outbox) -> None:
    @outbox.idempotency.job("charge")
    def charge(_job: Any, _payload: Any) -> None:
        raise AssertionError("nothing is worked here")


@pytest.mark.parametrize("fails", [True, False])
def test_a_thread_that_waits_for_the_connection_when_the_handler_ends_enqueues_nothing(
    postgres_outbox: Outbox, fails: bool
) -> None:
    outbox, errors = postgres_outbox, list[BaseException]()
    declare(outbox)
    left: list[tuple[threading.Thread, Gate]] = []

    def place() -> Any:
        operation = current_operation()
        real = operation._session._connection
        gate = real.lock = Gate(real.lock)
        operation.enqueue("charge", {"n": 0})

        def enqueue() -> None:
            try:
                operation.enqueue("charge", {"n": 1})
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=enqueue, name=LEFT_OVER)
        thread.start()
        left.append((thread, gate))
        assert gate.reached.acquire(timeout=PATIENCE)  # it is about to take the connection
        if fails:
            raise ValueError("the handler fails")
        return flask.Response(status=202)

    got = client_of(outbox, place).send(order("k"))
    ((thread, gate),) = left
    gate.opened.set()
    thread.join(PATIENCE)
    assert isinstance(got.error, ValueError) if fails else got.status == 202
    assert [type(error) for error in errors] == [OperationOver]
    assert len(outbox.jobs()) == (0 if fails else 1)
    assert len(outbox.states()) == (0 if fails else 1)


def test_jobs_that_threads_enqueue_at_once_have_a_key_each(outbox: Outbox) -> None:
    declare(outbox)
    together = threading.Barrier(8)

    def place() -> Any:
        operation = current_operation()

        def enqueue(n: int) -> None:
            together.wait(PATIENCE)
            operation.enqueue("charge", {"n": n})

        threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        return flask.Response(status=202)

    assert client_of(outbox, place).send(order("k")).status == 202
    assert sorted(job.answers for job in outbox.jobs()) == [0] * 7 + [1]
    taken = outbox.take(batch=8)
    assert len({Envelope.decode(job.payload).step for job in taken}) == 8


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("fails", [True, False])
def test_what_is_enqueued_after_the_handler_ended_is_refused(outbox: Outbox, kind: Kind, fails: bool) -> None:
    declare(outbox)
    kept: list[Any] = []

    def end() -> None:
        if fails:
            raise ValueError("the handler fails")

    def place() -> Any:
        operation = current_operation()
        operation.enqueue("charge", {"n": 0})
        kept.append(operation)
        end()
        return flask.Response(status=202)

    @outbox.idempotency.deferred
    async def place_async(_request: Any) -> Any:
        operation = current_operation()
        await operation.enqueue("charge", {"n": 0})
        kept.append(operation)
        end()
        return PlainTextResponse("", 202)

    client = client_of(outbox, place)
    if kind == "async":
        app = Starlette(routes=[Route("/orders", place_async, methods=["POST"])])
        app.add_middleware(AsgiMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
        client = AsgiClient(app, outbox.loop)
    client.send(order("k"))

    async def enqueue() -> None:
        await kept[0].enqueue("charge", {"n": 1})

    def later() -> None:
        outbox.run(enqueue()) if kind == "async" else kept[0].enqueue("charge", {"n": 1})

    with pytest.raises(OperationOver, match="operation has ended"):
        later()
    assert len(outbox.jobs()) == (0 if fails else 1)


def test_the_rest_of_a_gather_that_failed_enqueues_nothing(outbox: Outbox) -> None:
    declare(outbox)
    left: list[asyncio.Task[Any]] = []

    @outbox.idempotency.deferred
    async def place(_request: Any) -> Any:
        operation = current_operation()

        async def enqueue(n: int) -> None:
            for _ in range(n):
                await asyncio.sleep(0)
            await operation.enqueue("charge", {"n": n})

        left.extend(asyncio.ensure_future(enqueue(n)) for n in range(40))
        await left[20]
        raise ValueError("the handler fails")

    app = Starlette(routes=[Route("/orders", place, methods=["POST"])])
    app.add_middleware(AsgiMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
    got = AsgiClient(app, outbox.loop).send(order("k"))

    async def settle() -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*left, return_exceptions=True)

    ended = outbox.run(settle())
    assert got.status != 202 and any(isinstance(end, OperationOver) for end in ended)
    assert outbox.jobs() == [] and outbox.states() == []


def test_a_job_enqueued_inside_a_pipeline_is_sent_with_it(postgres_outbox: Outbox) -> None:
    outbox = postgres_outbox
    declare(outbox)

    def place() -> Any:
        operation = current_operation()
        with operation.connection.pipeline():
            operation.connection.execute("insert into orders values ('piped')")
            operation.enqueue("charge", {"n": 0})
        operation.enqueue("charge", {"n": 1})
        return flask.Response(status=202)

    got = client_of(outbox, place).send(order("k"))
    assert got.status == 202, (got.body, got.error)
    assert outbox.orders() == ["piped"] and len(outbox.jobs()) == 2
