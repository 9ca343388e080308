"""Connections as users really have them: our statements must not care how they are set up.

Atomic work runs on the user's own connection: rows may come back in any shape, names may mean other tables,
and settings may be anything. Each is tried with one whole atomic operation and its replay.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row, namedtuple_row, scalar_row

from lab.servers.postgres import NamedServer
from samekey import Idempotency, ietf
from samekey.core.decide import Decision, Execute
from samekey.core.program import Program
from samekey.core.record import Answer
from samekey.core.states import Mode
from samekey.drivers.run import run, run_async, run_in
from samekey.drivers.url import drivers_for
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import (
    ConnectionLost,
    OpenTransaction,
    StoreUnavailable,
    WrongIsolation,
)
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import new_claim
from tests.stores.crash_scenarios import PAID, effects, exchange_of, prepare
from tests.stores.hostile import SETTINGS, Connection, atomic, atomic_async, claim_rules, with_setting
from tests.stores.schemas import execute

KEYS = SqlKeys(queries_for("postgres"))


@pytest.fixture
def url(hostile_url: str) -> str:
    return hostile_url


def check_cycle(url: str, connect: Callable[[], Connection]) -> None:
    label = secrets.token_hex(8)
    with connect() as connection:
        factories = (connection.row_factory, connection.cursor_factory, connection.autocommit)
        answer = atomic(url, connection, label)
        assert answer is not None and answer.status == 201, answer
        assert (connection.row_factory, connection.cursor_factory, connection.autocommit) == factories
        assert connection.info.transaction_status.name == "IDLE"
    assert effects(url, label) == 1
    with connect() as connection:
        replay = atomic(url, connection, label)
        assert replay is not None and (replay.status, replay.body) == (201, b"paid")
        assert (b"Idempotent-Replayed", b"true") in replay.headers
        # And the programs themselves, which read what atomic work wrote.
        session = drivers_for(url).sync.open(connection)
        record = run_in(session, KEYS.read("7:=tenant", label))
        session.commit()
        assert record is not None and record.answer == PAID
    assert effects(url, label) == 1


def backwards(cursor: psycopg.Cursor[Any]) -> Callable[[Any], Any]:
    return lambda values: list(reversed(values))


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row, scalar_row, backwards])
@pytest.mark.parametrize("autocommit", [True, False])
def test_rows_of_any_shape(url: str, factory: Any, autocommit: bool) -> None:
    check_cycle(url, lambda: psycopg.connect(url, row_factory=factory, autocommit=autocommit))


@pytest.mark.parametrize("cursor_factory", [psycopg.ClientCursor, psycopg.RawCursor])
def test_cursors_of_any_kind(url: str, cursor_factory: Any) -> None:
    check_cycle(url, lambda: psycopg.connect(url, cursor_factory=cursor_factory))


@pytest.mark.parametrize("threshold", [None, 0, 1])
def test_statements_prepared_or_not(url: str, threshold: int | None) -> None:
    check_cycle(url, lambda: psycopg.connect(url, prepare_threshold=threshold))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_session(url: str, name: str) -> None:
    def connect() -> Connection:
        connection = psycopg.connect(url, autocommit=True)
        for setting, value in SETTINGS[name].items():
            connection.execute("select set_config(%s, %s, false)", [setting, value])
        connection.autocommit = False
        return connection

    check_cycle(url, connect)


@pytest.mark.parametrize("search_path", ["hostile", "hostile,pg_catalog"])
def test_our_own_connections_may_be_set_up_by_the_url(url: str, search_path: str) -> None:
    there = with_setting(url, "search_path", search_path)
    label = secrets.token_hex(8)
    with psycopg.connect(url) as connection:
        answer = atomic(there, connection, label)
        assert answer is not None and answer.status == 201

    async def replay() -> Answer | None:
        connection = await asyncpg.connect(url)
        try:
            return await atomic_async(there, connection, label)
        finally:
            await connection.close()

    replayed = asyncio.run(replay())
    assert replayed is not None and (b"Idempotent-Replayed", b"true") in replayed.headers
    assert effects(url, label) == 1


# Loaders and dumpers


class Surprise(Loader):
    """Loads anything as something that nobody else expects."""

    def load(self, data: Any) -> Any:
        return Decimal(-1)


class BinarySurprise(Surprise):
    format = psycopg.pq.Format.BINARY


@pytest.mark.parametrize("kind", ["int8", "text", "bytea", "json", "jsonb"])
@pytest.mark.parametrize("loader", [Surprise, BinarySurprise])
def test_loaders_of_the_users_own(url: str, kind: str, loader: type[Loader]) -> None:
    def connect() -> Connection:
        connection = psycopg.connect(url)
        connection.adapters.register_loader(kind, loader)
        return connection

    check_cycle(url, connect)


class Stranger(Dumper):
    """Dumps any string as another."""

    def dump(self, obj: Any) -> bytes:
        return b"not what anybody sent"


class BinaryStranger(Stranger):
    format = psycopg.pq.Format.BINARY


@pytest.mark.parametrize("dumper", [Stranger, BinaryStranger])
def test_dumpers_of_the_users_own(url: str, dumper: type[Dumper]) -> None:
    def connect() -> Connection:
        connection = psycopg.connect(url)
        connection.adapters.register_dumper(str, dumper)
        return connection

    check_cycle(url, connect)


# What a handler does to a connection of ours

MEDDLING: dict[str, Callable[[Connection], Any]] = {
    "rows as dicts": lambda c: setattr(c, "row_factory", dict_row),
    "another cursor": lambda c: setattr(c, "cursor_factory", psycopg.ClientCursor),
    "no preparing": lambda c: setattr(c, "prepare_threshold", None),
    "a loader": lambda c: c.adapters.register_loader("int4", Surprise),
    "a setting": lambda c: c.execute("set search_path to hostile"),
    "a temporary table": lambda c: c.execute("create temp table effects (label text)"),
    "a session lock": lambda c: c.execute("select pg_advisory_lock(42)"),
}
PROBE = """
    select 1::int4, current_setting('search_path'), to_regclass('pg_temp.effects')::text,
        (select count(*) from pg_locks where locktype = 'advisory' and objid = 42 and pid = pg_backend_pid())
