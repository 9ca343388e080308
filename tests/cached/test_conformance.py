"""The conformance suite through the cache, sync and async: a cached store is a store like any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers.redis import RedisServer
from samekey.engine.store import open_store
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import AsyncSubject, StoreConformance, SyncSubject

Kind = tuple[str, bool]


@pytest.fixture(scope="module", params=[False, True], ids=["completed", "in progress too"])
def store_urls(
    request: pytest.FixtureRequest, shared_postgres: str, cache_server: RedisServer
) -> Iterator[Kind]:
    url = cache_server.create_database()
    yield f"{url}?timeout=5", request.param
    cache_server.drop_database(url)


@pytest.fixture(scope="module")
def sync_store(shared_postgres: str, store_urls: Kind) -> Iterator[SyncSubject]:
    store = open_store(shared_postgres, cache=store_urls[0], cache_in_progress=store_urls[1])
    yield SyncSubject(store.drivers.sync, store.keys, queries_for("postgres"))
    store.drivers.sync.close()


@pytest.fixture(scope="module")
def async_store(shared_postgres: str, store_urls: Kind) -> Iterator[AsyncSubject]:
    store = open_store(shared_postgres, cache=store_urls[0], cache_in_progress=store_urls[1])
    with AsyncSubject(store.drivers.aio, store.keys, queries_for("postgres")) as subject:
        yield subject
    store.drivers.sync.close()


class TestCached(StoreConformance):
    @pytest.fixture
    def store(self, sync_store: SyncSubject) -> SyncSubject:
        return sync_store


class TestCachedAsync(StoreConformance):
    @pytest.fixture
    def store(self, async_store: AsyncSubject) -> AsyncSubject:
        return async_store
