"""A Redis cache in front of a SQL store: replays are answered without the database.

It sits between the programs and a driver, as encryption does (and below it: what is encrypted at rest is so
in the cache). The rules stand in ``copies.py``; here are their two shells, sync and async.

The cache is never needed. Each question to it is bounded by some milliseconds; what fails, for whatever
reason, is a question that was not asked; and after a few failures a breaker leaves it alone for a while.
Only an operator's eviction fails if the cache cannot be told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from ...core.program import Row, Statement
from ..protocol import AsyncDriver, AsyncSession, Driver, Lending, Session
from ..url import Drivers
from .copies import EVICTING, READING, Copies, Fetch, Flow, Touched
from .redis_cache import AsyncRedisCache, CacheUrl, RedisCache

T = TypeVar("T")


class CachedDriver:
    """A sync driver with a cache in front."""

    def __init__(self, driver: Driver, cache: RedisCache, copies: Copies) -> None:
        self._driver = driver
        self._cache = cache
        self._copies = copies

    def execute(self, statement: Statement) -> Sequence[Row]:
        if statement.name in READING:
            return self.drive(self._copies.read(statement))
        if statement.name in EVICTING:
            return self._in_transaction(statement)
        if self._copies.ends(statement):
            self.drive(self._copies.end_marker(statement))
        rows = self._driver.execute(statement)
        if touched := self._copies.touched(statement, rows):
            self.drive(self._copies.drop(touched))
        return rows

    def _in_transaction(self, statement: Statement) -> Sequence[Row]:
        session = self.open()
        try:
            rows = session.execute(statement)
        except BaseException:
            session.rollback()
            raise
        session.commit()
        return rows

    def open(self, connection: Any = None) -> Session:
        return _CachedSession(self._driver.open(connection), self, self._copies)

    def close(self) -> None:
        self._driver.close()
        self._cache.close()

    def drive(self, flow: Flow[T]) -> T:
        """Carries out what the rules say."""
        try:
            step = next(flow)
            while True:
                try:
                    result = (
                        self._driver.execute(step.statement)
                        if isinstance(step, Fetch)
                        else self._cache.ask(step)
                    )
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value


class _CachedSession:
    """A transaction reads the database only, and tells the cache around its COMMIT."""

    def __init__(self, session: Session, driver: CachedDriver, copies: Copies) -> None:
        self._session = session
        self._driver = driver
        self._copies = copies
        self._touched: list[Touched] = []
        self.wrote = session.wrote
        self.in_transaction = session.in_transaction
        self.rollback = session.rollback

    @property
    def connection(self) -> Any:
        return self._session.connection

    def cut(self) -> None:
        cast(Lending, self._session).cut()

    def give_up(self) -> None:
        cast(Lending, self._session).give_up()

    def sent(self) -> int:
        return cast(Lending, self._session).sent()

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        cast(Lending, self._session).expire_after(seconds, then)

    def execute(self, statement: Statement) -> Sequence[Row]:
        if self._copies.ends(statement):
            self._driver.drive(self._copies.end_marker(statement))
        rows = self._session.execute(statement)
        self._touched += self._copies.touched(statement, rows)
        return rows

    def commit(self) -> None:
        try:
            self._driver.drive(self._copies.block(self._touched))
        except BaseException:
            self._session.rollback()
            raise
        self._session.commit()
        self._driver.drive(self._copies.drop(self._touched))


class AsyncCachedDriver:
    """An async driver with a cache in front."""

    def __init__(self, driver: AsyncDriver, cache: AsyncRedisCache, copies: Copies) -> None:
        self._driver = driver
        self._cache = cache
        self._copies = copies

    async def execute(self, statement: Statement) -> Sequence[Row]:
        if statement.name in READING:
            return await self.drive(self._copies.read(statement))
        if statement.name in EVICTING:
            return await self._in_transaction(statement)
        if self._copies.ends(statement):
            await self.drive(self._copies.end_marker(statement))
        rows = await self._driver.execute(statement)
        if touched := self._copies.touched(statement, rows):
            await self.drive(self._copies.drop(touched))
        return rows

    async def _in_transaction(self, statement: Statement) -> Sequence[Row]:
        session = await self.open()
        try:
            rows = await session.execute(statement)
        except BaseException:
            await session.rollback()
            raise
        await session.commit()
        return rows

    async def open(self, connection: Any = None) -> AsyncSession:
        return _AsyncCachedSession(await self._driver.open(connection), self, self._copies)

    async def close(self) -> None:
        await self._driver.close()
        await self._cache.close()

    async def drive(self, flow: Flow[T]) -> T:
        """Carries out what the rules say."""
        try:
            step = next(flow)
            while True:
                try:
                    result = (
                        await self._driver.execute(step.statement)
                        if isinstance(step, Fetch)
                        else await self._cache.ask(step)
                    )
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value


class _AsyncCachedSession:
    """As ``_CachedSession``."""

    def __init__(self, session: AsyncSession, driver: AsyncCachedDriver, copies: Copies) -> None:
        self._session = session
        self._driver = driver
        self._copies = copies
        self._touched: list[Touched] = []
        self.wrote = session.wrote
        self.in_transaction = session.in_transaction
        self.rollback = session.rollback

    @property
    def connection(self) -> Any:
        return self._session.connection

    def cut(self) -> None:
        cast(Lending, self._session).cut()

    def give_up(self) -> None:
        cast(Lending, self._session).give_up()

    def sent(self) -> int:
        return cast(Lending, self._session).sent()

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        cast(Lending, self._session).expire_after(seconds, then)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        if self._copies.ends(statement):
            await self._driver.drive(self._copies.end_marker(statement))
        rows = await self._session.execute(statement)
        self._touched += self._copies.touched(statement, rows)
        return rows

    async def commit(self) -> None:
        try:
            await self._driver.drive(self._copies.block(self._touched))
        except BaseException:
            await self._session.rollback()
            raise
        await self._session.commit()
        await self._driver.drive(self._copies.drop(self._touched))


def with_cache(
    drivers: Drivers,
    url: CacheUrl,
    identity: Statement,
    *,
    schema: str,
    in_progress: bool,
    breaker: Callable[[], AbstractContextManager[None]],
) -> Drivers:
    """The same drivers with a cache in front. Nothing is connected yet.

    ``breaker`` makes one for each of the two clients: they fail apart from each other, and from the store.
    """
    copies = Copies(identity, schema=schema, namespace=url.namespace, in_progress=in_progress)
    return dataclasses.replace(
        drivers,
        sync=CachedDriver(drivers.sync, RedisCache(url, breaker()), copies),
        aio=AsyncCachedDriver(drivers.aio, AsyncRedisCache(url, breaker()), copies),
    )
