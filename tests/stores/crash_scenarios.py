"""What the crash tests run: whole guarded requests and single programs, on any store, sync and async.

Importable by name, because the processes that are killed import it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import psycopg

from lab.servers.mariadb import connected
from samekey import Idempotency
from samekey.core.fingerprint import RequestParts
from samekey.core.record import Answer
from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.engine.exchange import Exchange
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import Queries, queries_for
from samekey.testing.crash import Points

PAID = Answer(201, ((b"content-type", b"text/plain"),), b"paid")


def prepare(url: str) -> None:
    """The tables of samekey, and one for the effects."""
    idempotency = Idempotency(url)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    idempotency.close()
    execute(url, "create table effects (label text)")


def queries_of(url: str) -> Queries:
    """The SQL of the store that a URL names."""
    return queries_for(drivers_for(url).dialect)


def execute(url: str, sql: str) -> list[Any]:
    """One statement on a connection of its own, committed: the world outside of samekey."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()
    if url.startswith("mysql"):
        with connected(url) as server, server.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())
    with psycopg.connect(url) as server:
        cursor = server.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def effects(url: str, label: str) -> int:
    count: int = execute(url, f"select count(*) from effects where label = '{label}'")[0][0]
    return count


def end_lease(url: str, label: str) -> None:
    """As if the lease's time had passed: the holder is dead and will not renew it."""
    queries = queries_of(url)
    execute(
        url,
        f"update {queries.expand('{keys}')} set locked_until = 1"
        f" where {queries.column('key')} = '{label}' and state = 'in_progress'",
    )


def state_of(url: str, label: str) -> str | None:
    queries = queries_of(url)
    rows = execute(
        url, f"select state from {queries.expand('{keys}')} where {queries.column('key')} = '{label}'"
    )
    if not rows:
        return None
    state = rows[0][0]
    return state.decode() if isinstance(state, bytes) else str(state)


def guarded_request(points: Points, url: str, mode: Mode, style: str) -> Answer | None:
    """One request through the engine; the answer that would have been sent."""
    return asyncio.run(_async_request(points, url, mode)) if style == "async" else _sync(points, url, mode)


def exchange_of(label: str) -> Exchange:
    headers = ((b"content-type", b"application/json"),)
    parts = RequestParts("POST", "/payments", b"", headers, b'{"amount": 5}')
    return Exchange(parts, [label.encode()], {}, lambda _context: "tenant", "/payments")


def _insert(label: str) -> str:
    return f"insert into effects values ('{label}')"


def _sync(points: Points, url: str, mode: Mode) -> Answer | None:
    idempotency = Idempotency(url)
    points.watch(idempotency)
    try:
        rules = rules_from(idempotency.engine.policy, mode, {})
        begun = idempotency.engine.begin(exchange_of(points.label), rules)
        if not isinstance(begun, Running):
            return begun
        points.reach("before the effect")
        if mode is Mode.ATOMIC:
            begun.operation.connection.execute(_insert(points.label))
        else:
            execute(url, _insert(points.label))
        points.reach("after the effect")
        finished = idempotency.engine.finish(begun, Handled(PAID))
        points.reach("before the answer is sent")
        return finished.answer
    finally:
        idempotency.close()


async def _async_request(points: Points, url: str, mode: Mode) -> Answer | None:
    idempotency = Idempotency(url)
    points.watch(idempotency)
    try:
        rules = rules_from(idempotency.engine.policy, mode, {})
        begun = await idempotency.engine.begin_async(exchange_of(points.label), rules)
        if not isinstance(begun, Running):
            return begun
        points.reach("before the effect")
        if mode is Mode.ATOMIC:
            await begun.operation.connection.execute(_insert(points.label))
        else:
            execute(url, _insert(points.label))
        points.reach("after the effect")
        finished = await idempotency.engine.finish_async(begun, Handled(PAID))
        points.reach("before the answer is sent")
        return finished.answer
    finally:
        await idempotency.aclose()