"""


@pytest.mark.parametrize("name", MEDDLING)
def test_a_handler_does_not_reach_the_next_one(url: str, name: str) -> None:
    idempotency = Idempotency(url, pool_size=1)
    seen = []
    for meddle in (lambda c: None, MEDDLING[name], lambda c: None):
        label = secrets.token_hex(8)
        begun = idempotency.engine.begin(
            exchange_of(label), rules_from(idempotency.engine.policy, Mode.ATOMIC, {})
        )
        assert isinstance(begun, Running)
        connection: Connection = begun.operation.connection
        shape = (connection.row_factory, connection.cursor_factory, connection.prepare_threshold)
        seen.append((shape, connection.execute(PROBE).fetchall()))
        connection.execute(f"insert into public.effects values ('{label}')".encode())
        meddle(connection)
        finished = idempotency.engine.finish(begun, Handled(PAID))
        assert finished.answer is not None and finished.answer.status == 201
    idempotency.close()
    assert seen[2] == seen[0]


# What must be refused


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_isolation_level_is_refused_before_anything_runs(url: str, level: str) -> None:
    label = secrets.token_hex(8)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"set default_transaction_isolation to '{level}'".encode())
        with pytest.raises(WrongIsolation, match=level.upper()):
            atomic(url, connection, label)
        assert connection.info.transaction_status.name == "IDLE", "the connection is as it was"
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel[level.upper().replace(" ", "_")]
        with pytest.raises(WrongIsolation):
            atomic(url, connection, label)
    assert effects(url, label) == 0


def test_our_own_connections_do_not_inherit_an_isolation_level(postgres_server: NamedServer) -> None:
    own = postgres_server.create_database()
    prepare(own)
    name = own.rpartition("/")[2]
    execute(own, f"alter database {name} set default_transaction_isolation to 'repeatable read'")
    label = secrets.token_hex(8)
    idempotency = Idempotency(own)
    begun = idempotency.engine.begin(
        exchange_of(label), rules_from(idempotency.engine.policy, Mode.ATOMIC, {})
    )
    assert isinstance(begun, Running)
    begun.operation.connection.execute(f"insert into effects values ('{label}')")
    finished = idempotency.engine.finish(begun, Handled(PAID))
    assert finished.answer is not None and finished.answer.status == 201
    idempotency.close()
    assert effects(own, label) == 1

    async def same() -> int:
        engine = Idempotency(own)
        begun = await engine.engine.begin_async(
            exchange_of(label + "a"), rules_from(engine.engine.policy, Mode.ATOMIC, {})
        )
        assert isinstance(begun, Running)
        await begun.operation.connection.execute(f"insert into effects values ('{label}a')")
        finished = await engine.engine.finish_async(begun, Handled(PAID))
        await engine.aclose()
        assert finished.answer is not None
        return finished.answer.status

    assert asyncio.run(same()) == 201
    postgres_server.drop_database(own)


@pytest.mark.parametrize("state", ["open", "failed"])
def test_a_connection_inside_a_transaction_is_refused(url: str, state: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("select 1")
        if state == "failed":
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("select 1/0")
        with pytest.raises(OpenTransaction):
            atomic(url, connection, secrets.token_hex(8))
        connection.rollback()


def test_a_closed_connection_is_not_called_an_open_transaction(url: str) -> None:
    label = secrets.token_hex(8)
    connection = psycopg.connect(url)
    connection.close()
    answer = atomic(url, connection, label)
    assert answer is not None and answer.status == 503
    assert effects(url, label) == 0


def test_a_statement_that_is_cancelled_is_an_error_and_not_a_lost_connection(url: str) -> None:
    claim = new_claim()
    drivers = drivers_for(url)
    record = run(drivers.sync, lambda: KEYS.claim(claim, ietf()))
    assert isinstance(record, Execute)
    lease = record.record.lease(claim.lease_ms)
    with psycopg.connect(url) as blocker, psycopg.connect(url, autocommit=True) as connection:
        blocker.execute("select from samekey.keys where key = %s for update", [claim.key])
        connection.execute("set statement_timeout to '50ms'")
        session = drivers.sync.open(connection)
        with pytest.raises(StoreUnavailable) as cancelled:
            run_in(session, KEYS.fail(lease, "late"))
        session.rollback()
        assert not isinstance(cancelled.value, ConnectionLost)
        assert "statement timeout" in str(cancelled.value)
        assert connection.execute("select 1").fetchone() == (1,)
    drivers.sync.close()


# Durability


def test_our_commit_waits_even_where_the_session_does_not(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit to off")
        idempotency = Idempotency(url)
        label = secrets.token_hex(8)
        begun = idempotency.engine.begin(exchange_of(label), claim_rules(idempotency, connection))
        assert isinstance(begun, Running)
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        connection.execute(f"insert into effects values ('{label}')".encode())
        idempotency.engine.finish(begun, Handled(PAID))
        idempotency.close()
        assert connection.execute("show synchronous_commit").fetchone() == ("off",), "theirs again"


@pytest.mark.parametrize("level", ["local", "remote_write", "remote_apply"])
def test_a_session_that_waits_in_its_own_way_is_left_alone(url: str, level: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"set synchronous_commit to {level}".encode())
        connection.commit()
        session = drivers_for(url).sync.open(connection)
        run_in(session, KEYS.claim(new_claim(), ietf()))
        assert connection.execute("show synchronous_commit").fetchone() == (level,)
        session.rollback()


@pytest.mark.parametrize("style", ["sync", "async"])
def test_every_claim_is_flushed_where_the_database_does_not_wait(url: str, style: str) -> None:
    """Looks at the write-ahead log: what was claimed has reached the disk when the claim returns."""
    drivers = drivers_for(with_setting(url, "synchronous_commit", "off"))
    results: list[bool] = []

    def claim() -> Program[Decision]:
        return KEYS.claim(new_claim(), ietf())

    async def claims(watcher: Connection) -> None:
        for _ in range(20):
            before = watcher.execute("select pg_current_wal_insert_lsn()::text").fetchall()[0]
            if style == "sync":
                run(drivers.sync, claim)
            else:
                await run_async(drivers.aio, claim)
            after = watcher.execute("select pg_current_wal_flush_lsn() > %s::pg_lsn", before).fetchall()
            results.append(after[0][0])
        await drivers.aio.close()

    with psycopg.connect(url, autocommit=True) as watcher:
        asyncio.run(claims(watcher))
    drivers.sync.close()
    assert results == [True] * 20
