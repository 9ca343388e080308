"""Counts what the store is asked, by wrapping the drivers of an ``Idempotency``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from samekey import Idempotency
from samekey.core.program import Row, Statement
from samekey.drivers.protocol import AsyncDriver, AsyncSession, Driver, Session
from samekey.drivers.url import Drivers


class _Counting:
    def __init__(self, driver: Driver, touches: list[str]) -> None:
        self._driver = driver
        self._touches = touches

    def execute(self, statement: Statement) -> Sequence[Row]:
        self._touches.append(statement.name)
        return self._driver.execute(statement)

    def open(self, connection: Any = None) -> Session:
        self._touches.append("open")
        return self._driver.open(connection)

    def close(self) -> None:
        self._driver.close()


class _CountingAsync:
    def __init__(self, driver: AsyncDriver, touches: list[str]) -> None:
        self._driver = driver
        self._touches = touches

    async def execute(self, statement: Statement) -> Sequence[Row]:
        self._touches.append(statement.name)
        return await self._driver.execute(statement)

    async def open(self, connection: Any = None) -> AsyncSession:
        self._touches.append("open")
        return await self._driver.open(connection)

    async def close(self) -> None:
        await self._driver.close()


@contextmanager
def touches(idempotency: Idempotency) -> Iterator[list[str]]:
    """The names of all statements that are asked for while this is open."""
    found: list[str] = []
    before = idempotency.engine.drivers
    idempotency.engine.drivers = Drivers(
        before.dialect, _Counting(before.sync, found), _CountingAsync(before.aio, found)
    )
    try:
        yield found
    finally:
        idempotency.engine.drivers = before
