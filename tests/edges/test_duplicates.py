"""Duplicates while the first request runs, after its lease ended, and after its key expired."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from lab.processes import wait_until
from tests.chosen import whole
from tests.edges.apps import FRAMEWORKS, Kind
from tests.edges.callers import Client, Got
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.world import Reply, Store, Stores, World

ROUTES = [
    *(
        pytest.param(kind, mode, marks=(whole,) if kind == "litestar-threads" else ())
        for kind in FRAMEWORKS
        for mode in ("leased", "atomic", "edge")
    ),
    ("asgi", "edge"),
    ("wsgi", "edge"),
]
every_route = pytest.mark.parametrize(("kind", "mode"), ROUTES)


class Held:
    """A first request that is inside its handler and stays there until it is let go."""

    def __init__(self, builder: Build, store: Store, kind: Kind, mode: str) -> None:
        self.world = World()
        self.world.gate = threading.Event()
        self.mode = mode
        self.client: Client = builder(kind, store, self.world)
        self._first = self.client.start(self._request())
        assert self.world.entered.wait(10)

    def _request(self, **changes: Any) -> Any:
        return Ask(**changes).request(f"/{self.mode}", self.world.name)

    def ask(self, **changes: Any) -> Got:
        return self.client.send(self._request(**changes))

    def let_go(self) -> Got:
        assert self.world.gate is not None
        self.world.gate.set()
        return self._first.result(20)


@every_route
def test_in_progress_is_409(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    held = Held(builder, stores.get(), kind, mode)
    duplicate = held.ask()
    assert (duplicate.status, duplicate.code) == (409, "in_progress")
    assert duplicate.header("retry-after") == "1"
    assert duplicate.header("idempotency-key-expires")
    different = held.ask(body=b"{}")
    assert (different.status, different.code) == (422, "reused")
    assert held.let_go().json() == {"run": 1}
    again = held.ask()
    assert again.replayed and again.json() == {"run": 1}


@pytest.mark.parametrize("kind", ["fastapi", "flask"])
def test_in_progress_atomic_on_postgres(kind: Kind, builder: Build, postgres_stores: Stores) -> None:
    held = Held(builder, postgres_stores.get(), kind, "atomic")
    assert held.ask().code == "in_progress"
    # Nobody can see the fingerprint of work that has not committed.
    assert held.ask(body=b"{}").code == "in_progress"
    assert held.let_go().json() == {"run": 1}
    assert held.ask(body=b"{}").code == "reused"
    assert held.ask().replayed


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "edge"), ("asgi", "edge")])
def test_in_progress_is_accepted(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    held = Held(builder, stores.get(on_in_progress="accept"), kind, mode)
    duplicate = held.ask()
    assert duplicate.status == 202 and duplicate.header("retry-after") == "1"
    location = duplicate.header("location")
    assert location is not None and location.startswith("/idempotency/")
    running = held.ask(method="GET", path=location, body=b"")
    assert running.status == 200 and running.json()["state"] == "in_progress"
    assert running.json()["answer"] is None and running.header("retry-after") == "1"
    held.let_go()
    assert held.ask(method="GET", path=location, body=b"").json()["state"] == "completed"


@pytest.mark.parametrize(
    ("kind", "mode"), [("fastapi", "leased"), ("fastapi", "atomic"), ("flask", "leased"), ("wsgi", "edge")]
)
def test_a_duplicate_waits(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    held = Held(builder, stores.get(on_in_progress="wait", wait=20), kind, mode)
    waiting = held.client.start(held._request())
    assert not waiting.done()
    first = held.let_go()
    second = waiting.result(20)
    assert second.replayed and second.content == first.content
    assert held.world.runs == 1


@pytest.mark.parametrize(("kind", "mode"), [("asgi", "edge"), ("flask", "leased")])
def test_a_wait_has_an_end(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    held = Held(builder, stores.get(on_in_progress="wait", wait=0.2), kind, mode)
    assert held.ask().code == "in_progress"
    held.let_go()


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "leased"), ("asgi", "edge")])
def test_a_lease_that_ran_out_is_unknown_until_its_holder_speaks(
    kind: Kind, mode: str, builder: Build, stores: Stores
) -> None:
    store = stores.get()
    held = Held(builder, store, kind, mode)
    store.end_leases(f"{held.world.name}-alice")
    assert held.ask().code == "outcome_unknown"
    assert held.ask(body=b"{}").code == "reused"
    first = held.let_go()
    assert first.status == 201
    again = held.ask()
    assert again.replayed and again.body == first.body
    assert held.world.runs == 1


@pytest.mark.parametrize("kind", ["fastapi", "flask"])
def test_a_lease_is_renewed_also_after_a_quiet_time(
    kind: Kind, builder: Build, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat had nothing to do for a while; the next operation still gets it (S3)."""
    monkeypatch.setattr("samekey.engine.keeper.BEATS_PER_LEASE", 300)  # often, of a lease that is long
    store = stores.get(lease=60, max_run=120)
    Held(builder, store, kind, "leased").let_go()
    quiet_until = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > quiet_until)
    held = Held(builder, store, kind, "leased")
    tenant = f"={held.world.name}-alice"
    try:
        locked = "select locked_until from {keys} where tenant = ?"
        first = store.ask(locked, tenant)
        wait_until(lambda: store.ask(locked, tenant) > first)
        assert held.ask().code == "in_progress"
    finally:
        assert held.let_go().status == 201


@every_route
def test_expired_is_new(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world, store = World(), stores.get()
    client = builder(kind, store, world)
    ask = Ask().request(f"/{mode}", world.name)
    assert client.send(ask).json() == {"run": 1}
    store.expire(f"{world.name}-alice")
    second = client.send(ask)
    assert second.json() == {"run": 2} and not second.replayed
    assert client.send(ask).replayed
    store.expire(f"{world.name}-alice")
    # Its fingerprint binds nobody any more.
    assert client.send(Ask(body=b"{}").request(f"/{mode}", world.name)).json() == {"run": 3}


@pytest.mark.parametrize(("kind", "mode"), [("starlette", "atomic"), ("flask", "leased"), ("wsgi", "edge")])
@pytest.mark.parametrize("status", [410, 404])
def test_expired_is_gone(kind: Kind, mode: str, status: int, builder: Build, stores: Stores) -> None:
    world = World()
    store = stores.get(after_expiry="gone", gone_status=status)
    client = builder(kind, store, world)
    ask = Ask().request(f"/{mode}", world.name)
    client.send(ask)
    store.expire(f"{world.name}-alice")
    got = client.send(ask)
    assert (got.status, got.code, world.runs) == (status, "expired", 1)


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("flask", "leased")])
def test_one_retry_wins(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    """Many retries of a failed operation at once: one runs (D5)."""
    world = World(Reply(500))
    client = builder(kind, stores.get(), world)
    ask = Ask().request(f"/{mode}", world.name)
    assert client.send(ask).status == 500
    world.gate = threading.Event()
    world.entered.clear()
    retries = [client.start(ask) for _ in range(6)]
    assert world.entered.wait(10)
    done = [retry for retry in retries if retry.done()]
    world.gate.set()
    answers = [retry.result(20) for retry in retries]
    assert world.runs == 2
    fresh = [got for got in answers if got.status == 201 and not got.replayed]
    assert len(fresh) == 1 and fresh[0].json() == {"run": 2}
    assert all(got.replayed or got.code == "in_progress" for got in answers if got is not fresh[0])
    assert len(done) < len(retries)
