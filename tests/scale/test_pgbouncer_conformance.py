"""The conformance suite through pgbouncer in transaction mode, sync and async."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers.pgbouncer import PgBouncer
from lab.servers.postgres import NamedServer
from samekey.drivers.url import drivers_for
from samekey.testing.conformance import StoreConformance, Subject
from tests.chosen import whole
from tests.stores.conftest import migrated
from tests.stores.test_conformance import async_subject, sync_subject

pytestmark = whole


@pytest.fixture(scope="module")
def pooled(pgbouncer: PgBouncer, postgres_server: NamedServer) -> Iterator[str]:
    """One migrated database for all of them: each keeps to a scope of its own."""
    direct = postgres_server.create_database()
    url = pgbouncer.url_for(direct)
    migrated(url).sync.close()
    yield url
    postgres_server.drop_database(direct)


@pytest.fixture(scope="module")
def psycopg_subject(pooled: str) -> Iterator[Subject]:
    yield from sync_subject(drivers_for(pooled, prepared_statements=False))


@pytest.fixture(scope="module")
def asyncpg_subject(pooled: str) -> Iterator[Subject]:
    yield from async_subject(drivers_for(pooled, prepared_statements=False))


class TestPsycopg(StoreConformance):
    @pytest.fixture
    def store(self, psycopg_subject: Subject) -> Subject:
        return psycopg_subject


class TestAsyncpg(StoreConformance):
    @pytest.fixture
    def store(self, asyncpg_subject: Subject) -> Subject:
        return asyncpg_subject
