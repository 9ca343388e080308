"""The status resource (D13): what an operation's id shows, to whom, and by which methods."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from samekey import OutcomeUnknown
from tests.edges.apps import Kind
from tests.edges.callers import Got, Request
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.world import JSON, Raise, Reply, Stores, World

ROUTES = [
    ("fastapi", "leased"),
    ("starlette", "atomic"),
    ("flask", "leased"),
    ("asgi", "edge"),
    ("wsgi", "edge"),
]
every_edge = pytest.mark.parametrize(("kind", "mode"), ROUTES)


def _look(world: World, operation: str, *, tenant: str | None = "alice", method: str = "GET") -> Request:
    return Ask(keys=(), method=method, path=f"/idempotency/{operation}", body=b"", tenant=tenant).request(
        "", world.name
    )


def _operation(stores: Stores, world: World, **policy: Any) -> str:
    rows = stores.get(**policy).ask("select id from {keys} where tenant = ?", f"={world.name}-alice")
    return str(rows[0][0])


@every_edge
def test_completed(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world = World(Reply(201, b'{"paid":true}', (*JSON, (b"x-thing", b"\xe9"))))
    client = builder(kind, stores.get(), world)
    client.send(Ask().request(f"/{mode}", world.name))
    operation = _operation(stores, world)
    assert re.fullmatch(r"[0-9a-f]{32}", operation)
    got = client.send(_look(world, operation))
    assert got.status == 200 and got.header("cache-control") == "no-store"
    status = got.json()
    assert (status["id"], status["state"]) == (operation, "completed")
    assert status["answer"]["status"] == 201 and status["answer"]["body"] == '{"paid":true}'
    assert ["x-thing", "é"] in [[name.lower(), value] for name, value in status["answer"]["headers"]]
    assert status["created_at"] <= status["completed_at"] < status["expires_at"]
    assert world.runs == 1
    head = client.send(_look(world, operation, method="HEAD"))
    assert (head.status, head.body) == (200, b"") and head.header("content-length") == str(len(got.body))


@every_edge
def test_only_its_own_tenant(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world = World()
    client = builder(kind, stores.get(), world)
    client.send(Ask().request(f"/{mode}", world.name))
    operation = _operation(stores, world)
    stranger = client.send(_look(world, operation, tenant="bob"))
    never = client.send(_look(world, "0" * 32, tenant="bob"))
    assert stranger.status == 404
    assert stranger.content == never.content, "another tenant's operation is told from one that never was"
    assert client.send(_look(world, operation, tenant="nobody")).status == 401
    assert client.send(_look(world, operation, tenant="broken")).status == 500


@every_edge
def test_expired(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world = World()
    client = builder(kind, stores.get(), world)
    client.send(Ask().request(f"/{mode}", world.name))
    operation = _operation(stores, world)
    stores.get().expire(f"{world.name}-alice")
    got = client.send(_look(world, operation))
    assert (got.status, got.code) == (410, "expired")
    assert client.send(_look(world, operation, tenant="bob")).status == 404


@pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("wsgi", "edge")])
def test_unknown_has_a_link(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    world = World(Raise(OutcomeUnknown))
    client = builder(kind, stores.get(), world)
    client.send(Ask().request(f"/{mode}", world.name))
    retry = client.send(Ask().request(f"/{mode}", world.name))
    links = [link for link in retry.all("link") if 'rel="status"' in link]
    operation = retry.json()["operation"]
    assert links == [f'</idempotency/{operation}>; rel="status"']
    got = client.send(_look(world, operation))
    assert got.json()["state"] == "unknown" and got.json()["answer"] is None
    assert got.header("retry-after") is not None


@pytest.mark.parametrize(("kind", "mode"), [("starlette", "leased"), ("flask", "atomic")])
def test_a_binary_answer(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    body = bytes(range(256))
    world = World(Reply(200, body, ((b"content-type", b"application/octet-stream"),)))
    client = builder(kind, stores.get(), world)
    client.send(Ask().request(f"/{mode}", world.name))
    answer = client.send(_look(world, _operation(stores, world))).json()["answer"]
    assert answer["encoding"] == "base64" and base64.b64decode(answer["body"]) == body


@every_edge
def test_other_methods_and_paths_are_the_applications(
    kind: Kind, mode: str, builder: Build, stores: Stores
) -> None:
    world = World()
    client = builder(kind, stores.get(), world)
    client.send(Ask().request(f"/{mode}", world.name))
    operation = _operation(stores, world)
    bare = kind in ("asgi", "wsgi")
    for method in ("PUT", "DELETE", "OPTIONS", "POST"):
        assert client.send(_look(world, operation, method=method)).status == (201 if bare else 404), method
    for path in ("", "x" * 32, operation.upper(), f"{operation}/", f"{operation}0"):
        assert client.send(_look(world, path)).status == (201 if bare else 404), path


@pytest.mark.parametrize(("kind", "mode"), [("asgi", "edge"), ("wsgi", "edge")])
def test_elsewhere_or_nowhere(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    def status_at(path: str, **policy: Any) -> Got:
        world = World()
        client = builder(kind, stores.get(**policy), world)
        client.send(Ask().request(f"/{mode}", world.name))
        operation = _operation(stores, world, **policy)
        return client.send(
            Ask(keys=(), method="GET", path=f"{path}/{operation}", body=b"").request("", world.name)
        )

    assert status_at("/v1/ops", status_path="/v1/ops/").json()["state"] == "completed"
    assert status_at("/idempotency", status_path="/v1/ops/").json() == {"run": 2}
    assert status_at("/idempotency", status_path=None).json() == {"run": 2}
