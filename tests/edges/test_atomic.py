"""Atomic handlers behind the edges: what commits, what is rolled back, what is remembered (X1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import OutcomeUnknown, current_operation
from samekey.engine.handler.options import TransactionOptions
from samekey.errors import CommitRefused, NothingWritten
from tests.chosen import stores
from tests.edges.apps import FRAMEWORKS, Kind, Setup
from tests.edges.callers import Got, LoopThread
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop
from tests.edges.world import Act, Raise, Reply, Store, Stores, World

every_kind = pytest.mark.parametrize("kind", FRAMEWORKS)
Play = Callable[..., tuple[list[Got], Store, World]]


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb"))
def both(request: pytest.FixtureRequest) -> Stores:
    """Every transactional store."""
    name = "stores" if request.param == "sqlite" else f"{request.param}_stores"
    stores: Stores = request.getfixturevalue(name)
    return stores


@pytest.fixture
def play(builder: Build, both: Stores) -> Play:
    def send(
        kind: Kind, *script: Act, times: int = 2, options: TransactionOptions | None = None, **policy: Any
    ) -> tuple[list[Got], Store, World]:
        world, store = World(*script), both.get(**policy)
        client = builder(kind, store, world, Setup(atomic=options or {}))
        ask = Ask().request("/atomic", world.name)
        return [client.send(ask) for _ in range(times)], store, world

    return send


@every_kind
def test_a_success_commits_with_its_answer(kind: Kind, play: Play) -> None:
    (first, again), store, world = play(kind)
    assert first.status == 201 and again.replayed and again.content == first.content
    assert first.header("idempotency-key-expires") == again.header("idempotency-key-expires") is not None
    assert (world.runs, store.effects(world)) == (1, 1)
    assert store.records(f"{world.name}-alice") == [("completed", 1)]


@every_kind
@pytest.mark.parametrize(
    "act", [Raise(ValueError), Raise(TimeoutError), Raise(OutcomeUnknown), Reply(500), Reply(502), Reply(429)]
)
def test_whatever_is_not_remembered_is_rolled_back(kind: Kind, act: Act, play: Play) -> None:
    (first, second, third), store, world = play(kind, act, times=3)
    assert first.status >= 400 and not first.replayed
    assert second.json() == {"run": 2} and third.replayed
    assert (world.runs, store.effects(world)) == (2, 1)


@every_kind
def test_a_returned_refusal_commits_where_it_is_told_to(kind: Kind, play: Play) -> None:
    (first, again), store, world = play(kind, Reply(409), options={"on_4xx": "commit"})
    assert first.status == 409 and again.replayed and again.content == first.content
    assert (world.runs, store.effects(world)) == (1, 1)


@every_kind
def test_a_returned_refusal_rolls_back(kind: Kind, play: Play) -> None:
    (first, again, third), store, world = play(kind, Reply(409), times=3)
    assert first.status == 409 and again.replayed and again.content == first.content
    assert third.replayed and (world.runs, store.effects(world)) == (1, 0)


@pytest.mark.parametrize("kind", ["fastapi", "flask"])
def test_every_first_answer_that_is_remembered_tells_its_expiry(kind: Kind, play: Play) -> None:
    """Also a refusal that is remembered after a rollback (D12)."""
    (first, again), _, _ = play(kind, Reply(409), options={"on_4xx": "rollback"})
    assert again.header("idempotency-key-expires")
    assert first.header("idempotency-key-expires")


@every_kind
def test_stripe_remembers_a_failure_without_its_writes(kind: Kind, builder: Build, both: Stores) -> None:
    world, store = World(Reply(500)), both.get("stripe")
    client = builder(kind, store, world)
    ask = Ask().request("/atomic", world.name)
    first, again = client.send(ask), client.send(ask)
    assert first.status == 500 and again.replayed and again.content == first.content
    assert (world.runs, store.effects(world)) == (1, 0)


@pytest.mark.parametrize("kind", ["starlette", "flask"])
@pytest.mark.parametrize("strict", [False, True])
def test_work_that_went_elsewhere(
    kind: Kind, strict: bool, stores: Stores, builder: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that writes nothing on its connection is warned about, in strict mode refused."""
    world, store = World(), stores.get()
    monkeypatch.setattr(World, "perform", lambda self, *_: _silent(self))

    async def silent(self: World, *_: Any) -> Reply:
        return _silent(self)

    monkeypatch.setattr(World, "perform_async", silent)
    client = builder(kind, store, world, Setup(atomic={"strict": strict}))
    ask = Ask().request("/atomic", world.name)
    if strict:
        got = client.send(ask)
        assert got.status == 500 and isinstance(got.error, NothingWritten)
        assert store.records(f"{world.name}-alice") == []
    else:
        with pytest.warns(RuntimeWarning, match="wrote nothing"):
            got = client.send(ask)
        assert got.status == 201


def _silent(world: World) -> Reply:
    return Reply(201, b"%d" % world.begin()[0])


@pytest.mark.parametrize("kind", ["threadpool", "flask"])
def test_a_handler_may_not_commit_by_itself(
    kind: Kind, both: Stores, builder: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, store = World(), both.get()

    def commits(self: World, store: Store, mode: str) -> Reply:
        connection = current_operation().connection
        connection.execute(store.insert, (self.name, 1))
        try:
            connection.commit()
        except Exception as error:
            raise CommitRefused from error
        return Reply()

    monkeypatch.setattr(World, "perform", commits)
    client = builder(kind, store, world)
    got = client.send(Ask().request("/atomic", world.name))
    assert got.status == 500 and store.effects(world) == 0


@pytest.mark.parametrize("keys", [(b"k1",), ()])
def test_atomic_work_that_goes_on_after_a_part_of_it_has_failed(
    both: Stores, loop: LoopThread, keys: tuple[bytes, ...]
) -> None:
    """The function alone would have been rolled back; half of what it wrote must not stand."""
    store = both.get()
    shop = Shop(store, loop)

    async def insert(number: int) -> None:
        connection = current_operation().connection
        if store.dialect == "postgres":
            await connection.execute("insert into effects values ($1, $2)", shop.world.name, number)
        else:
            await connection.execute(store.insert, (shop.world.name, number))

    @shop.idempotency.atomic(required=False)
    async def debit() -> None:
        await insert(1)
        raise KeyError("the credit failed")

    @shop.idempotency.atomic(required=False)
    async def pay(_request: Request) -> Response:
        await insert(2)
        with suppress(KeyError):
            await debit()
        shop.charge()
        return JSONResponse({"status": "declined"})

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    got = shop.send(app, keys=keys)
    assert [one.status for one in got] == [500, 500] and shop.charges == 2
    assert store.effects(shop.world) == 0 and shop.states() == []
