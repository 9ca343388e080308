"""One world for each test, on every transactional store."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lab.servers import mariadb
from lab.servers.postgres import NamedServer
from samekey.stores.sql.queries import queries_for
from tests.chosen import stores
from tests.operator.world import TABLES, World


@pytest.fixture(scope="session")
def operator_postgres_url(postgres_server: NamedServer) -> str:
    """One migrated database for the tests of this folder; each test finds its tables empty."""
    url = postgres_server.create_database()
    World(url).close()
    return url


@pytest.fixture
def pg_url(operator_postgres_url: str) -> str:
    names = ", ".join(queries_for("postgres").expand(f"{{{name}}}") for name in TABLES)
    with psycopg.connect(operator_postgres_url, autocommit=True) as connected:
        connected.execute(f"truncate {names}".encode())
    return operator_postgres_url


@pytest.fixture(scope="session")
def operator_mariadb_url(mariadb_server: mariadb.NamedServer) -> str:
    """One migrated database for the tests of this folder; each test finds its tables empty."""
    url = mariadb_server.create_database()
    World(url).close()
    return url


@pytest.fixture
def maria_url(operator_mariadb_url: str) -> str:
    world = World(operator_mariadb_url)
    for name in TABLES:
        world.sql(f"delete from {world.table(name)}")
    world.close()
    return operator_mariadb_url


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def store_url(request: pytest.FixtureRequest) -> str:
    """Where PostgreSQL matters in each run, a test asks for ``ON_POSTGRES_TOO``, ``locking`` or ``pg``."""
    names = {"sqlite": "sqlite_url", "postgres": "pg_url", "mariadb": "maria_url"}
    url: str = request.getfixturevalue(names[request.param])
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


@pytest.fixture(params=stores("postgres", "mariadb", first=1))
def locking(request: pytest.FixtureRequest) -> Iterator[World]:
    """A store that locks rows, so that two can be at work at once."""
    made = World(request.getfixturevalue({"postgres": "pg_url", "mariadb": "maria_url"}[request.param]))
    yield made
    made.close()


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[World]:
    made = World(sqlite_url)
    yield made
    made.close()


ON_POSTGRES_TOO = pytest.mark.parametrize("store_url", stores("sqlite", "postgres", "mariadb"), indirect=True)
