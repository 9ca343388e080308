"""What really happened: read from the database and the journal, past everything under test."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg

from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for
from tests.fire.apps import Settings

NOW_MS = {
    "sqlite": "cast((julianday('now') - 2440587.5) * 86400000 as integer)",
    "postgres": "(extract(epoch from clock_timestamp()) * 1000)::bigint",
}


def prepare(url: str) -> None:
    """Creates samekey's tables, and one for effects."""
    drivers = drivers_for(url)
    try:
        run(drivers.sync, lambda: migrate(queries_for(drivers.dialect, "samekey")))
    finally:
        drivers.sync.close()
    query(url, "create table effects (key text)")


def query(url: str, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """One statement on a connection of its own. Parameters are ``?``, the key table is ``KEYS``."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
            return connection.execute(sql.replace("KEYS", "samekey_keys"), parameters).fetchall()
    text = sql.replace("KEYS", "samekey.keys").replace("?", "%s")
    with psycopg.connect(url, autocommit=True) as held:
        cursor = held.execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


class Evidence:
    """What became of the requests to one service."""

    def __init__(self, settings: Settings, url: str | None = None) -> None:
        self._url = url or settings.url
        self._runs = settings.journal()
        self._now = NOW_MS["sqlite" if self._url.startswith("sqlite") else "postgres"]

    def runs(self, key: str) -> int:
        """How often the handler was entered, whatever became of it."""
        return self._runs.count("run", key)

    def effects(self, key: str) -> int:
        """How often it took effect: committed rows, or lines in the journal for leased work."""
        rows = query(self._url, "select count(*) from effects where key = ?", [key])
        return int(rows[0][0]) + self._runs.count("effect", key)

    def state(self, key: str) -> str | None:
        rows = query(self._url, "select state from KEYS where key = ?", [key])
        return str(rows[0][0]) if rows else None

    def lease_is_over(self, key: str) -> bool:
        """In progress, and its lease ran out by the store's clock."""
        late = f"state = 'in_progress' and locked_until < {self._now}"
        return bool(query(self._url, f"select count(*) from KEYS where key = ? and {late}", [key])[0][0])

    def attempt(self, key: str) -> str | None:
        rows = query(self._url, "select attempt from KEYS where key = ?", [key])
        return str(rows[0][0]) if rows else None

    def delete(self, key: str) -> None:
        """What the reaper does in the end."""
        query(self._url, "delete from KEYS where key = ?", [key])
