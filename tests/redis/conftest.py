"""Fixtures of real Redis servers: one of each kind for the run, a fresh database or prefix for each test."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import NoReturn

import pytest

from lab.servers.redis import NamedServer, RedisCluster, RedisUnavailable, find_server


def unavailable(error: RedisUnavailable) -> NoReturn:
    """A laptop skips with one line; in CI a missing store is an error."""
    if os.environ.get("CI"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[NamedServer]:
    """One server for the run, or for each worker of a parallel run."""
    try:
        server = find_server()
    except RedisUnavailable as error:
        unavailable(error)
    with server:
        yield server


@pytest.fixture
def redis_url(redis_server: NamedServer) -> Iterator[str]:
    """A fresh database for this test."""
    url = redis_server.create_database()
    yield url
    redis_server.drop_database(url)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three masters for the run, or for each worker of a parallel run. Do not kill these."""
    try:
        cluster = RedisCluster.start(masters=3)
    except RedisUnavailable as error:
        unavailable(error)
    with cluster:
        yield cluster


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    """The Cluster with a prefix of this test's own: a Cluster has one database only."""
    return f"{redis_cluster.url}?prefix=test-{secrets.token_hex(6)}"
