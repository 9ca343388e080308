"""The pools: never more than their size, never fewer places than were given, whatever goes wrong."""

from __future__ import annotations

import asyncio
import random

import pytest

from samekey.drivers.pool import AsyncPool, Pool
from samekey.errors import StoreBusy

SIZE = 3


class Line:
    """A connection that remembers whether it is open."""

    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False


class World:
    """Connects when it is told to, and counts."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.most = 0
        self.fails = False
        self.gate: asyncio.Event | None = None
        self.connecting = 0

    async def connect(self) -> Line:
        self.connecting += 1
        self.most = max(self.most, self.open + self.connecting)
        try:
            if self.gate is not None:
                await self.gate.wait()
            else:
                await asyncio.sleep(0)
            if self.fails:
                raise ConnectionRefusedError
            self.lines.append(Line())
            return self.lines[-1]
        finally:
            self.connecting -= 1

    @property
    def open(self) -> int:
        return sum(line.open for line in self.lines)

    def pool(self, timeout: float = 5.0) -> AsyncPool[Line]:
        return AsyncPool(self.connect, Line.close, size=SIZE, timeout=timeout, usable=lambda line: line.open)


def test_a_place_that_failed_goes_to_one_who_waits_and_to_nobody_else() -> None:
    async def story() -> None:
        world = World()
        world.gate, world.fails = asyncio.Event(), True
        pool = world.pool()
        first = [asyncio.ensure_future(pool.take()) for _ in range(2 * SIZE)]
        await asyncio.sleep(0)
        world.gate.set()  # the first ones fail, and their places go to the others
        done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(task.exception(), ConnectionRefusedError) for task in done)
        # In this moment the places are on their way; whoever comes now must not take them as well.
        late = [asyncio.ensure_future(pool.take()) for _ in range(2 * SIZE)]
        await asyncio.wait([*first, *late])
        assert world.most <= SIZE
        assert pool.free == SIZE

    asyncio.run(story())


def test_giving_back_twice_gives_one_place() -> None:
    async def story() -> None:
        world = World()
        pool = world.pool(timeout=0.01)
        taken = [await pool.take() for _ in range(SIZE)]
        pool.give_back(taken[0])
        pool.give_back(taken[0])
        assert pool.free == 1
        await pool.take()
        with pytest.raises(StoreBusy):
            await pool.take()

    asyncio.run(story())


@pytest.mark.parametrize("seed", range(20))
def test_a_crowd_that_fails_breaks_and_is_cancelled_leaves_every_place(seed: int) -> None:
    chance = random.Random(seed)

    async def use(world: World, pool: AsyncPool[Line]) -> None:
        line = await pool.take()
        try:
            assert line.open
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                line.close()
        finally:
            pool.give_back(line)

    async def story() -> None:
        world = World()
        pool = world.pool()
        tasks = []
        for _ in range(200):
            tasks.append(asyncio.ensure_future(use(world, pool)))
            world.fails = chance.random() < 0.3
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
            if chance.random() < 0.1:
                pool.drop_idle()
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert world.most <= SIZE
        assert (pool.free, pool.in_use) == (SIZE, 0)
        pool.close()
        assert world.open == 0

    asyncio.run(story())


def test_what_is_in_use_when_an_async_pool_closes_is_closed_when_it_comes_back() -> None:
    async def story() -> bool:
        pool = World().pool()
        line = await pool.take()
        pool.close()
        was_open = line.open
        pool.give_back(line)
        return was_open and not line.open

    assert asyncio.run(story())


def test_what_is_in_use_when_a_pool_closes_is_closed_when_it_comes_back() -> None:
    pool = Pool(Line, Line.close, size=1, timeout=0.01)
    line = pool.take()
    pool.close()
    pool.give_back(line)
    pool.give_back(line)
    assert not line.open
    again = pool.take()  # a pool that was closed can be used again
    with pytest.raises(StoreBusy):
        pool.take()
    pool.give_back(again)
    assert again.open and pool.take() is again


class Interrupted:
    """A signal whose handler raises, at the n-th question whether a connection is usable."""

    def __init__(self, at: int) -> None:
        self.left = at

    def usable(self, line: Line) -> bool:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return line.open


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_signal_that_raises_takes_no_place_along(at: int) -> None:
    made: list[Line] = []

    def connect() -> Line:
        made.append(Line())
        return made[-1]

    pool = Pool(connect, Line.close, size=1, timeout=0.01, usable=Interrupted(at).usable)
    interrupted = 0
    for _ in range(3):
        line = None
        try:
            line = pool.take()
            pool.give_back(line)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == 1
    assert pool.in_use == 0
    again = pool.take()
    assert [one for one in made if one.open] == [again], "what was taken along is closed"
