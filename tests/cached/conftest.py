"""A PostgreSQL database and a Redis for each test, and a server of each kind for the run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.servers.postgres import NamedServer
from lab.servers.redis import RedisServer, RedisUnavailable
from tests.cached.world import World, migrated


@pytest.fixture(scope="session")
def cache_server() -> Iterator[RedisServer]:
    """One Redis for the run, set up as a cache is: nothing is written down."""
    try:
        server = RedisServer.start(settings={"appendonly": "no", "maxmemory-policy": "allkeys-lru"})
    except RedisUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)  # in CI a missing store is an error
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def own_cache_server(cache_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that a test may kill; the other one shows that there are any."""
    with RedisServer.start(settings=cache_server.settings) as server:
        yield server


@pytest.fixture
def cache_url(cache_server: RedisServer) -> Iterator[str]:
    """A fresh Redis database for this test; it is waited for on a machine that is busy."""
    url = cache_server.create_database()
    yield f"{url}?timeout=5"
    cache_server.drop_database(url)


@pytest.fixture(scope="session")
def template(postgres_server: NamedServer) -> str:
    """A database with our tables, to make others of."""
    url = postgres_server.create_database()
    migrated(url)
    return url


@pytest.fixture(scope="session")
def shared_postgres(postgres_server: NamedServer, template: str) -> str:
    """A migrated database for the run: for tests that keep to a scope of their own."""
    return template


@pytest.fixture
def world(shared_postgres: str, cache_url: str) -> Iterator[World]:
    with World(shared_postgres, cache_url) as made:
        yield made
