"""Everything works through pgbouncer in transaction mode, where no session lasts longer than a transaction.

Prepared statements are where it goes wrong: their names belong to a server's session, and behind a pooler the
next one may belong to somebody else. So nothing is prepared where a pooler is found in between, whether or
not anybody said so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import asyncpg
import psycopg
import pytest

from lab.processes import wait_until
from lab.servers.pgbouncer import PgBouncer
from samekey import Idempotency, current_operation
from samekey.drivers.postgres import listen
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.errors import StoreError
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for
from samekey.workers.service import Services, WorkerService
from tests.chosen import whole
from tests.edges.callers import LoopThread
from tests.fire.apps import Settings
from tests.fire.apps import World as Kind
from tests.fire.clients import in_process
from tests.fire.evidence import Evidence, prepare, query
from tests.outbox.world import Outbox, order
from tests.phased import world as phased
from tests.phased.provider import Provider, ProviderClient
from tests.scale.conftest import SERVER_CONNECTIONS

pytestmark = whole


worlds = pytest.mark.parametrize("world", get_args(Kind))
styles = pytest.mark.parametrize("style", ["async", "sync"])

CROWD = 5 * SERVER_CONNECTIONS


# ------------------------------------------------------------------ the four modes


@worlds
@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_a_crowd_shares_a_few_connections(pooled_url: str, tmp_path: Path, world: Kind, mode: str) -> None:
    """More clients at once than the pooler has connections, each with a duplicate."""
    prepare(pooled_url)
    settings = Settings(world=world, url=pooled_url, directory=str(tmp_path), timeout=30)
    evidence = Evidence(settings)
    with in_process(settings) as client:
        keys = [f"k{number}" for number in range(CROWD)]
        first = {key: client.start(f"/{mode}", key) for key in keys}
        got = {key: future.result() for key, future in first.items()}
        assert all(answer.is_new for answer in got.values()), got
        again = {key: client.start(f"/{mode}", key) for key in keys}
        assert all(again[key].result().repeats(got[key]) for key in keys)
    assert [evidence.effects(key) for key in keys] == [1] * CROWD


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_deferred_work(pooled_url: str, loop: LoopThread, threads: ThreadPoolExecutor, kind: Any) -> None:
    outbox = Outbox(pooled_url, loop, threads)
    try:
        outbox.idempotency.job("charge")(lambda job, payload: payload)
        client = outbox.client(kind)
        assert client.send(order("k")).status == 202
        outbox.work()
        done = client.send(order("k"))
        assert (done.status, done.json(), done.replayed) == (200, {"cents": 100}, True)
        assert (outbox.job().state, outbox.orders()) == ("done", ["written"])
    finally:
        outbox.close()


@styles
def test_phased_work(pooled_url: str, tmp_path: Path, style: str) -> None:
    phased.prepare(pooled_url)
    try:
        with Provider(tmp_path / "journal") as provider, phased.World(pooled_url, style) as world:
            client = ProviderClient(provider.url)
            world.define(phased.ride_body(world, client, provider_window=3600))
            first = world.post("k1")
            assert (first.status, first.json()) == (201, {"ride": "k1", "charge": "ch_1"})
            assert world.post("k1").replayed
            assert phased.count(pooled_url, "rides", "k1") == phased.count(pooled_url, "receipts", "k1") == 1
            assert len(provider.journal()) == provider.calls == 1
    finally:
        phased.hang_up()


# ------------------------------------------------------------------ the worker


@contextmanager
def working(outbox: Outbox, **options: Any) -> Iterator[None]:
    outbox.idempotency.job("quick")(lambda job, payload: payload)
    service = WorkerService(outbox.idempotency.engine, Services(completer=False, **options))
    running = outbox.loop.start(service.run(handle_signals=False))
    try:
        yield
    finally:
        outbox.loop.loop.call_soon_threadsafe(service.stop)
        running.result(20)


def test_a_worker_says_that_notifications_do_not_arrive_and_polls(
    pooled_url: str,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listen, "PROOF_SECONDS", 0.1)
    caplog.set_level("INFO", logger="samekey")
    outbox = Outbox(pooled_url, loop, threads)
    try:
        with working(outbox):
            wait_until(lambda: "polls for jobs: notifications do not arrive" in caplog.text)
            for count in (1, 2):
                outbox.place("quick")
                wait_until(lambda count=count: _done(outbox) == count)  # type: ignore[misc]
    finally:
        outbox.close()


def test_a_worker_with_a_direct_url_for_listening_is_told(
    pooled_url: str,
    postgres_url: str,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = []
    original = listen.PostgresListener._prove

    async def proven(self: listen.PostgresListener, event: asyncio.Event) -> None:
        await original(self, event)
        heard.append(self)

    monkeypatch.setattr(listen.PostgresListener, "_prove", proven)
    outbox = Outbox(pooled_url, loop, threads)
    try:
        with working(outbox, listen_url=postgres_url):
            wait_until(lambda: heard)
            outbox.place("quick")
            wait_until(lambda: _done(outbox) == 1)
    finally:
        outbox.close()


def _done(outbox: Outbox) -> int:
    return sum(job.state == "done" for job in outbox.jobs())


# ------------------------------------------------------------------ prepared statements


def prepared_by(url: str, asked_through: str) -> tuple[set[int], set[int]]:
    """How many statements sync and async handlers found prepared in their session, with default settings."""
    idempotency = Idempotency(asked_through)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    query(url, "create table prepared (who text, how_many bigint)")
    count = "insert into prepared select '{}', count(*) from pg_prepared_statements"

    def pay() -> int:
        current_operation().connection.execute(count.format("sync"))
        return 1

    async def pay_async() -> int:
        await current_operation().connection.execute(count.format("async"))
        return 1

    for number in range(8):  # a driver prepares what it has seen a few times
        assert idempotency.once(tenant="t", key=f"s{number}", run=pay, mode="atomic") == 1

    async def story() -> None:
        for number in range(8):
            key = f"a{number}"
            assert await idempotency.once_async(tenant="t", key=key, run=pay_async, mode="atomic") == 1
        await idempotency.aclose()

    asyncio.run(story())
    found: dict[str, set[int]] = {"sync": set(), "async": set()}
    for who, how_many in query(url, "select who, how_many from prepared"):
        found[who].add(how_many)
    return found["sync"], found["async"]


def test_behind_a_pooler_nothing_is_prepared(postgres_url: str, pooled_url: str) -> None:
    assert prepared_by(postgres_url, pooled_url) == ({0}, {0})


def test_on_the_server_itself_statements_are_prepared(postgres_url: str) -> None:
    sync, asynchronous = prepared_by(postgres_url, postgres_url)
    assert max(sync) > 0 and max(asynchronous) > 0


@pytest.fixture
def narrow_url(postgres_url: str) -> Iterator[Callable[[int], str]]:
    """The database through a pooler of its own, with as many connections as one says."""
    poolers: list[PgBouncer] = []

    def make(server_connections: int) -> str:
        poolers.append(PgBouncer.before(postgres_url, server_connections=server_connections))
        return poolers[-1].url_for(postgres_url)

    yield make
    for pooler in poolers:
        pooler.stop()


@pytest.mark.usefixtures("pgbouncer")
def test_a_prepared_connection_of_ones_own_is_told_what_to_do_psycopg(
    narrow_url: Callable[[int], str],
) -> None:
    """Two sessions that share one of the server's: the second finds the name taken."""
    url = narrow_url(1)
    clock = queries_for("postgres").statement("clock", None)
    driver = drivers_for(url).sync
    with psycopg.connect(url, prepare_threshold=0) as one, psycopg.connect(url, prepare_threshold=0) as two:
        session = driver.open(one)
        session.execute(clock)
        session.commit()
        session = driver.open(two)
        with pytest.raises(StoreError, match=r"already exists.*prepare_threshold=None"):
            session.execute(clock)
        session.rollback()
    driver.close()


@pytest.mark.usefixtures("pgbouncer")
def test_a_prepared_connection_of_ones_own_is_told_what_to_do_asyncpg(
    narrow_url: Callable[[int], str],
) -> None:
    """Once its session is somebody else's, what it has prepared is gone."""
    url = narrow_url(2)
    clock = queries_for("postgres").statement("clock", None)

    async def story() -> None:
        driver = drivers_for(url).aio
        one, two = await asyncpg.connect(url), await asyncpg.connect(url)
        session = await driver.open(one)
        await session.execute(clock)
        await session.commit()
        async with two.transaction():
            await two.execute("select 1")  # has taken the session in which it was prepared
            session = await driver.open(one)
            with pytest.raises(StoreError, match=r"does not exist.*statement_cache_size=0"):
                await session.execute(clock)
            await session.rollback()
        await one.close()
        await two.close()
        await driver.close()

    asyncio.run(story())
