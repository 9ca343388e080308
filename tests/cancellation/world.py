"""What is cancelled, and what must hold afterwards.

A ``Shop`` is an engine with so few connections that the loss of a single one is found at once, and a book of
its effects: rows where the work is atomic, entries of a list where it is not. ``check`` is the judge.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import psycopg

from lab.servers import mariadb
from samekey import Idempotency, OutcomeUnknown, StillRunning, current_operation, ietf
from samekey.core.claim import call_part, scope_of, scope_part
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.testing.cancellation import Cancelled, Moment

Mode = Literal["leased", "atomic"]

PATIENCE = 60.0
"""Seconds for what must come to rest by itself."""
LEASE = timedelta(minutes=10)
"""So long that nothing here can be waiting for one to end."""
PLACEHOLDERS = {"postgres": ("$1", "$2"), "sqlite": ("?", "?"), "mysql": ("%s", "%s")}


@dataclass(frozen=True, slots=True)
class Store:
    """A store, and when to cancel what asks it."""

    url: str
    moments: tuple[Moment, ...]


class Found(AssertionError):
    """Something that must never be was found after a cancellation."""


class Shop:
    """Effects of operations, by label, and the engine that guards them."""

    def __init__(self, url: str, *, connections: int = 1) -> None:
        self.url = url
        # Bounds that no test meets, however busy the machine: a place that is lost is missed all the same.
        policy = ietf(lease=LEASE, max_run=2 * LEASE)
        self.idempotency = Idempotency(url, policy=policy, pool_size=connections, timeout=PATIENCE / 2)
        self.idempotency.migrate()
        self.entered: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self._postgres: psycopg.Connection[Any] | None = None
        self._direct = self.idempotency.engine.drivers.sync
        self.is_sql = self.idempotency.engine.store.transactional is not None
        if self.is_sql:
            self._ask("create table effects (label varchar(64), tenant varchar(64))")

    async def aclose(self) -> None:
        await self.idempotency.aclose()
        if self._postgres is not None:
            self._postgres.close()

    # ------------------------------------------------------------------ what operations do

    async def act(self, label: str) -> str:
        """A handler: its effect, with a wait before and after it."""
        self.entered[label] += 1
        await asyncio.sleep(0)
        if current_operation().mode == "atomic":
            await self.write(label)
        else:
            self.effects[label] += 1
        await asyncio.sleep(0)
        self.returned[label] += 1
        return f"did {label}"

    async def write(self, label: str, connection: Any = None) -> None:
        one, two = PLACEHOLDERS[self.idempotency.engine.drivers.dialect]
        connection = connection or current_operation().connection
        sql = f"insert into effects values ({one}, {two})"
        if self.idempotency.engine.drivers.dialect == "postgres":
            await connection.execute(sql, label, "t")
        elif hasattr(connection, "execute"):
            await connection.execute(sql, (label, "t"))
        else:
            async with connection.cursor() as cursor:
                await cursor.execute(sql, (label, "t"))

    async def once(self, label: str, mode: Mode, tenant: str = "t") -> Any:
        return await self.idempotency.once_async(
            tenant=tenant, key=label, run=lambda: self.act(label), mode=mode
        )

    # ------------------------------------------------------------------ what is true

    def rows(self, label: str) -> int:
        """The effects that stand: rows that were committed, and what no database can take back."""
        if not self.is_sql:
            return self.effects[label]
        found = self._ask(f"select count(*) from effects where label = '{label}'")
        return int(found[0][0]) + self.effects[label]

    def record(self, label: str, tenant: str = "t") -> Record | None:
        """Of a request or of a call: each has its own keys, and no label is used for both."""
        for part in (scope_part(tenant), call_part(tenant)):
            found = run(self._direct, partial(self.idempotency.engine.keys.read, scope_of(part), label))
            if found is not None:
                return found
        return None

    def _ask(self, sql: str) -> list[Any]:
        """Behind the engine's back, on a connection of its own."""
        if self.idempotency.engine.drivers.dialect == "mysql":
            return mariadb.ask(self.url, sql)
        if self.idempotency.engine.drivers.dialect == "postgres":
            self._postgres = self._postgres or psycopg.connect(self.url, autocommit=True)
            found = self._postgres.execute(sql.encode())
            return found.fetchall() if found.description else []
        with sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=PATIENCE) as sqlite:
            rows = sqlite.execute(sql).fetchall()
        sqlite.close()
        return rows

    async def at_rest(self, label: str) -> Record | None:
        """The record once nothing is under way any more; within patience, and long before its lease ends."""
        deadline = time.monotonic() + PATIENCE
        while True:
            # What a cancelled caller left behind goes on in tasks of the engine's or of an edge's.
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if left and (await asyncio.wait(left, timeout=PATIENCE))[1]:
                raise Found(f"something still goes on: {left}")
            record = await asyncio.to_thread(self.record, label)
            if record is None or record.state is not State.IN_PROGRESS:
                return record
            if time.monotonic() > deadline:
                raise Found(f"the record still runs, and nobody runs it: {record}")
            await asyncio.sleep(0.005)

    async def check(
        self,
        cancelled: Cancelled,
        mode: Mode,
        again: Callable[[], Awaitable[Any]],
        *,
        answered: bool | None = None,
    ) -> None:
        """Everything that must hold after one cancellation; ``again`` is the client's retry.

        ``answered``: whether the client got a success all the same.
        """
        label = cancelled.label
        answered = cancelled.error is None if answered is None else answered
        record = await self.at_rest(label)
        rows = await asyncio.to_thread(self.rows, label)
        state = None if record is None else record.state
        if answered and not (rows == 1 and state is State.COMPLETED):
            raise Found(f"answered without its effect or its record: {rows} effects, {state}, {cancelled}")
        if state is State.UNKNOWN and not self.entered[label]:
            raise Found(f"unknown, though nothing ran: {cancelled}")
        if mode == "atomic" and (rows == 1) != (state is State.COMPLETED):
            raise Found(f"{rows} rows beside a record that is {state}: {cancelled}")
        if mode != "atomic" and rows and state not in (State.COMPLETED, State.UNKNOWN):
            raise Found(f"an effect beside a record that is {state}: {cancelled}")
        await self._retry(cancelled, state, again)
        if await asyncio.to_thread(self.rows, label) > 1:
            raise Found(f"two effects: {cancelled}")
        await self._next_tenant(label)

    async def _retry(
        self, cancelled: Cancelled, state: State | None, again: Callable[[], Awaitable[Any]]
    ) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = await again()
            except OutcomeUnknown:
                if state is not State.UNKNOWN:
                    raise Found(f"a retry was told that nobody knows, of {state}: {cancelled}") from None
                return
            except StillRunning:
                # A server needs a moment to notice that a connection was closed, with the lock on it.
                if time.monotonic() > deadline:
                    raise Found(f"a retry was told that it still runs: {cancelled}") from None
                await asyncio.sleep(0.005)
            else:
                break
        if answer != f"did {cancelled.label}" or state is State.UNKNOWN:
            raise Found(f"a retry got {answer!r}, of {state}: {cancelled}")
        if await asyncio.to_thread(self.rows, cancelled.label) != 1:
            raise Found(f"a retry was answered without an effect: {cancelled}")

    async def _next_tenant(self, label: str) -> None:
        """Somebody else, who takes the connection that is left, and meets nothing on it."""
        mine = f"next {label}"
        mode: Mode = "atomic" if self.is_sql else "leased"
        if await self.once(mine, mode, "another") != f"did {mine}":
            raise Found("the next tenant got another answer")
        record = await asyncio.to_thread(self.record, mine, "another")
        if await asyncio.to_thread(self.rows, mine) != 1 or record is None:
            raise Found(f"the next tenant's work was not committed: {record}")
