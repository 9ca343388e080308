"""A store with a cache in front, whose every question to the database is counted and can be stopped at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import redis

from samekey.core.claim import Claim
from samekey.core.decide import Decision
from samekey.core.policy import ietf
from samekey.core.program import Program, Row, Statement
from samekey.core.record import Answer
from samekey.drivers.protocol import Driver, Session
from samekey.drivers.run import run, run_async
from samekey.drivers.url import drivers_for
from samekey.drivers.wrappers.cached import AsyncCachedDriver, CachedDriver
from samekey.drivers.wrappers.copies import Copies
from samekey.drivers.wrappers.redis_cache import AsyncRedisCache, CacheUrl, RedisCache
from samekey.engine.breaker import Breaker
from samekey.stores.cached import identity
from samekey.stores.protocols import Actor
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.operator import Operator
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance_subject import executed, lease_of, new_claim, retry_of

T = TypeVar("T")

ANSWER = Answer(
    201, ((b"content-type", b"application/json"), (b"x-empty", b"")), b'{"id": "pay_1"}\x00\xff\n'
)
POLICY = ietf()
ANN = Actor("ann", "a test")


def migrated(url: str) -> None:
    """Makes the tables."""
    drivers = drivers_for(url)
    run(drivers.sync, lambda: migrate(queries_for(drivers.dialect)))
    drivers.sync.close()


def _nothing(*_: object) -> None:
    """Where a test does not stop."""


class Counted:
    """A driver that notes the name of each statement, and stops where a test wants to act."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.names: list[str] = []
        self.after: Callable[[Statement], None] = _nothing
        """Called between the database's reply and its use."""
        self.before_commit: Callable[[], None] = _nothing
        self.after_commit: Callable[[], None] = _nothing

    def execute(self, statement: Statement) -> Sequence[Row]:
        self.names.append(statement.name)
        rows = self._driver.execute(statement)
        after, self.after = self.after, _nothing
        after(statement)
        return rows

    def open(self, connection: Any = None) -> Session:
        self.names.append("begin")
        return _CountedSession(self._driver.open(connection), self)

    def close(self) -> None:
        self._driver.close()

    def take(self) -> list[str]:
        """The names since the last time."""
        names, self.names = self.names, []
        return names


class _CountedSession:
    def __init__(self, session: Session, counted: Counted) -> None:
        self._session = session
        self._counted = counted
        self.wrote = session.wrote
        self.in_transaction = session.in_transaction
        self.rollback = session.rollback

    @property
    def connection(self) -> Any:
        return self._session.connection

    def execute(self, statement: Statement) -> Sequence[Row]:
        self._counted.names.append(statement.name)
        return self._session.execute(statement)

    def commit(self) -> None:
        try:
            self._counted.before_commit()
        except BaseException:
            self._session.rollback()  # a server does that when its client is gone
            raise
        self._session.commit()
        self._counted.after_commit()


class World:
    """One node: programs, the cached driver, the counted one below it, and Redis seen from outside."""

    def __init__(self, url: str, cache: str, *, in_progress: bool = False, namespace: str = "") -> None:
        drivers = drivers_for(url)
        self.queries = queries_for(drivers.dialect)
        self.keys = SqlKeys(self.queries)
        self.operator = Operator(self.keys)
        self.database = Counted(drivers.sync)
        self.breaker = Breaker()
        where = CacheUrl.parse(cache)
        self.copies = Copies(
            identity(self.queries),
            schema="samekey",
            namespace=namespace or where.namespace,
            in_progress=in_progress,
        )
        self.cache = RedisCache(where, self.breaker)
        self.driver = CachedDriver(self.database, self.cache, self.copies)
        self.redis = redis.Redis.from_url(where.url)
        self._async_database = drivers.aio
        self._async_cache = AsyncRedisCache(where, self.breaker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()
        self.redis.close()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return run(self.driver, factory)

    def run_async(self, *factories: Callable[[], Program[T]]) -> list[T]:
        """One after the other, on an event loop of their own."""

        async def all_of_them() -> list[T]:
            driver = AsyncCachedDriver(self._async_database, self._async_cache, self.copies)
            try:
                return [await run_async(driver, factory) for factory in factories]
            finally:
                await driver.close()

        return asyncio.run(all_of_them())

    def claim(self, claim: Claim, *, now: int | None = None) -> Decision:
        return self.run(lambda: self.keys.claim(claim, POLICY, now=now))

    def completed(self, *, answer: Answer | None = ANSWER, now: int | None = None, **options: Any) -> Claim:
        """A claim whose operation is done. Nothing of it is cached yet."""
        claim = new_claim(**options)
        record = executed(self.claim(claim, now=now))
        lease = lease_of(record, claim)
        self.run(lambda: self.keys.complete(lease, answer, now=now))
        self.database.take()
        return claim

    def replay(self, claim: Claim, *, now: int | None = None) -> tuple[Decision, list[str]]:
        """What a retry gets, and the statements that it cost."""
        self.database.take()
        decision = self.claim(retry_of(claim), now=now)
        return decision, self.database.take()

    def cached(self) -> dict[str, bytes]:
        """Everything in the cache but epochs."""
        names = sorted(name.decode() for name in self.redis.scan_iter("samekey:*"))
        found = {name: self.redis.get(name) for name in names if not name.endswith(":epoch")}
        return {name: value for name, value in found.items() if isinstance(value, bytes)}

    def id_of(self, claim: Claim) -> str:
        record = run(self.database, lambda: self.keys.read(claim.scope, claim.key))
        assert record is not None
        self.database.take()
        return record.id

    def evict(self, claim: Claim) -> bool:
        operation = self.id_of(claim)
        return self.run(lambda: self.operator.evict(operation, ANN))
