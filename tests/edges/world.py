"""What handlers do in tests, whichever framework they stand in, and the stores they run on."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from lab.servers import mariadb
from samekey import Idempotency, Operation, Policy, current_operation, ietf, stripe, stripe_v2
from samekey.core.claim import scope_part
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate
from tests.edges.callers import LoopThread, Pairs

JSON: Pairs = ((b"content-type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class Reply:
    """The handler returns this. ``chunks``: it streams them."""

    status: int = 201
    body: bytes | None = None
    """None: the number of the run, so that a test sees whose answer it got."""
    headers: Pairs = JSON
    chunks: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class Raise:
    """The handler raises this."""

    make: Callable[[], BaseException]


Act = Reply | Raise


class World:
    """Counts the runs of a handler and says what each does: first the script, then a plain 201."""

    def __init__(self, *script: Act) -> None:
        self.name = uuid.uuid4().hex[:12]
        """Of this test alone: tests share a store and keep to tenants of their own."""
        self.runs = 0
        self.passed = 0
        """Requests that reached the application without any guard (GET, PUT …)."""
        self.script = deque(script)
        self.entered = threading.Event()
        self.gate: threading.Event | None = None
        """Where there is one, handlers wait for it."""
        self.operations: list[Operation | None] = []
        self._lock = threading.Lock()

    def begin(self, *, guarded: bool = True) -> tuple[int, Act]:
        with self._lock:
            self.runs += 1
            act = self.script.popleft() if self.script else Reply()
            self.operations.append(current_operation() if guarded else None)
            number = self.runs
        self.entered.set()
        return number, act

    def hold(self) -> None:
        if self.gate is not None:
            assert self.gate.wait(20), "the test never opened the gate"

    def perform(self, store: Store, mode: str) -> Reply:
        """The body of a sync handler."""
        number, act = self.begin(guarded=mode in ("leased", "atomic"))
        self.hold()
        if mode == "atomic":
            current_operation().connection.execute(store.insert, (self.name, number))
        return end(act, number)

    async def perform_async(self, store: Store, mode: str) -> Reply:
        """The body of an async handler."""
        number, act = self.begin(guarded=mode in ("leased", "atomic"))
        if self.gate is not None:
            await asyncio.to_thread(self.hold)
        if mode == "atomic":
            connection = current_operation().connection
            if store.dialect != "postgres":
                await connection.execute(store.insert, (self.name, number))
            else:
                await connection.execute("insert into effects values ($1, $2)", self.name, number)
        return end(act, number)


def end(act: Act, number: int) -> Reply:
    if isinstance(act, Raise):
        raise act.make()
    if act.body is not None or act.chunks is not None:
        return act
    return Reply(act.status, b'{"run":%d}' % number, act.headers)


PROFILES: dict[str, Callable[..., Policy]] = {"ietf": ietf, "stripe": stripe, "stripe_v2": stripe_v2}


@dataclass(slots=True)
class Store:
    """One ``Idempotency``, its database, and what tests ask of that database behind its back."""

    idempotency: Idempotency
    dialect: str
    address: str

    @property
    def insert(self) -> str:
        marks = "?, ?" if self.dialect == "sqlite" else "%s, %s"
        return f"insert into effects values ({marks})"

    def ask(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Asks the database itself. ``{keys}`` is the key table; parameters are ``?``."""
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.address, timeout=10)
            try:
                with connection:
                    return connection.execute(sql.replace("{keys}", "samekey_keys"), parameters).fetchall()
            finally:
                connection.close()
        if self.dialect == "mysql":
            return mariadb.ask(self.address, sql.replace("{keys}", "samekey_keys"), parameters)
        text = sql.replace("{keys}", "samekey.keys").replace("?", "%s")
        with psycopg.connect(self.address) as other:
            cursor = other.execute(text.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def damage(self, sql: str, *parameters: Any) -> None:
        """What no version of ours would write, past the table's own checks. SQLite only."""
        connection = sqlite3.connect(self.address, timeout=10)
        try:
            connection.execute("pragma ignore_check_constraints = on")
            with connection:
                connection.execute(sql.replace("{keys}", "samekey_keys"), parameters)
        finally:
            connection.close()

    def effects(self, world: World) -> int:
        """How many rows the handler's writes have left."""
        return int(self.ask("select count(*) from effects where world = ?", world.name)[0][0])

    def records(self, tenant: str) -> list[tuple[Any, ...]]:
        """State and attempts of a tenant's records."""
        return self.ask("select state, attempts from {keys} where tenant = ?", scope_part(tenant))

    def expire(self, tenant: str) -> None:
        """As if a tenant's keys had been kept long enough."""
        self.ask("update {keys} set expires_at = 1 where tenant = ?", scope_part(tenant))

    def end_leases(self, tenant: str) -> None:
        """As if the holders of a tenant's leases had been silent for too long."""
        self.ask("update {keys} set locked_until = 1 where tenant = ?", scope_part(tenant))


def open_store(url: str, policy: Policy | None = None, **options: Any) -> Store:
    """A store with its tables, and one for the handlers' effects."""
    idempotency = Idempotency(url, policy=policy, **options)
    dialect = idempotency.engine.drivers.dialect
    if dialect != "sqlite":  # which makes its tables by itself
        run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    store = Store(idempotency, dialect, url.removeprefix("sqlite:///") if dialect == "sqlite" else url)
    store.ask("create table if not exists effects (world text not null, run int not null)")
    return store


ALL: list[Store] = []
"""The stores of all tests."""


@dataclass(slots=True)
class Stores:
    """The stores of a test run: one database, one ``Idempotency`` for each policy."""

    url: str
    loop: LoopThread
    _known: dict[str, Store] = field(default_factory=dict)

    def get(self, profile: str = "ietf", **overrides: Any) -> Store:
        name = f"{profile} {overrides!r}"
        if name not in self._known:
            self._known[name] = open_store(self.url, PROFILES[profile](**overrides))
            ALL.append(self._known[name])
        return self._known[name]

    def close(self) -> None:
        for store in self._known.values():
            self.loop.run(store.idempotency.aclose())
