"""What is wrong with a PostgreSQL or SQLite store is said at start-up, in a sentence that says what to do.

Each fault is met in every way in which a user may meet it first: ``check()``, ``samekey migrate``,
``samekey doctor``, and a first request, sync and async. ``tests/fire/test_failover.py`` meets a standby.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from lab.processes import LOOPBACK, free_port
from lab.servers.postgres import PostgresServer, PostgresUnavailable
from samekey import Idempotency, current_operation
from samekey.drivers.postgres import asyncpg as asyncpg_driver
from samekey.drivers.postgres import psycopg as psycopg_driver
from samekey.drivers.postgres import sqlstate
from samekey.drivers.run import run
from samekey.drivers.sqlite import driver as sqlite_driver
from samekey.errors import ConfigurationError, ReadOnlyStore, SamekeyError, SchemaMismatch
from samekey.stores.sql.migrations import migrate
from tests.operator.command import samekey

ROLES = """
    create role clerk login;
    create role stranger login password 'right';
    create role crowd login connection limit 0;
    alter role postgres connection limit -1
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of our own, with one role that needs a password."""
    try:
        made = PostgresServer.start()
    except PostgresUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with made:
        rules = made.data / "pg_hba.conf"
        rules.write_text(
            f"host all stranger {LOOPBACK}/32 scram-sha-256\nhost all clerk2 {LOOPBACK}/32 reject\n"
            + rules.read_text()
        )
        execute(made.url, "select pg_reload_conf()", ROLES)
        yield made


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """A database with samekey's tables."""
    made = server.create_database()
    migrated(made)
    yield made
    server.drop_database(made)


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def migrated(url: str) -> None:
    idempotency = Idempotency(url)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    idempotency.close()


def changed(url: str, *, user: str = "postgres", port: int | None = None, database: str | None = None) -> str:
    parts = urlsplit(url)
    path = parts.path if database is None else f"/{database}"
    return parts._replace(netloc=f"{user}@{LOOPBACK}:{port or parts.port}", path=path).geturl()


# ------------------------------------------------------------------ every way to meet a fault


def by_check(url: str) -> str:
    return _said(lambda: _closing(url, Idempotency.check))


def by_request(url: str) -> str:
    return _said(lambda: _closing(url, lambda one: one.once(tenant="t", key="k", run=lambda: 1)))


def by_atomic_request(url: str) -> str:
    return _said(
        lambda: _closing(url, lambda one: one.once(tenant="t", key="k", run=lambda: 1, mode="atomic"))
    )


def by_async_request(url: str) -> str:
    async def ask() -> None:
        idempotency = Idempotency(url)
        try:
            await idempotency.once_async(tenant="t", key="k", run=lambda: 1)
        finally:
            await idempotency.aclose()

    return _said(lambda: asyncio.run(ask()))


def by_migrate(url: str) -> str:
    ran = samekey("migrate", url)
    assert ran.code == 1
    return ran.sentence


def by_doctor(url: str) -> str:
    ran = samekey("doctor", "--url", url)
    if ran.code == 1:  # rights are a finding of its own
        [finding] = [line for line in ran.out.splitlines() if line.startswith("✗ ")]
        return finding
    assert ran.code == 2
    return ran.sentence


def by_doctor_well(url: str) -> bool:
    """Whether it finds nothing but what is wrong with a throwaway server: that it does not sync."""
    ran = samekey("doctor", "--url", url)
    return ran.out.startswith("1 thing needs attention.\n\n✗ fsync is off")


def _closing(url: str, act: Callable[[Idempotency], Any]) -> None:
    idempotency = Idempotency(url)
    try:
        act(idempotency)
    finally:
        idempotency.close()


def _said(act: Callable[[], Any]) -> str:
    with pytest.raises(SamekeyError) as raised:
        act()
    return str(raised.value)


