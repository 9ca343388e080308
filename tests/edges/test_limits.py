"""Bodies that are too large (T6), and the odd lengths that a client may claim."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest

from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import Kind, tenant_of
from tests.edges.callers import LoopThread, Request, environ_of, http_scope
from tests.edges.conftest import Build
from tests.edges.counting import touches
from tests.edges.scenarios import Ask
from tests.edges.test_duplicates import every_route
from tests.edges.world import Stores, World

LIMIT = 1000


@every_route
def test_the_cap_on_bodies(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world, store = World(), stores.get(max_body=LIMIT)
    client = builder(kind, store, world)
    with touches(store.idempotency) as touched:
        for size in (LIMIT + 1, 50 * LIMIT):
            got = client.send(Ask(body=b"x" * size).request(f"/{mode}", world.name))
            assert (got.status, got.code) == (413, "too_large")
    assert (touched, world.runs) == ([], 0)
    ask = Ask(body=b"x" * LIMIT).request(f"/{mode}", world.name)
    assert client.send(ask).status == 201 and client.send(ask).replayed
    free = Ask(body=b"x" * 50 * LIMIT, keys=(), method="PUT").request("/edge", world.name)
    assert client.send(free).status == 201, "a request without a key has no cap of ours"


def _edge(stores: Stores, world: World, body_seen: list[bytes]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body_seen.append((await receive())["body"])
        world.begin(guarded=False)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    idempotency = stores.get(max_body=LIMIT).idempotency
    return IdempotencyMiddleware(app, idempotency=idempotency, tenant=tenant_of)


@pytest.mark.parametrize(
    ("length", "chunks", "status", "read"),
    [
        (b"1001", 1, 413, 0),  # refused by what it claims, without a look
        (b"9" * 5000, 1, 413, 0),  # more digits than Python would read as a number
        (b"10", 12, 413, 11),  # claims less than it sends: stopped at the cap
        (None, 12, 413, 11),  # claims nothing
        (None, 10, 201, 10),
        (b"ten", 1, 201, 1),
        (b"-1", 1, 201, 1),
        (b"", 1, 201, 1),
    ],
)
def test_lengths_at_the_asgi_edge(
    length: bytes | None, chunks: int, status: int, read: int, stores: Stores, loop: LoopThread
) -> None:
    world, bodies = World(), list[bytes]()
    app = _edge(stores, world, bodies)
    request = Ask(body=b"").request("/edge", world.name)
    if length is not None:
        request = request.with_header("content-length", length)
    received, sent = 0, list[Any]()

    async def receive() -> Any:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": received < chunks}

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        await asyncio.wait_for(app(http_scope(request), receive, send), 10)

    loop.run(call())
    assert (sent[0]["status"], received) == (status, read)
    assert bodies == ([b"x" * 100 * chunks] if status == 201 else [])


def _note(answers: list[str]) -> Callable[..., Callable[[bytes], object]]:
    def start_response(line: str, _headers: Any, _exc_info: Any = None) -> Callable[[bytes], object]:
        answers.append(line)
        return lambda _data: None

    return start_response


@pytest.mark.parametrize(
    ("length", "terminated", "size", "status"),
    [
        ("1001", False, 1001, 413),
        ("9" * 5000, False, 10, 413),
        ("1000", False, 1000, 201),
        ("1000", False, 999, 400),  # broke off
        ("10", False, 2000, 201),  # what is beyond the length is not the body
        ("-1", False, 10, 400),
        ("ten", False, 10, 400),
        ("٣", False, 10, 400),  # a digit, but not of ASCII
        ("", True, 1001, 413),
        ("", True, 1000, 201),
        ("", False, 10, 201),  # no length, no end: no body
        (None, True, 10, 201),
    ],
)
def test_lengths_at_the_wsgi_edge(
    length: str | None, terminated: bool, size: int, status: int, stores: Stores
) -> None:
    world, answers = World(), list[str]()
    bodies: list[bytes] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        bodies.append(environ["wsgi.input"].read())
        world.begin(guarded=False)
        start_response("201 Created", [])
        return []

    guard = WsgiMiddleware(app, idempotency=stores.get(max_body=LIMIT).idempotency, tenant=tenant_of)
    request: Request = Ask(body=b"").request("/edge", world.name)
    environ = environ_of(request)
    environ["wsgi.input"] = io.BytesIO(b"x" * size)
    if length is not None:
        environ["CONTENT_LENGTH"] = length
    if terminated:
        environ["wsgi.input_terminated"] = True
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    list(guard(environ, _note(answers)))
    assert int(answers[0].split()[0]) == status
    wanted = 0 if not length and not terminated else min(size, int(length or size) if status == 201 else 0)
    assert bodies == ([b"x" * wanted] if status == 201 else [])


def test_a_broken_input_is_never_executed(stores: Stores) -> None:
    world, answers = World(), list[str]()

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError

    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise AssertionError("the handler ran")

    guard = WsgiMiddleware(app, idempotency=stores.get().idempotency, tenant=tenant_of)
    environ = environ_of(Ask().request("/edge", world.name))
    environ["wsgi.input"] = Broken()
    guard(environ, _note(answers))
    assert answers == ["400 Bad Request"]


def test_absent_and_empty_bodies_differ_at_both_edges(builder: Build, stores: Stores) -> None:
    """F5: no body at all, an empty one, and ``{}`` are three intents."""
    for kind in ("asgi", "wsgi", "fastapi", "flask"):
        world = World()
        client = builder(kind, stores.get(), world)
        absent = Ask(body=b"").request("/edge", world.name)
        empty = absent.with_header("Content-Length", b"0")
        assert client.send(absent).status == 201
        assert client.send(absent).replayed, kind
        assert client.send(empty).code == "reused", kind
        assert client.send(Ask(body=b"{}").request("/edge", world.name)).code == "reused", kind
