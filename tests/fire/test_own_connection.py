"""Whose connection carries atomic work: one of a small pool, or the user's own, with conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import asyncpg
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from lab.proxy import FaultProxy
from samekey.errors import OpenTransaction, WrongIsolation
from tests.chosen import whole
from tests.fire.apps import Settings, World
from tests.fire.checkpoints import current_key
from tests.fire.clients import AsgiClient, Got, in_process
from tests.fire.evidence import Evidence
from tests.fire.scene import Raised, Scene, scene

pytestmark = whole


worlds = pytest.mark.parametrize("world", get_args(World))

# ------------------------------------------------------------------ a second connection


@worlds
def test_a_second_connection_from_a_pool_of_one(postgres: Settings) -> None:
    """A handler that calls its own service: the inner request is refused in good time, the outer goes on."""
    settings = replace(postgres, pool_size=1, timeout=1.0)
    inner: list[Got] = []

    async def call_inside(at: Scene) -> None:
        await at.insert()
        if current_key.get() == "outer":
            request = at.client.start("/x", "inner")
            inner.append(await asyncio.wrap_future(request) if settings.world == "asgi" else request.result())

    with scene(settings, call_inside) as at:
        assert at.send("outer").is_new
        assert (inner[0].status, inner[0].code) == (503, "store_unavailable")
        assert "retry-after" in inner[0].headers
        assert at.evidence.runs("inner") == 0
        assert at.send("inner").is_new


@worlds
def test_a_request_while_all_connections_are_held(postgres: Settings) -> None:
    settings = replace(postgres, pool_size=2, timeout=1.0)
    checkpoints, evidence = settings.checkpoints, Evidence(settings)
    with in_process(settings) as client:
        held = {}
        for key in ("a", "b"):
            checkpoints.arm("handler wrote", key)
            held[key] = client.start("/atomic", key)
            checkpoints.wait_reached("handler wrote", key, held[key])
        got = client.send("/atomic", "c")
        assert (got.status, got.code) == (503, "store_unavailable")
        assert "retry-after" in got.headers
        assert evidence.runs("c") == 0
        for key, request in held.items():
            checkpoints.open("handler wrote", key)
            assert request.result().is_new
        assert client.send("/atomic", "c").is_new


@worlds
def test_one_connection_carries_one_operation_after_another(postgres: Settings) -> None:
    """A new connection for each would cost more than the operation."""
    with (
        FaultProxy.before(postgres.url) as proxy,
        in_process(replace(postgres, url=proxy.url_for(postgres.url))) as client,
    ):
        assert client.send("/atomic", "first").is_new
        before = proxy.accepted
        assert all(client.send("/atomic", f"next-{number}").is_new for number in range(10))
        assert proxy.accepted == before


# ------------------------------------------------------------------ the user's own connection


class Own:
    """A connection of the user's, of the kind that the world uses."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.url
        self._world = settings.world
        self._connection: Any = None

    def provide(self, _context: Any) -> Any:
        return self._connection

    def connect(self, at: Scene) -> None:
        if isinstance(at.client, AsgiClient):
            self._connection = at.client.run(asyncpg.connect(self._url))
        else:
            self._connection = psycopg.connect(self._url)

    def execute(self, at: Scene, sql: str) -> None:
        if isinstance(at.client, AsgiClient):
            at.client.run(self._connection.execute(sql))
        else:
            self._connection.execute(sql)

    def be_strict(self, at: Scene, level: str) -> None:
        """Chooses another isolation level for the transactions to come."""
        self.execute(at, f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        if self._world == "wsgi":
            self._connection.commit()

    @property
    def in_transaction(self) -> bool:
        if self._world == "asgi":
            return bool(self._connection.is_in_transaction())
        return bool(self._connection.info.transaction_status != TransactionStatus.IDLE)

    def close(self, at: Scene) -> None:
        if isinstance(at.client, AsgiClient):
            at.client.run(self._connection.close())
        else:
            self._connection.close()


@contextmanager
def own_connection(settings: Settings) -> Iterator[tuple[Scene, Own]]:
    async def insert(at: Scene) -> None:
        await at.insert()

    own = Own(settings)
    with scene(settings, insert, connection=own.provide) as at:
        own.connect(at)
        try:
            yield at, own
        finally:
            own.close(at)


@worlds
def test_atomic_work_on_the_users_own_connection(postgres: Settings) -> None:
    with own_connection(postgres) as (at, own):
        for key in ("k", "again"):
            got = at.send(key)
            assert got.is_new
            assert at.send(key).repeats(got)
            assert at.evidence.effects(key) == 1
            assert not own.in_transaction


@worlds
def test_a_connection_inside_a_transaction_is_refused(postgres: Settings, raised: Raised) -> None:
    with own_connection(postgres) as (at, own):
        if postgres.world == "asgi":
            own.execute(at, "BEGIN")
        own.execute(at, "INSERT INTO effects (key) VALUES ('mine')")
        got = at.send()
        assert got.status == 500
        error = raised(got)
        assert isinstance(error, OpenTransaction)
        assert "already inside one" in str(error)
        assert (at.evidence.runs("k"), at.evidence.state("k")) == (0, None)
        # The user's transaction is as it was, and may still be committed.
        assert own.in_transaction
        own.execute(at, "COMMIT")
        assert at.evidence.effects("mine") == 1
        assert at.send().is_new


@worlds
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_another_isolation_level_is_refused(postgres: Settings, level: str, raised: Raised) -> None:
    with own_connection(postgres) as (at, own):
        own.be_strict(at, level)
        got = at.send()
        assert got.status == 500
        error = raised(got)
        assert isinstance(error, WrongIsolation)
        assert level in str(error) and "READ COMMITTED" in str(error)
        assert (at.evidence.runs("k"), at.evidence.state("k")) == (0, None)
        assert not own.in_transaction
        own.be_strict(at, "READ COMMITTED")
        assert at.send().is_new
