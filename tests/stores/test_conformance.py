"""The conformance suite on every store that samekey ships, sync and async."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Iterator

import pytest

from samekey.drivers.url import Drivers
from samekey.errors import SamekeyError
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import AsyncSubject, StoreConformance, Subject, SyncSubject, run_all
from tests.chosen import whole
from tests.stores.conftest import migrated
from tests.stores.mutants import MUTANTS, mutated


def sync_subject(drivers: Drivers) -> Iterator[Subject]:
    queries = queries_for(drivers.dialect)
    yield SyncSubject(drivers.sync, SqlKeys(queries), queries)
    drivers.sync.close()


def async_subject(drivers: Drivers) -> Iterator[Subject]:
    queries = queries_for(drivers.dialect)
    with AsyncSubject(drivers.aio, SqlKeys(queries), queries) as subject:
        yield subject
    drivers.sync.close()


@pytest.fixture(scope="module")
def psycopg_subject(migrated_postgres: str) -> Iterator[Subject]:
    yield from sync_subject(migrated(migrated_postgres))


@pytest.fixture(scope="module")
def asyncpg_subject(migrated_postgres: str) -> Iterator[Subject]:
    yield from async_subject(migrated(migrated_postgres))


@pytest.fixture(scope="module")
def pymysql_subject(migrated_mariadb: str) -> Iterator[Subject]:
    yield from sync_subject(migrated(migrated_mariadb))


@pytest.fixture(scope="module")
def async_pymysql_subject(migrated_mariadb: str) -> Iterator[Subject]:
    yield from async_subject(migrated(migrated_mariadb))


class TestSQLiteFile(StoreConformance):
    @pytest.fixture
    def store(self, sqlite_url: str) -> Iterator[Subject]:
        yield from sync_subject(migrated(sqlite_url))


class TestSQLiteFileAsync(StoreConformance):
    @pytest.fixture
    def store(self, sqlite_url: str) -> Iterator[Subject]:
        yield from async_subject(migrated(sqlite_url))


class TestSQLiteMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Subject]:
        yield from sync_subject(migrated("sqlite:///:memory:"))


class TestPsycopg(StoreConformance):
    @pytest.fixture
    def store(self, psycopg_subject: Subject) -> Subject:
        return psycopg_subject


class TestAsyncpg(StoreConformance):
    @pytest.fixture
    def store(self, asyncpg_subject: Subject) -> Subject:
        return asyncpg_subject


class TestPyMySQL(StoreConformance):
    @pytest.fixture
    def store(self, pymysql_subject: Subject) -> Subject:
        return pymysql_subject


class TestAsyncPyMySQL(StoreConformance):
    @pytest.fixture
    def store(self, async_pymysql_subject: Subject) -> Subject:
        return async_pymysql_subject


def test_the_suite_runs_without_a_test_framework() -> None:
    drivers = migrated("sqlite:///:memory:")
    queries = queries_for(drivers.dialect)
    names = run_all(SyncSubject(drivers.sync, SqlKeys(queries), queries))
    drivers.sync.close()
    assert names == sorted(
        name for name, _ in inspect.getmembers(StoreConformance) if name.startswith("test_")
    )
    assert len(names) > 50


@whole
@pytest.mark.parametrize(("name", "right", "wrong"), MUTANTS)
def test_the_suite_finds_a_broken_statement(name: str, right: str, wrong: str) -> None:
    drivers = migrated("sqlite:///:memory:")
    queries = mutated(name, right, wrong)
    with pytest.raises((AssertionError, SamekeyError, sqlite3.Error)):
        run_all(SyncSubject(drivers.sync, SqlKeys(queries), queries))
    drivers.sync.close()
