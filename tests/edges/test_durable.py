"""Durable before sent (S6), whoever goes away meanwhile (X9), and found again later (X10)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.processes import wait_until
from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import Kind, tenant_of
from tests.edges.callers import (
    AsgiApp,
    AsgiClient,
    Client,
    Got,
    LoopThread,
    WsgiClient,
    call_asgi,
    call_wsgi,
)
from tests.edges.callers import Request as Sent
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.test_duplicates import every_route
from tests.edges.world import Reply, Store, Stores, World, open_store


def _send_and_look(client: Client, ask: Sent, store: Store, tenant: str) -> tuple[Got, list[str]]:
    """Sends, and looks at the record before each message goes out."""
    seen: list[str] = []

    def look(_message: object) -> None:
        seen.extend(state for state, _ in store.records(tenant))

    if isinstance(client, AsgiClient):
        return client.loop.run(call_asgi(client.app, ask, on_send=look)), seen
    assert isinstance(client, WsgiClient)
    return call_wsgi(client.app, ask, on_send=look), seen


@every_route
def test_nothing_is_sent_before_the_record_stands(
    kind: Kind, mode: str, builder: Build, stores: Stores
) -> None:
    world, store = World(), stores.get()
    client = builder(kind, store, world)
    tenant = f"{world.name}-alice"
    got, seen = _send_and_look(client, Ask().request(f"/{mode}", world.name), store, tenant)
    assert got.status == 201 and set(seen) == {"completed"} and len(seen) >= 2


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "leased"), ("fastapi", "edge")])
@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (Reply(500), "failed_retryable"),
        (Reply(502), "unknown"),
        (Reply(200, None, chunks=tuple(b"x" * 600 for _ in range(5))), "completed"),
    ],
)
def test_nor_any_other_outcome(
    kind: Kind, mode: str, reply: Reply, state: str, builder: Build, stores: Stores
) -> None:
    world, store = World(reply), stores.get(max_answer=1000)
    client = builder(kind, store, world)
    ask = Ask().request(f"/{mode}", world.name)
    _, seen = _send_and_look(client, ask, store, f"{world.name}-alice")
    assert set(seen) == {state}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind, mode) for kind in ("starlette", "fastapi", "threadpool") for mode in ("leased", "atomic", "edge")]
    + [("asgi", "edge")],
)
def test_a_cancelled_connection_does_not_stop_the_operation(
    kind: Kind, mode: str, builder: Build, stores: Stores, loop: LoopThread
) -> None:
    world, store = World(), stores.get()
    world.gate = threading.Event()
    client = builder(kind, store, world)
    ask = Ask().request(f"/{mode}", world.name)
    first = client.start(ask)
    assert world.entered.wait(10)
    assert first.cancel()
    assert client.send(ask).code == "in_progress"
    world.gate.set()
    wait_until(lambda: store.records(f"{world.name}-alice") == [("completed", 1)])
    again = client.send(ask)
    assert again.replayed and again.json() == {"run": 1} and world.runs == 1


@pytest.mark.parametrize("mode", ["leased", "atomic", "edge"])
def test_a_cancelled_handler_is_recorded(mode: str, builder: Build, stores: Stores, loop: LoopThread) -> None:
    """The loop is torn down: nobody knows how far leased work came; atomic work is rolled back."""
    world, store = World(), stores.get()
    world.gate = threading.Event()
    client = builder("starlette", store, world)
    first = client.start(Ask().request(f"/{mode}", world.name))
    assert world.entered.wait(10)
    app: Any = client.app  # type: ignore[attr-defined]
    guard = app.middleware_stack.app
    assert isinstance(guard, IdempotencyMiddleware)
    for task in list(guard._running):
        loop.loop.call_soon_threadsafe(task.cancel)
    with pytest.raises(CancelledError):
        first.result(10)
    world.gate.set()
    expected = [] if mode == "atomic" else [("unknown", 1)]
    assert store.records(f"{world.name}-alice") == expected


@every_route
def test_half_a_body_is_never_executed(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world, store = World(), stores.get()
    client = builder(kind, store, world)
    whole = Ask().request(f"/{mode}", world.name)
    half = Sent(whole.method, whole.path, whole.headers, whole.body, client_leaves=True)
    got = client.send(half)
    assert got.status == 400
    assert (world.runs, store.records(f"{world.name}-alice")) == (0, [])
    assert client.send(whole).json() == {"run": 1}


def test_shutdown_waits_for_handlers_that_outlived_their_connections(
    tmp_path: Any, builder: Build, loop: LoopThread
) -> None:
    world, store = World(), open_store(f"sqlite:///{tmp_path / 'own.db'}")
    world.gate = threading.Event()
    client = builder("starlette", store, world)
    first = client.start(Ask().request("/leased", world.name))
    assert world.entered.wait(10)
    first.cancel()

    async def shut_down() -> list[str]:
        messages: Iterator[dict[str, str]] = iter(
            [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        )
        sent: list[str] = []

        async def receive() -> dict[str, str]:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        app: Any = client.app  # type: ignore[attr-defined]
        task = asyncio.create_task(app({"type": "lifespan", "state": {}}, receive, send))
        async with asyncio.timeout(30):
            while not sent:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)  # long enough to shut down, if nothing held it back
        assert not task.done() and sent == ["lifespan.startup.complete"]
        assert world.gate is not None
        world.gate.set()
        await task
        return sent

    assert loop.run(shut_down()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert store.records(f"{world.name}-alice") == [("completed", 1)]


def test_websocket_and_lifespan_pass_untouched(stores: Stores, loop: LoopThread) -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["type"], receive, send))

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None: ...

    app = IdempotencyMiddleware(inner, idempotency=stores.get().idempotency, tenant=tenant_of)
    scope = {"type": "websocket", "path": "/edge", "headers": [(b"idempotency-key", b"a,b")]}
    loop.run(app(scope, receive, send))
    assert seen == [("websocket", receive, send)]
    loop.run(app({"type": "lifespan"}, receive, send))
    assert seen[1][0] == "lifespan"


def test_no_extensions_and_no_state(stores: Stores, loop: LoopThread) -> None:
    """What a scope may leave out, or hold as None."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201})
        await send({"type": "http.response.body"})

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        scope.pop("state")
        scope["extensions"] = None
        await app(scope, receive, send)

    app = IdempotencyMiddleware(inner, idempotency=stores.get().idempotency, tenant=tenant_of)
    ask = Ask().request("/edge", World().name)
    assert loop.run(call_asgi(guarded, ask)).status == 201
    assert loop.run(call_asgi(guarded, ask)).replayed


