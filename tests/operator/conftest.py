"""One world for each test, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samekey.testing.postgres import NamedServer
from tests.operator.world import TABLES, World


@pytest.fixture(scope="session")
def operator_postgres_url(postgres_server: NamedServer) -> str:
    """One migrated database for the tests of this folder; each test finds its tables empty."""
    url = postgres_server.create_database()
    World(url).close()
    return url


@pytest.fixture
def pg_url(operator_postgres_url: str) -> str:
    world = World(operator_postgres_url)
    world.sql("truncate " + ", ".join(world.table(name) for name in TABLES))
    world.close()
    return operator_postgres_url


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "pg_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    made = World(store_url)
    yield made
    made.close()


@pytest.fixture
def pg(pg_url: str) -> Iterator[World]:
    made = World(pg_url)
    yield made
    made.close()


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[World]:
    made = World(sqlite_url)
    yield made
    made.close()
