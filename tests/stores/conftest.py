"""Stores for the tests of this folder: migrated databases for the run, and what is around it."""

from __future__ import annotations

import pytest

from lab.servers import mariadb
from lab.servers.postgres import NamedServer
from samekey.drivers.run import run
from samekey.drivers.url import Drivers, drivers_for
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for
from tests.stores.crash_scenarios import execute, prepare


def migrated(url: str) -> Drivers:
    """The drivers of a URL whose tables are there."""
    drivers = drivers_for(url)
    run(drivers.sync, lambda: migrate(queries_for(drivers.dialect)))
    return drivers


@pytest.fixture(scope="session")
def migrated_postgres(postgres_session_url: str) -> str:
    """One migrated PostgreSQL database for the run: for tests that keep to a scope of their own."""
    drivers = migrated(postgres_session_url)
    drivers.sync.close()
    return postgres_session_url


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb_server: mariadb.NamedServer) -> str:
    """One migrated MariaDB database for the run: for tests that keep to a scope of their own."""
    url = mariadb_server.create_database()
    migrated(url).sync.close()
    return url


@pytest.fixture(scope="session")
def hostile_url(postgres_server: NamedServer) -> str:
    """A migrated database with a table for effects, and a schema whose tables are named like ours."""
    url = postgres_server.create_database()
    prepare(url)
    execute(url, "create schema hostile")
    execute(url, "create table hostile.keys (nothing int)")
    execute(url, "create table hostile.schema_versions (nothing int)")
    return url
