"""A store that is down, slow or busy (T1): 503, nothing runs, and it comes back by itself."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy
from samekey import ietf
from samekey.engine.breaker import Breaker
from tests.edges.apps import Kind
from tests.edges.callers import Got, LoopThread
from tests.edges.conftest import Build
from tests.edges.counting import touches
from tests.edges.scenarios import Ask
from tests.edges.world import Store, World, open_store


class Clock:
    """The breaker's clock, moved by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proxy(postgres_session_url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(postgres_session_url) as found:
        yield found


@pytest.fixture
def far_store(postgres_session_url: str, proxy: FaultProxy, loop: LoopThread) -> Iterator[Store]:
    """A store behind a proxy that can fail; tests still reach the database itself."""
    yield from _far_store(postgres_session_url, proxy, loop, timeout=20)


@pytest.fixture
def hasty_store(postgres_session_url: str, proxy: FaultProxy, loop: LoopThread) -> Iterator[Store]:
    """The same, for tests that wait until it is given up."""
    yield from _far_store(postgres_session_url, proxy, loop, timeout=2)


def _far_store(url: str, proxy: FaultProxy, loop: LoopThread, *, timeout: float) -> Iterator[Store]:
    store = open_store(proxy.url_for(url), ietf(lease=60), timeout=timeout)
    store.address = url
    yield store
    loop.run(store.idempotency.aclose())


def _unavailable(got: Got) -> bool:
    return (
        (got.status, got.code) == (503, "store_unavailable")
        and got.header("retry-after") is not None
        and got.error is None
    )


ROUTES = [("fastapi", "leased"), ("fastapi", "atomic"), ("flask", "atomic"), ("wsgi", "edge")]


@pytest.mark.parametrize(("kind", "mode"), ROUTES)
def test_down(kind: Kind, mode: str, far_store: Store, proxy: FaultProxy, builder: Build) -> None:
    world, clock = World(), Clock()
    breaker = far_store.idempotency.engine.breaker = Breaker(clock)
    client = builder(kind, far_store, world)
    done = Ask(keys=(b"done",)).request(f"/{mode}", world.name)
    ask = Ask().request(f"/{mode}", world.name)
    assert client.send(done).status == 201
    operation = far_store.ask("select id from {keys} where tenant = ?", f"={world.name}-alice")[0][0]
    status = Ask(method="GET", body=b"", keys=()).request(f"/idempotency/{operation}", world.name)

    proxy.refuse()
    proxy.cut_all()
    failures = 0
    while not breaker.is_open:
        assert _unavailable(client.send(ask if failures % 2 else done))
        failures += 1
        assert failures < 20
    # A dead store is left alone: no statement, no wait.
    accepted = proxy.accepted
    with touches(far_store.idempotency) as touched:
        assert _unavailable(client.send(ask))
        assert _unavailable(client.send(done))
        assert client.send(status).status == 503
    assert (touched, proxy.accepted, world.runs) == ([], accepted, 1)
    free = Ask(keys=(), method="PUT", body=b"").request("/edge", world.name)
    assert client.send(free).status == 201, "what is not guarded does not need the store"

    clock.now += 60
    assert _unavailable(client.send(ask)), "the probe fails too"
    proxy.accept()
    clock.now += 60
    assert client.send(ask).status == 201, "it is used again without anybody's help"
    assert client.send(ask).replayed and client.send(done).replayed
    assert client.send(status).json()["state"] == "completed"
    assert world.runs == 3


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "leased")])
def test_slow(kind: Kind, mode: str, hasty_store: Store, proxy: FaultProxy, builder: Build) -> None:
    """A black hole: nobody says anything. The wait is bounded."""
    world = World()
    client = builder(kind, hasty_store, world)
    ask = Ask().request(f"/{mode}", world.name)
    assert client.send(Ask(keys=(b"warm",)).request(f"/{mode}", world.name)).status == 201
    proxy.stall()
    try:
        assert _unavailable(client.start(ask).result(30))
        assert world.runs == 1
    finally:
        proxy.flow()
    # Its claim may have landed after all; then it is somebody's, and is not run twice.
    wait_until(lambda: client.send(ask).status in (201, 409))
    assert world.runs <= 2


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "leased"), ("asgi", "edge")])
def test_down_between_claim_and_completion(
    kind: Kind, mode: str, far_store: Store, proxy: FaultProxy, builder: Build
) -> None:
    """The handler has run: the client gets its answer, and the record is written when that is possible."""
    world = World()
    far_store.idempotency.engine.breaker = Breaker(clock := Clock())
    client = builder(kind, far_store, world)
    ask = Ask().request(f"/{mode}", world.name)
    world.gate = threading.Event()
    first = client.start(ask)
    assert world.entered.wait(10)
    proxy.refuse()
    proxy.cut_all()
    world.gate.set()
    got = first.result(20)
    assert (got.status, got.json()) == (201, {"run": 1})
    clock.now += 60
    assert _unavailable(client.send(ask))
    proxy.accept()
    clock.now += 60
    wait_until(lambda: far_store.records(f"{world.name}-alice") == [("completed", 1)])
    again = client.send(ask)
    assert again.replayed and again.json() == {"run": 1} and world.runs == 1


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("starlette", "leased"), ("threadpool", "atomic"), ("flask", "atomic"), ("wsgi", "edge")],
)
def test_busy(kind: Kind, mode: str, tmp_path: Path, builder: Build, loop: LoopThread) -> None:
    """Somebody else holds SQLite's one write lock: new work is refused, replays are answered."""
    store = open_store(f"sqlite:///{tmp_path / 'busy.db'}", timeout=0.05)
    world = World()
    client = builder(kind, store, world)
    done = Ask(keys=(b"done",)).request(f"/{mode}", world.name)
    ask = Ask().request(f"/{mode}", world.name)
    assert client.send(done).status == 201
    writer = sqlite3.connect(store.address, isolation_level=None)
    try:
        writer.execute("begin immediate")
        assert _unavailable(client.send(ask))
        assert client.send(done).replayed
        writer.execute("rollback")
    finally:
        writer.close()
    # What the refused one has left is seen to by a thread, which may have the lock for a moment.
    wait_until(lambda: client.send(ask).status == 201)
    assert client.send(ask).json() == {"run": 2}
    loop.run(store.idempotency.aclose())


@pytest.mark.parametrize("kind", ["fastapi", "flask"])
def test_tables_that_are_missing(kind: Kind, postgres_url: str, builder: Build, loop: LoopThread) -> None:
    store = open_store(postgres_url)
    store.ask("drop schema samekey cascade")
    world = World()
    client = builder(kind, store, world)
    got = client.send(Ask().request("/leased", world.name))
    assert (got.status, got.code, world.runs) == (503, "store_unavailable", 0)
    loop.run(store.idempotency.aclose())
