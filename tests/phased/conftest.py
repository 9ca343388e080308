"""Fixtures of the tests of phased work: each store with each kind of code, and a provider."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.servers import mariadb
from lab.servers.postgres import NamedServer
from tests.chosen import stores
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, clear, execute, hang_up, prepare

STORES = ("sqlite", "postgresql", "mysql")
STYLES = ("async", "sync")


@pytest.fixture(scope="session")
def prepared_postgres(postgres_server: NamedServer) -> Iterator[str]:
    """One migrated database; each test finds it empty."""
    url = postgres_server.create_database()
    prepare(url)
    yield url
    hang_up()


@pytest.fixture(scope="session")
def prepared_mysql(mariadb_server: mariadb.NamedServer) -> str:
    """One migrated database; each test finds it empty."""
    url = mariadb_server.create_database()
    prepare(url)
    return url


@pytest.fixture(scope="session")
def prepared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file to copy: making one takes longer than most tests."""
    path = tmp_path_factory.mktemp("prepared") / "rides.db"
    prepare(f"sqlite:///{path}")
    execute(f"sqlite:///{path}", "pragma wal_checkpoint(truncate)")
    return path


@pytest.fixture(params=stores(*STORES, first=1))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the tables of samekey and of the application, and nothing in them."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("prepared_sqlite"), tmp_path / "rides.db")
        return f"sqlite:///{tmp_path / 'rides.db'}"
    name = {"postgresql": "prepared_postgres", "mysql": "prepared_mysql"}[request.param]
    shared: str = request.getfixturevalue(name)
    clear(shared)
    return shared


ON_POSTGRES_TOO = pytest.mark.parametrize("url", stores(*STORES), indirect=True)
"""For what asks the store itself; the rest is about the code around it, and shown on SQLite in each run."""


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_world(url: str, style: str) -> Iterator[Callable[..., World]]:
    """Worlds on this test's store: as many as there are processes in its story."""
    worlds: list[World] = []

    def make(**settings: Any) -> World:
        worlds.append(World(url, style, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    """One that deduplicates, unless a test says otherwise."""
    with Provider(tmp_path / "journal") as server:
        yield server


@pytest.fixture
def client(provider: Provider) -> ProviderClient:
    return ProviderClient(provider.url)
