"""What each request costs: statements, transactions and commits, counted in the drivers and by the server.

The budget (DESIGN): a replay is one autocommit statement, atomic work on PostgreSQL adds no commit to the
handler's own, leased work has two, and what is not guarded costs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from samekey.drivers.sqlite import driver as sqlite_driver
from samekey.drivers.sqlite.lent import HandlerConnection
from tests.edges.apps import Kind
from tests.edges.callers import Client, LoopThread
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.world import Reply, Store, World, open_store


@dataclass(slots=True)
class Log:
    """Every statement as the driver sends it."""

    sent: list[str] = field(default_factory=list)

    def note(self, sql: object) -> None:
        text = sql.decode() if isinstance(sql, bytes) else sql
        if isinstance(text, str):  # what is composed from parts is the test server's own
            self.sent.append(" ".join(text.split()).rstrip(";"))

    def note_once(self, sql: str) -> None:
        """SQLite repeats a statement for each trigger that it fires."""
        before = len(self.sent)
        self.note(sql)
        if self.sent[before - 1 : before] == self.sent[before:]:
            self.sent.pop()

    def count(self, word: str) -> int:
        return sum(sql.upper().startswith(word) for sql in self.sent)

    @property
    def statements(self) -> list[str]:
        """All but the ends of transactions."""
        words = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")
        return [sql for sql in self.sent if not sql.upper().startswith(words)]

    @property
    def transactions(self) -> tuple[int, int, int]:
        return self.count("BEGIN"), self.count("COMMIT"), self.count("ROLLBACK")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Listens in all three drivers."""
    found = Log()
    for name in ("fetch", "execute", "fetchrow", "fetchval", "executemany"):
        monkeypatch.setattr(asyncpg.Connection, name, _listening(getattr(asyncpg.Connection, name), found))
    monkeypatch.setattr(psycopg.Cursor, "execute", _listening(psycopg.Cursor.execute, found))
    # How psycopg sends BEGIN and COMMIT.
    command = psycopg.Connection._exec_command
    monkeypatch.setattr(psycopg.Connection, "_exec_command", _listening(command, found))
    connect = sqlite_driver.SQLiteDriver._connect

    def connect_and_listen(self: sqlite_driver.SQLiteDriver, *, cached: int) -> HandlerConnection:
        connection = connect(self, cached=cached)
        connection.set_trace_callback(found.note_once)
        return connection

    monkeypatch.setattr(sqlite_driver.SQLiteDriver, "_connect", connect_and_listen)
    return found


def _listening(method: Callable[..., Any], log: Log) -> Callable[..., Any]:
    def listen(self: Any, sql: Any, *arguments: Any, **options: Any) -> Any:
        log.note(sql)
        return method(self, sql, *arguments, **options)

    return listen


@dataclass(slots=True)
class Meter:
    """One application on a store of its own, warmed up, with the log beside it."""

    client: Client
    store: Store
    world: World
    log: Log
    mode: str

    def cost(self, **changes: Any) -> Log:
        """What one request sends."""
        self.log.sent.clear()
        got = self.client.send(Ask(**changes).request(f"/{self.mode}", self.world.name))
        assert got.status < 500 or changes.get("keys") == (b"fails",), got
        return Log(list(self.log.sent))

    def writes(self, *keys: bytes, **changes: Any) -> int:
        """How many transactions of one request wrote anything, by the server's own numbers.

        The least of several requests alike: autovacuum may take a number of its own meanwhile.
        """
        return min(self._numbers(keys=(key,), **changes) for key in keys)

    def _numbers(self, **changes: Any) -> int:
        before = self._next_number()
        self.cost(**changes)
        return self._next_number() - before - 1

    def _next_number(self) -> int:
        return int(self.store.ask("select pg_current_xact_id()::text::bigint")[0][0])


@pytest.fixture
def meter(log: Log, builder: Build, loop: LoopThread) -> Iterator[Callable[[str, Kind, str], Meter]]:
    opened: list[Store] = []

    def make(url: str, kind: Kind, mode: str) -> Meter:
        store, world = open_store(url), World()
        opened.append(store)
        found = Meter(builder(kind, store, world), store, world, log, mode)
        found.cost(keys=(b"warm-1",))
        found.cost(keys=(b"warm-1",))
        return found

    yield make
    for store in opened:
        loop.run(store.idempotency.aclose())


ASYNC_AND_SYNC = pytest.mark.parametrize("kind", ["fastapi", "flask"])


