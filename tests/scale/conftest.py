"""A pgbouncer in transaction mode before the run's PostgreSQL, with fewer connections than it has clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.servers.pgbouncer import PgBouncer, PgBouncerUnavailable
from lab.servers.postgres import NamedServer
from tests.edges.callers import LoopThread

SERVER_CONNECTIONS = 3


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: NamedServer) -> Iterator[PgBouncer]:
    """For each database no more than three connections, whoever asks."""
    try:
        pooler = PgBouncer.before(postgres_server.url, server_connections=SERVER_CONNECTIONS)
    except PgBouncerUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)  # in CI a missing server is an error
        pytest.skip(str(error))
    with pooler:
        yield pooler


@pytest.fixture
def pooled_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """A fresh database, reached through the pooler."""
    return pgbouncer.url_for(postgres_url)


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool
