"""A migration beside traffic: it never keeps anybody waiting for longer than a moment, and leaves no trace in
the queue for a lock when it gives up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from lab.processes import wait_until
from lab.servers import mariadb
from samekey import Idempotency
from samekey.cli.app import app
from samekey.drivers.mysql.url import target_of
from samekey.engine import migrating
from samekey.engine.migrating import migrate_patiently
from samekey.errors import StoreBusy
from samekey.stores.sql import migrations as module
from samekey.stores.sql.migrations import Migration
from tests.chosen import stores

ALTER = {
    "postgres": "alter table {schema}.keys add column extra bigint;\n",
    "mysql": "alter table samekey_keys add column extra bigint;\n",
}


@pytest.fixture(params=stores("postgres", "mariadb", first=1))
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Idempotency]:
    """A store with traffic, for which a migration has come that must alter a table."""
    idempotency = Idempotency(request.getfixturevalue(f"{request.param}_url"))
    idempotency.migrate()
    idempotency.check()
    dialect = idempotency.engine.drivers.dialect
    there = module.migrations(dialect)
    later = Migration(there[-1].version + 1, "extra", 1, ALTER[dialect])
    monkeypatch.setattr(module, "migrations", lambda _: (*there, later))
    monkeypatch.setattr(migrating, "PAUSES", (0.1, 0.2))
    yield idempotency
    idempotency.close()


def ask(store: Idempotency, sql: str) -> list[Any]:
    if store.engine.drivers.dialect == "mysql":
        return mariadb.ask(store.engine.url, sql)
    with psycopg.connect(store.engine.url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


@contextmanager
def reader(store: Idempotency) -> Iterator[None]:
    """Somebody's transaction that has read the table and stays open: a backup, a report, a debugger."""
    if store.engine.drivers.dialect == "mysql":
        with (
            closing(pymysql.connect(**target_of(store.engine.url).arguments())) as other,
            other.cursor() as cursor,
        ):
            cursor.execute("begin")
            cursor.execute("select count(*) from samekey_keys")
            yield
            other.rollback()
    else:
        with psycopg.connect(store.engine.url, application_name="nightly report") as connection:
            connection.execute("select count(*) from samekey.keys")
            yield
            connection.rollback()


def waiting(store: Idempotency) -> int:
    """Sessions in the queue for a lock."""
    sql = (
        "select count(*) from information_schema.processlist where state like '%metadata lock%'"
        if store.engine.drivers.dialect == "mysql"
        else "select count(*) from pg_locks where not granted"
    )
    found: int = ask(store, sql)[0][0]
    return found


def has_extra(store: Idempotency) -> bool:
    table = "table_name in ('keys', 'samekey_keys') and column_name = 'extra'"
    return bool(ask(store, f"select 1 from information_schema.columns where {table}"))


def test_traffic_goes_on_while_a_migration_waits(store: Idempotency) -> None:
    told: list[str] = []
    applied: list[Migration] = []

    def work() -> None:
        applied.extend(migrate_patiently(store.engine.url, store.engine.queries, wait=60, tell=told.append))

    migrating_now = threading.Thread(target=work)
    with reader(store):
        migrating_now.start()
        wait_until(lambda: told)
        for number in range(20):  # more than one try of the migration long
            assert store.once(tenant="t", key=f"k{number}", run=lambda: 7) == 7
        assert not applied and not has_extra(store)
    migrating_now.join(60)
    assert [one.name for one in applied] == ["extra"]
    assert has_extra(store)
    assert "Waiting for session" in told[0]
    if store.engine.drivers.dialect == "postgres":
        assert "nightly report, idle in transaction" in told[0]


def test_a_migration_that_gives_up_leaves_nobody_in_the_queue(store: Idempotency) -> None:
    with reader(store):
        with pytest.raises(StoreBusy, match=r"nothing was changed\. In the way: session"):
            migrate_patiently(store.engine.url, store.engine.queries, wait=0)
        wait_until(lambda: waiting(store) == 0)
        assert store.once(tenant="t", key="k", run=lambda: 7) == 7
    assert [one.name for one in migrate_patiently(store.engine.url, store.engine.queries)] == ["extra"]


def test_the_command_says_whom_it_waits_for(store: Idempotency) -> None:
    with reader(store):
        ran = CliRunner().invoke(app, ["migrate", store.engine.url, "--wait", "0.3"])
        assert ran.exit_code == 1
        assert "Waiting for session" in ran.output and "In the way: session" in ran.output
        wait_until(lambda: waiting(store) == 0)
    assert CliRunner().invoke(app, ["migrate", store.engine.url]).exit_code == 0
    assert has_extra(store)


class Load:
    """Claims of several threads, one after the other, for as long as it lasts."""

    def __init__(self, store: Idempotency, threads: int = 3) -> None:
        self._store = store
        self._over = threading.Event()
        self.waits: list[float] = []
        self.failures: list[Exception] = []
        self._threads = [threading.Thread(target=self._claim, args=(f"t{one}",)) for one in range(threads)]

    def _claim(self, name: str) -> None:
        for number in itertools.count():
            if self._over.is_set():
                return
            began = time.monotonic()
            try:
                assert self._store.once(tenant=name, key=f"k{number}", run=lambda: 7) == 7
            except Exception as error:
                self.failures.append(error)
            self.waits.append(time.monotonic() - began)

    def more(self, count: int = 60) -> None:
        """Goes on for that many claims."""
        until = len(self.waits) + count
        wait_until(lambda: len(self.waits) >= until or self.failures, 60)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)


def test_no_claim_fails_or_waits_while_the_command_migrates_under_load(store: Idempotency) -> None:
    """A reader keeps the tables for the whole of several tries; then it is done, beside traffic."""
    ran: list[Any] = []
    command = threading.Thread(
        target=lambda: ran.append(CliRunner().invoke(app, ["migrate", store.engine.url, "--wait", "60"]))
    )
    with Load(store) as load:
        load.more()
        with reader(store):
            command.start()
            wait_until(lambda: waiting(store) > 0)  # a try is under way
            for _ in range(3):
                wait_until(lambda: waiting(store) == 0)  # the server itself has ended it
                wait_until(lambda: waiting(store) > 0)
                load.more()
            assert not ran and not has_extra(store)
        command.join(60)
        load.more()
    assert ran and ran[0].exit_code == 0, ran[0].output
    assert has_extra(store)
    assert not load.failures
    # A second in the queue behind the migration is what the server allows; the rest is this machine's own.
    assert max(load.waits) < 1 + 4, sorted(load.waits)[-5:]
    assert waiting(store) == 0