@ASYNC_AND_SYNC
@pytest.mark.parametrize("mode", ["leased", "atomic", "edge"])
def test_a_replay_is_one_autocommit_statement(
    kind: Kind, mode: str, meter: Any, postgres_url: str, tmp_path: Path
) -> None:
    for url in (postgres_url, f"sqlite:///{tmp_path / 'counts.db'}"):
        metered: Meter = meter(url, kind, mode)
        cost = metered.cost(keys=(b"warm-1",))
        assert (len(cost.statements), cost.transactions) == (1, (0, 0, 0)), cost.sent
        refused = metered.cost(keys=(b"warm-1",), body=b"{}")
        assert (len(refused.statements), refused.transactions) == (1, (0, 0, 0)), refused.sent
        if url == postgres_url:
            assert metered.writes(b"warm-1", b"warm-1", b"warm-1") == 0


@ASYNC_AND_SYNC
@pytest.mark.parametrize("mode", ["leased", "edge"])
def test_leased_work_is_two_commits(kind: Kind, mode: str, meter: Any, postgres_url: str) -> None:
    metered: Meter = meter(postgres_url, kind, mode)
    cost = metered.cost(keys=(b"new",))
    assert (len(cost.statements), cost.transactions) == (2, (0, 0, 0)), cost.sent
    assert metered.writes(b"a", b"b", b"c") == 2


@ASYNC_AND_SYNC
def test_atomic_work_adds_no_commit(kind: Kind, meter: Any, postgres_url: str) -> None:
    metered: Meter = meter(postgres_url, kind, "atomic")
    cost = metered.cost(keys=(b"new",))
    assert cost.transactions == (1, 1, 0), cost.sent
    # A look before any connection is taken, the handler's own, the record. The lock and a look under it go
    # with BEGIN, and the connection is cleaned for whoever has it next in one text with COMMIT.
    until_commit = [sql for sql in cost.statements if "reset all" not in sql.lower()]
    assert len(until_commit) == 3 and "insert into effects" in until_commit[1], until_commit
    assert len(cost.statements) <= 4, cost.statements
    assert metered.writes(b"a", b"b", b"c") == 1


@ASYNC_AND_SYNC
def test_atomic_work_that_fails_commits_nothing(kind: Kind, meter: Any, postgres_url: str) -> None:
    metered: Meter = meter(postgres_url, kind, "atomic")
    metered.world.script.append(Reply(500))
    cost = metered.cost(keys=(b"fails",))
    assert cost.transactions == (1, 0, 1), cost.sent


@ASYNC_AND_SYNC
@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_on_sqlite(kind: Kind, mode: str, meter: Any, tmp_path: Path) -> None:
    """One file, one writer: the claim is a commit of its own, atomic work then has the handler's."""
    metered: Meter = meter(f"sqlite:///{tmp_path / 'counts.db'}", kind, mode)
    cost = metered.cost(keys=(b"new",))
    changing = [sql for sql in cost.statements if sql.split()[0].lower() in ("insert", "update", "delete")]
    if mode == "leased":
        assert (len(changing), cost.transactions) == (2, (0, 0, 0)), cost.sent
    else:
        assert (len(changing), cost.transactions) == (3, (1, 1, 0)), cost.sent


@ASYNC_AND_SYNC
def test_what_is_not_guarded_costs_nothing(kind: Kind, meter: Any, postgres_url: str) -> None:
    metered: Meter = meter(postgres_url, kind, "leased")
    for changes in (
        {"path": "/edge", "keys": ()},
        {"path": "/optional", "keys": ()},
        {"path": "/exempt"},
        {"path": "/edge", "method": "GET", "body": b""},
        {"path": "/edge", "method": "PUT"},
        {"path": "/nowhere"},
        {"keys": ()},
        {"keys": (b"a,b",)},
        {"tenant": "nobody"},
    ):
        assert metered.cost(**changes).sent == [], changes


def test_the_log_sees_everything(log: Log, tmp_path: Path) -> None:
    """The other tests are worth nothing if statements could slip by."""
    store = open_store(f"sqlite:///{tmp_path / 'seen.db'}")
    assert any("create table" in sql.lower() for sql in log.sent)
    log.sent.clear()
    session = store.idempotency.engine.drivers.sync.open()
    connection: sqlite3.Connection = session.connection
    connection.execute("insert into effects values ('x', 1)")
    session.commit()
    assert log.transactions == (1, 1, 0) and len(log.statements) == 1
    store.idempotency.close()
