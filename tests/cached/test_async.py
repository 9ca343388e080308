"""Many requests of one event loop share one connection to the cache, and each gets its own reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from lab.servers.redis import RedisServer
from samekey.core.claim import Claim
from samekey.core.decide import Decision, Replay
from samekey.core.program import Row, Statement
from samekey.core.record import Answer
from samekey.drivers.protocol import AsyncDriver, AsyncSession
from samekey.drivers.run import run_async
from samekey.drivers.url import drivers_for
from samekey.drivers.wrappers.cached import AsyncCachedDriver
from samekey.drivers.wrappers.redis_cache import AsyncRedisCache, CacheUrl
from samekey.engine.breaker import Breaker
from samekey.testing.conformance_subject import retry_of
from tests.cached.world import POLICY, World
from tests.chosen import whole

pytestmark = whole


KEYS = 20


class Counted:
    """An async driver that notes the names of its statements."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self.names: list[str] = []

    async def execute(self, statement: Statement) -> Sequence[Row]:
        self.names.append(statement.name)
        return await self._driver.execute(statement)

    async def open(self, connection: Any = None) -> AsyncSession:
        return await self._driver.open(connection)

    async def close(self) -> None:
        await self._driver.close()


class Node:
    """An async application with a cache."""

    def __init__(self, world: World, url: str, cache: str) -> None:
        self.world = world
        self.database = Counted(drivers_for(url).aio)
        self.breaker = Breaker()
        self.cache = AsyncRedisCache(CacheUrl.parse(cache), self.breaker)
        self.driver = AsyncCachedDriver(self.database, self.cache, world.copies)

    async def replay(self, claim: Claim) -> Decision:
        return await run_async(self.driver, lambda: self.world.keys.claim(retry_of(claim), POLICY))


@pytest.fixture
def claims(world: World) -> list[Claim]:
    """Operations that are done, each with an answer of its own, all of them cached."""
    made = [world.completed(answer=Answer(200 + n, (), b"x" * 7 * n)) for n in range(KEYS)]
    for claim in made:
        world.replay(claim)
    return made


@pytest.fixture
def node(world: World, shared_postgres: str, cache_url: str) -> Node:
    return Node(world, shared_postgres, cache_url)


def finish(node: Node, work: Coroutine[Any, Any, None]) -> None:
    async def all_of_it() -> None:
        try:
            await work
        finally:
            await node.driver.close()

    asyncio.run(all_of_it())


def status(decision: Decision) -> int:
    assert isinstance(decision, Replay)
    assert decision.record.answer is not None
    return decision.record.answer.status


EXPECTED = [200 + n for n in range(KEYS)]


def test_each_gets_its_own(node: Node, claims: list[Claim]) -> None:
    async def work() -> None:
        for _ in range(5):
            decisions = await asyncio.gather(*(node.replay(claim) for claim in claims * 5))
            assert [status(decision) for decision in decisions] == EXPECTED * 5

    finish(node, work())
    assert node.database.names == [], "which database it is, the other node has found out"


def test_who_is_cancelled_disturbs_nobody(node: Node, claims: list[Claim]) -> None:
    async def work() -> None:
        for turn in range(8):
            tasks = [asyncio.create_task(node.replay(claim)) for claim in claims * 3]
            for _ in range(turn):  # a little further on its way each time
                await asyncio.sleep(0)
            for task in tasks[turn % 3 :: 3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for expected, result in zip(EXPECTED * 3, results, strict=True):
                assert isinstance(result, asyncio.CancelledError) or status(result) == expected  # type: ignore[arg-type]

    finish(node, work())
    assert node.database.names == []


def test_a_busy_loop_does_not_blame_the_cache(
    world: World, claims: list[Claim], shared_postgres: str, own_cache_server: RedisServer
) -> None:
    node = Node(world, shared_postgres, f"{own_cache_server.url}?timeout=0.5")

    async def work() -> None:
        for claim in claims * 2:
            await node.replay(claim)
        node.database.names.clear()
        own_cache_server.pause()
        tasks = [asyncio.create_task(node.replay(claim)) for claim in claims]
        for _ in range(20):
            await asyncio.sleep(0)  # until all is sent
        own_cache_server.resume()
        time.sleep(0.8)  # longer than a question may take; the replies lie there
        assert [status(await task) for task in tasks] == EXPECTED

    finish(node, work())
    assert node.database.names == []


def test_closing_leaves_nobody_waiting(node: Node, claims: list[Claim]) -> None:
    async def work() -> None:
        tasks = [asyncio.create_task(node.replay(claim)) for claim in claims]
        await asyncio.sleep(0)
        await node.cache.close()
        assert [status(await task) for task in tasks] == EXPECTED

    finish(node, work())


def test_a_cache_that_goes_and_comes_back(
    world: World, claims: list[Claim], shared_postgres: str, own_cache_server: RedisServer
) -> None:
    node = Node(world, shared_postgres, f"{own_cache_server.url}?timeout=5")

    async def all_right() -> None:
        decisions = await asyncio.gather(*(node.replay(claim) for claim in claims))
        assert [status(decision) for decision in decisions] == EXPECTED

    async def work() -> None:
        for _ in range(2):
            await all_right()
        own_cache_server.kill()
        for _ in range(6):
            await all_right()
        assert node.breaker.is_open
        own_cache_server.start_again()
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            node.database.names.clear()
            await all_right()
            if not node.database.names:
                break
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)

    finish(node, work())