def test_ways_around_us_are_not_offered(stores: Stores, loop: LoopThread) -> None:
    offered: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        offered.append(scope["extensions"])
        await send({"type": "http.response.start", "status": 201})
        await send({"type": "http.response.body"})

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"] = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {}}
        await app(scope, receive, send)

    app = IdempotencyMiddleware(inner, idempotency=stores.get().idempotency, tenant=tenant_of)
    loop.run(call_asgi(guarded, Ask().request("/edge", World().name)))
    assert offered == [{"tls": {}}]


def _paying_app(store: Store, keys: list[str], statuses: list[int], *, decorated: bool) -> AsgiApp:
    async def pay(request: Request) -> Response:
        operation = current_operation()
        keys.append(operation.downstream_key("charge"))
        status = statuses.pop(0)
        if status == 201:
            operation.provider_id = f"ch_{keys[0]}"
        return JSONResponse({}, status)

    handler = store.idempotency.leased(pay) if decorated else pay
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=store.idempotency, tenant=tenant_of)
    return app


@pytest.mark.parametrize("decorated", [True, False], ids=["leased", "edge"])
def test_the_downstream_key_is_stable_and_finds_its_record(
    decorated: bool, stores: Stores, loop: LoopThread
) -> None:
    store, keys, world = stores.get(), list[str](), World()
    client = AsgiClient(_paying_app(store, keys, [500, 503, 201, 201, 201], decorated=decorated), loop)
    ask = Ask().request("/pay", world.name)
    assert [client.send(ask).status for _ in range(4)] == [500, 503, 201, 201]
    assert len(keys) == 3 and len(set(keys)) == 1 and len(keys[0]) <= 65
    record = store.idempotency.engine.find_by_downstream_key(keys[0])
    assert record is not None and (record.key, record.attempts) == ("key-1", 3)
    by_provider = store.idempotency.engine.find_by_provider_id(f"ch_{keys[0]}", tenant=f"{world.name}-alice")
    assert by_provider is not None and by_provider.id == record.id
    assert store.idempotency.engine.find_by_provider_id("ch_never", tenant="alice") is None
    client.send(Ask(tenant="bob").request("/pay", world.name))
    assert keys[3] != keys[0], "another tenant's key led to the same downstream key"
    store.expire(f"{world.name}-alice")
    client.send(ask)
    assert keys[4] == keys[0], "a new life of a key must keep its downstream key"


def test_current_operation_at_the_wsgi_edge(stores: Stores) -> None:
    keys: list[str] = []

    def inner(environ: Any, start_response: Any) -> list[bytes]:
        keys.append(current_operation().downstream_key())
        start_response("429 No" if len(keys) == 1 else "200 OK", [])
        return [b""]

    idempotency = stores.get().idempotency
    app = WsgiMiddleware(inner, idempotency=idempotency, tenant=tenant_of, on_error="retry")
    ask = Ask().request("/pay", World().name)
    assert [call_wsgi(app, ask).status for _ in range(3)] == [429, 200, 200]
    assert len(keys) == 2 and keys[0] == keys[1]
