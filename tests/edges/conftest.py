"""One loop, one pool of threads and one database of each kind for all tests of the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.servers import mariadb
from tests.edges import world
from tests.edges.apps import Kind, Setup, build
from tests.edges.callers import Client, LoopThread
from tests.edges.shop import Shop
from tests.edges.world import Store, Stores, World

Build = Callable[..., Client]


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(autouse=True)
def nothing_declared_before() -> None:
    """Tests share an ``Idempotency``, but not what others have decorated by it."""
    for store in world.ALL:
        store.idempotency.engine.marks.clear()


@pytest.fixture(scope="session")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory, loop: LoopThread) -> Iterator[Stores]:
    """On SQLite."""
    folder: Path = tmp_path_factory.mktemp("edges")
    found = Stores(f"sqlite:///{folder / 'edges.db'}", loop)
    yield found
    found.close()


@pytest.fixture(scope="session")
def postgres_stores(postgres_session_url: str, loop: LoopThread) -> Iterator[Stores]:
    found = Stores(postgres_session_url, loop)
    yield found
    found.close()


@pytest.fixture(scope="session")
def mariadb_stores(mariadb_server: mariadb.NamedServer, loop: LoopThread) -> Iterator[Stores]:
    found = Stores(mariadb_server.create_database(), loop)
    yield found
    found.close()


@pytest.fixture
def builder(loop: LoopThread, threads: ThreadPoolExecutor) -> Build:
    def make(kind: Kind, store: Store, world: World, setup: Setup | None = None) -> Client:
        return build(kind, store, world, loop, threads, setup or Setup())

    return make


@pytest.fixture
def shop(stores: Stores, loop: LoopThread) -> Shop:
    return Shop(stores.get(), loop)