Way = Callable[[str], str]
WAYS: tuple[Way, ...] = (
    by_check,
    by_request,
    by_atomic_request,
    by_async_request,
    by_migrate,
    by_doctor,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A store as it should not be, and what must be said about it."""

    spoil: Callable[[str], str]
    """From the URL of a sound store to that of a faulty one."""
    happened: str
    advice: str
    ways: tuple[Way, ...] = WAYS


def _denied(*grants: str) -> Callable[[str], str]:
    def spoil(url: str) -> str:
        execute(url, *grants)
        return changed(url, user="clerk")

    return spoil


USAGE = "grant usage on schema samekey to clerk"
READING = "grant select on all tables in schema samekey to clerk"
STARTING = tuple(way for way in WAYS if way is not by_migrate)

FAULTS = {
    "the server is not there": Fault(
        lambda url: changed(url, port=free_port()),
        "refused|Connect call failed",
        "Is PostgreSQL running there",
    ),
    "the password is wrong": Fault(
        lambda url: changed(url, user="stranger:wrong"),
        "password authentication failed",
        "Check user and password",
    ),
    "the password is missing": Fault(
        lambda url: changed(url, user="stranger"), "password", "Check user and password"
    ),
    "there is no such role": Fault(
        lambda url: changed(url, user="nobody_at_all"), "does not exist", "Create that role"
    ),
    "the role is not let in": Fault(
        lambda url: changed(url, user="clerk2"),
        "rejects connection",
        "Allow this role to connect",
    ),
    "there is no such database": Fault(
        lambda url: changed(url, database="no_such_database"), "does not exist", "Create that database"
    ),
    "there are too many connections": Fault(
        lambda url: changed(url, user="crowd"), "too many connections", "lower pool_size"
    ),
    "the schema may not be used": Fault(_denied(), "permission denied", "grant usage on schema"),
    "the tables may not be read": Fault(
        _denied(USAGE), "permission denied", "grant select, insert, update, delete"
    ),
    "the tables may only be read": Fault(
        _denied(USAGE, READING), "permission denied", "grant select, insert, update, delete", STARTING
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_sentence(url: str, name: str) -> None:
    fault = FAULTS[name]
    faulty = fault.spoil(url)
    for way in fault.ways:
        said = way(faulty)
        assert re.search(fault.happened, said), (way.__name__, said)
        assert fault.advice in said, (way.__name__, said)
        assert "\n" not in said and "wrong" not in said, (way.__name__, said)


def test_what_the_sentence_asks_for_is_enough(url: str) -> None:
    faulty = _denied(USAGE, "grant select, insert, update, delete on all tables in schema samekey to clerk")(
        url
    )
    execute(url, "create table paid (amount int)", "grant insert on paid to clerk")
    idempotency = Idempotency(faulty)
    idempotency.check()

    def pay() -> int:
        current_operation().connection.execute("insert into paid values (1)")
        return 1

    for _ in range(2):
        assert idempotency.once(tenant="t", key="atomic", run=pay, mode="atomic") == 1
        assert idempotency.once(tenant="t", key="leased", run=lambda: 1) == 1
    idempotency.close()
    assert by_doctor_well(faulty)


# ------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("oracle://x", r"samekey does not know the store 'oracle'"),
        ("postgresql://u@h:port/d", r"port 'port', which is no port number"),
        ("postgresql://u@h:70000/d", r"port '70000', which is no port number"),
        ("postgresql://u@a,b,c/d?port=1,2", r"3 hosts and 2 ports"),
        ("postgresql://u@h/d?no_such_option=1", r"cannot be read: .*no_such_option"),
        ("sqlite://app.db", r"three slashes"),
        ("sqlite://", r"names no file"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Idempotency(url)


# ------------------------------------------------------------------ versions, tables, rights to write


def test_a_server_that_is_too_old(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an old one is met: the server says its version, and this code needs a newer one."""
    for module in (sqlstate, psycopg_driver, asyncpg_driver):
        monkeypatch.setattr(module, "OLDEST_SERVER", 99)
    for way in WAYS:
        said = way(url)
        assert re.search(r"PostgreSQL \d+\.\d+ is too old: samekey needs 99 or newer\. Upgrade", said), said


def test_tables_that_are_not_there(server: PostgresServer) -> None:
    url = server.create_database()
    for way in (by_check, by_request, by_atomic_request, by_async_request):
        assert "samekey migrate" in way(url)
    with pytest.raises(SchemaMismatch):
        _closing(url, Idempotency.check)
    ran = samekey("doctor", "--url", url)
    assert ran.code == 1 and "samekey migrate" in ran.out
    assert samekey("migrate", url).code == 0
    assert by_doctor_well(url)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_may_only_be_read_is_left_once_it_may_be_written(url: str, kind: str) -> None:
    """A pooled connection to it is not kept: behind the same URL there may be a primary by now."""
    database = urlsplit(url).path.lstrip("/")
    execute(url, f"alter database {database} set default_transaction_read_only = on")

    def allow() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute(f"alter database {database} reset default_transaction_read_only".encode())

    async def story(idempotency: Idempotency) -> None:
        with pytest.raises(ReadOnlyStore, match="target_session_attrs=read-write"):
            await idempotency.once_async(tenant="t", key="k", run=lambda: 1)
        await asyncio.to_thread(allow)
        assert await idempotency.once_async(tenant="t", key="k", run=lambda: 1) == 1
        await idempotency.aclose()

    idempotency = Idempotency(url)
    if kind == "async":
        asyncio.run(story(idempotency))
        return
    with pytest.raises(ReadOnlyStore, match="target_session_attrs=read-write"):
        idempotency.once(tenant="t", key="k", run=lambda: 1)
    allow()
    assert idempotency.once(tenant="t", key="k", run=lambda: 1) == 1
    idempotency.close()


# ------------------------------------------------------------------ SQLite


def test_a_sqlite_file_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'nowhere' / 'app.db'}"
    with pytest.raises(SamekeyError, match=r"cannot open .*nowhere.app\.db: .*Does its directory exist"):
        Idempotency(url)
    assert "Does its directory exist" in by_migrate(url)
    assert "There is no SQLite database" in by_doctor(url)


def test_a_file_that_is_no_sqlite_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Not a database, but long enough to be taken for one. " * 50)
    url = f"sqlite:///{tmp_path / 'notes.txt'}"
    with pytest.raises(SamekeyError, match=r"notes\.txt: .*no SQLite database: correct the path"):
        Idempotency(url)
    for way in (by_migrate, by_doctor):
        assert "correct the path in the URL" in way(url)


def test_a_sqlite_database_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the file is opened as one that may only be read."""
    path = tmp_path / "app.db"
    idempotency = Idempotency(f"sqlite:///{path}")
    idempotency.engine.drivers.sync.close()
    connect: Callable[..., Any] = sqlite3.connect

    def read_only(database: str, **options: Any) -> Any:
        return connect(f"file:{database}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(SamekeyError, match="Let this process write the file and its directory"):
        idempotency.once(tenant="t", key="k", run=lambda: 1)
    idempotency.close()


def test_a_sqlite_that_is_too_old(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_driver, "OLDEST", (99, 0))
    with pytest.raises(ConfigurationError, match=r"too old: samekey needs 99\.0 or newer"):
        Idempotency(sqlite_url)
    assert "too old" in by_migrate(sqlite_url)
