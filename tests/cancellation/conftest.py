"""The stores whose async drivers are tried: each a fresh database, PostgreSQL also over a slow line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.proxy import FaultProxy
from tests.cancellation.world import Store
from tests.chosen import stores
from tests.redis.conftest import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]

LATENCY = 0.001
"""Seconds on the slow line, each way: enough that a statement is on its way when its caller is cancelled."""
TABLES = ["postgres", "slow_postgres", "sqlite", "mariadb"]


@pytest.fixture
def slow_postgres_url(postgres_url: str) -> Iterator[str]:
    with FaultProxy.before(postgres_url) as proxy:
        proxy.slow_down(LATENCY)
        yield proxy.url_for(postgres_url)


def _store(request: pytest.FixtureRequest) -> Store:
    url: str = request.getfixturevalue(f"{request.param}_url")
    # In the moment in which an answer is there, it is the same how long it took.
    return Store(url, ("waiting",) if request.param == "slow_postgres" else ("waiting", "waking"))


@pytest.fixture(params=stores(*TABLES, first=1))
def store(request: pytest.FixtureRequest) -> Store:
    """A transactional store."""
    return _store(request)


@pytest.fixture(params=stores(*TABLES, "redis", first=1))
def any_store(request: pytest.FixtureRequest) -> Store:
    """Any store that keeps keys."""
    return _store(request)
