"""The stacks that the tests of sessions run on: async and sync, on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.servers import mariadb, postgres
from tests.chosen import whole
from tests.sqlalchemy.stacks import Stack

STACKS = [
    "async-postgres",
    "sync-sqlite",
    pytest.param("flask-postgres", marks=whole),
    pytest.param("flask-sqlite", marks=whole),
    pytest.param("sync-postgres", marks=whole),
    pytest.param("async-sqlite", marks=whole),
    pytest.param("async-mariadb", marks=whole),
    pytest.param("sync-mariadb", marks=whole),
]


@pytest.fixture(scope="module")
def shared_postgres(postgres_server: postgres.NamedServer) -> Iterator[str]:
    """One for the tests of a module: each begins with an empty table, and is a tenant of its own."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def shared_mariadb(mariadb_server: mariadb.NamedServer) -> Iterator[str]:
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture(params=STACKS)
def make(request: pytest.FixtureRequest) -> Callable[..., Stack]:
    """Makes the stack; options are the sessionmaker's."""
    kind, _, store = str(request.param).partition("-")
    url = request.getfixturevalue("sqlite_url" if store == "sqlite" else f"shared_{store}")

    def made(**options: Any) -> Stack:
        return Stack(kind, url, **options)

    return made


@pytest.fixture
def stack(make: Callable[..., Stack]) -> Stack:
    return make()
