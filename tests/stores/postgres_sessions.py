"""What the tests of lent PostgreSQL connections share: drivers, and what the server says of its sessions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlencode

import psycopg

from samekey.drivers.postgres.asyncpg import AsyncpgDriver
from samekey.drivers.postgres.psycopg import PsycopgDriver

PATIENCE = 20.0
"""Seconds that something may take which is certain to come."""


class Watched:
    """A URL whose sessions can be told from all others, and a table to write to."""

    def __init__(self, url: str) -> None:
        self.name = f"watched-{secrets.token_hex(6)}"
        self.url = f"{url}?{urlencode({'application_name': self.name})}"
        self._url = url
        self.execute("create table if not exists lent_effects (key text not null)")

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def effects(self, key: str) -> int:
        found: int = self.execute("select count(*) from lent_effects where key = %s", key)[0][0]
        return found

    def sessions(self) -> list[tuple[Any, ...]]:
        return self.execute(
            "select pid, state, query from pg_stat_activity where application_name = %s", self.name
        )

    def wait_for_sessions(self, count: int) -> None:
        """The server needs a moment to notice that a client has gone."""
        give_up = time.monotonic() + PATIENCE
        while len(self.sessions()) > count:
            assert time.monotonic() < give_up, f"left behind: {self.sessions()}"
            time.sleep(0.02)
        assert len(self.sessions()) == count


@asynccontextmanager
async def asyncpg_driver(url: str, **options: Any) -> AsyncIterator[AsyncpgDriver]:
    driver = AsyncpgDriver(url, **options)
    try:
        yield driver
    finally:
        await driver.close()


@contextmanager
def psycopg_driver(url: str, **options: Any) -> Iterator[PsycopgDriver]:
    driver = PsycopgDriver(url, **options)
    try:
        yield driver
    finally:
        driver.close()


def new_key() -> str:
    return secrets.token_hex(8)


async def until(condition: Any) -> None:
    """Waits for something that is certain to come."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)
