"""Sessions end once, on every way out, and leave nothing: places, connections, transactions."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from lab.proxy import FaultProxy
from samekey import Idempotency, current_operation
from samekey.core.program import Statement
from samekey.drivers.postgres.asyncpg import AsyncpgDriver
from samekey.drivers.url import drivers_for
from samekey.errors import ConnectionLost, OperationOver, SamekeyError
from samekey.stores.sql.queries import queries_for
from tests.chosen import stores, whole
from tests.stores.postgres_sessions import Watched, asyncpg_driver, new_key, psycopg_driver, until

INSERT = "insert into lent_effects (key) values ($1)"
FIND = queries_for("postgres")["find"]


MOMENTS = [*range(40), *(40 * 3**power // 2**power for power in range(25))]
"""Turns of the event loop: each of the first, then ever fewer, up to more than any operation takes."""


def find() -> Statement:
    return Statement(FIND, {"scope": "nobody", "key": "nothing", "now": None})


@pytest.fixture
def watched(migrated_postgres: str) -> Watched:
    return Watched(migrated_postgres)


async def cycle(driver: AsyncpgDriver, key: str) -> None:
    """One operation: a look, a transaction with a write, its end."""
    await driver.execute(find())
    await write(driver, key)


async def write(driver: AsyncpgDriver, key: str) -> None:
    session = await driver.open()
    try:
        await session.connection.execute(INSERT, key)
    except BaseException:
        await session.rollback()
        raise
    await session.commit()


async def cancelled_at(driver: AsyncpgDriver, key: str, moment: int) -> bool:
    """Runs an operation and cancels it at its n-th turn of the event loop. True: it was over before."""
    task = asyncio.ensure_future(cycle(driver, key))
    for _ in range(moment):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    except SamekeyError:
        return False
    return True


@whole
@pytest.mark.parametrize("warm", [False, True], ids=["new connections", "pooled connections"])
def test_cancelled_at_every_turn_of_the_event_loop(watched: Watched, warm: bool) -> None:
    """After each: the places are there, the next one's transaction is its own, nothing half is kept."""

    async def story() -> None:
        async with asyncpg_driver(watched.url, pool_size=1) as driver:
            for moment in MOMENTS:
                if not warm:
                    driver._homes.close()
                else:
                    await cycle(driver, new_key())
                key = new_key()
                over = await cancelled_at(driver, key, moment)
                follower = new_key()
                await cycle(driver, follower)
                assert watched.effects(follower) == 1, "the next one's commit was no commit"
                home = driver._homes.here()
                assert (home.statements.free, home.operations.free) == (1, 1)
                if over:
                    assert watched.effects(key) == 1
                    break
            else:
                raise AssertionError("it never came to its end")

    asyncio.run(story())
    watched.wait_for_sessions(0)


PIECES: dict[str, Callable[[AsyncpgDriver, Any], Awaitable[Any]]] = {
    "look": lambda driver, session: driver.execute(find()),
    "begin": lambda driver, session: driver.open(),
    "statement": lambda driver, session: session.execute(find()),
    "handler": lambda driver, session: session.connection.execute(INSERT, "cancelled"),
}


@pytest.mark.parametrize("name", stores(*reversed(PIECES), first=1))
def test_a_piece_that_is_cancelled_in_flight_does_not_reach_the_next(watched: Watched, name: str) -> None:
    """Most of these moments are after the statement was sent and before its answer came."""

    async def story() -> None:
        async with asyncpg_driver(watched.url, pool_size=1) as driver:
            for moment in range(30):
                await cycle(driver, new_key())
                session = None if name == "begin" else await driver.open()
                piece = asyncio.ensure_future(PIECES[name](driver, session))
                for _ in range(moment):
                    await asyncio.sleep(0)
                piece.cancel()
                await asyncio.wait({piece})
                if not piece.cancelled() and name == "begin":
                    session = piece.result()
                if session is not None:
                    await session.rollback()
                key = new_key()
                await write(driver, key)
                assert watched.effects(key) == 1, "the next one's commit was no commit"
                home = driver._homes.here()
                assert (home.statements.free, home.operations.free) == (1, 1)

    asyncio.run(story())
    watched.wait_for_sessions(0)


@whole
def test_600_operations_with_random_deadlines(watched: Watched) -> None:
    """Every one that was told that it committed has its row, and exactly one."""
    chance = random.Random(17)

    async def attempt(driver: AsyncpgDriver, key: str) -> bool:
        try:
            async with asyncio.timeout(
                chance.choice((None, chance.uniform(0, 0.05), chance.uniform(0, 0.3)))
            ):
                await cycle(driver, key)
            return True
        except (TimeoutError, SamekeyError):
            return False

    async def story() -> None:
        with FaultProxy.before(watched.url) as proxy:
            async with asyncpg_driver(proxy.url_for(watched.url), pool_size=8) as driver:
                keys = [new_key() for _ in range(600)]
                told: list[bool] = []
                for start in range(0, 600, 40):
                    batch = keys[start : start + 40]
                    told += await asyncio.gather(*(attempt(driver, key) for key in batch))
                assert True in told and False in told
                for key, committed in zip(keys, told, strict=True):
                    assert watched.effects(key) in ((1,) if committed else (0, 1)), (key, committed)
                await until(lambda: driver._homes.here().operations.free == 8)
                home = driver._homes.here()
                assert (home.statements.free, home.operations.free) == (8, 8)
                await cycle(driver, new_key())

    asyncio.run(story())
    watched.wait_for_sessions(0)


@pytest.mark.parametrize("where", ["rollback", "commit"])
def test_an_end_that_is_cancelled_gives_its_place_back(watched: Watched, where: str) -> None:
    async def story() -> None:
        async with asyncpg_driver(watched.url, pool_size=2) as driver:
            for moment in range(40):
                session = await driver.open()
                await session.connection.execute(INSERT, new_key())
                task = asyncio.ensure_future(getattr(session, where)())
                for _ in range(moment):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                await session.rollback()  # once is enough, and twice does no harm
                assert driver._homes.here().operations.free == 2

    asyncio.run(story())
    watched.wait_for_sessions(0)


def test_an_operation_that_runs_too_long_loses_its_connection_and_gives_its_place_back(
    watched: Watched,
) -> None:
    async def story() -> None:
        async with asyncpg_driver(watched.url, pool_size=1) as driver:
            key, told = new_key(), threading.Event()
            session = await driver.open()
            await session.connection.execute(INSERT, key)
            session.expire_after(0.01, told.set)
            assert await asyncio.to_thread(told.wait, 20)  # it is told by a thread, and wakes no loop
            assert driver._homes.here().operations.free == 1
            with pytest.raises(OperationOver):
                await session.connection.execute(INSERT, key)
            session.cut()
            with pytest.raises(ConnectionLost, match="longer than its max_run"):
                await session.commit()
            await session.rollback()
            await cycle(driver, key)
            assert watched.effects(key) == 1
            # One that ends in time is left alone.
            session = await driver.open()
            session.expire_after(3600, lambda: None)
            await session.rollback()
            assert driver._homes.here().operations.free == 1

    asyncio.run(story())
    watched.wait_for_sessions(0)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a statement"])
def test_a_sync_operation_that_runs_too_long_loses_its_connection(watched: Watched, busy: bool) -> None:
    with psycopg_driver(watched.url, pool_size=1) as driver:
        key, told = new_key(), threading.Event()
        session = driver.open()
        session.connection.execute("insert into lent_effects (key) values (%s)", [key])
        session.expire_after(0.1, told.set)
        if busy:
            with pytest.raises(Exception, match="connection"):
                session.connection.execute("select pg_sleep(1)")
        assert told.wait(20)
        with pytest.raises(OperationOver):
            session.connection.execute("select 1")
        session.cut()
        with pytest.raises(ConnectionLost, match="longer than its max_run"):
            session.commit()
        following = driver.open()
        following.rollback()
        watched.wait_for_sessions(1)
        assert watched.effects(key) == 0
    watched.wait_for_sessions(0)


# ------------------------------------------------------------------ event loops


async def use(idempotency: Idempotency) -> None:
    session = await idempotency.engine.drivers.aio.open()
    await session.rollback()
    await idempotency.engine.drivers.aio.execute(find())


def test_one_event_loop_after_the_other_leaves_no_connection(watched: Watched) -> None:
    """As pytest-asyncio has them: a new loop for each test, and one Idempotency for all."""
    idempotency = Idempotency(watched.url)
    for _ in range(10):
        asyncio.run(use(idempotency))
        watched.wait_for_sessions(0)
    idempotency.close()


def close_roughly(loop: asyncio.AbstractEventLoop, work: Awaitable[None]) -> None:
    """A loop that is closed without the ceremony of ``asyncio.run``."""
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


@pytest.mark.parametrize("close", stores("aclose", "close", "the next loop", first=1))
def test_connections_of_a_loop_that_was_just_closed_are_closed(watched: Watched, close: str) -> None:
    idempotency = Idempotency(watched.url)
    close_roughly(asyncio.new_event_loop(), use(idempotency))
    assert len(watched.sessions()) == 2
    if close == "close":
        idempotency.close()
        watched.wait_for_sessions(0)
    elif close == "aclose":
        asyncio.run(idempotency.aclose())
        watched.wait_for_sessions(0)
    else:

        async def next_loop() -> None:
            await use(idempotency)
            await asyncio.to_thread(watched.wait_for_sessions, 2)

        asyncio.run(next_loop())
        watched.wait_for_sessions(0)
        idempotency.close()
    gc.collect()  # whatever was not closed properly says so now


def test_a_loop_that_is_closed_while_a_handler_holds_its_connection(watched: Watched) -> None:
    idempotency = Idempotency(watched.url)
    held: list[Any] = []

    async def hold() -> None:
        session = await idempotency.engine.drivers.aio.open()
        await session.connection.execute("select 1")
        held.append(session)

    close_roughly(asyncio.new_event_loop(), hold())
    assert len(watched.sessions()) == 1
    idempotency.close()
    watched.wait_for_sessions(0)


def test_close_reaches_the_connections_of_a_loop_that_runs_elsewhere(watched: Watched) -> None:
    idempotency = Idempotency(watched.url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(use(idempotency), loop).result(20)
        assert len(watched.sessions()) == 2
        idempotency.close()
        watched.wait_for_sessions(0)
        asyncio.run_coroutine_threadsafe(use(idempotency), loop).result(20)  # it can be used again
        idempotency.close()
        watched.wait_for_sessions(0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_two_loops_at_once_keep_their_own_connections(watched: Watched) -> None:
    idempotency = Idempotency(watched.url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def both() -> None:
        session = await idempotency.engine.drivers.aio.open()
        await session.connection.execute(INSERT, "kept")
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(use(idempotency), loop))
        await use(idempotency)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(use(idempotency), loop))
        assert await session.connection.fetchval("select 1") == 1
        await session.rollback()

    try:
        asyncio.run(both())
        watched.wait_for_sessions(2)  # those of the other loop
        idempotency.close()
        watched.wait_for_sessions(0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_what_a_handler_holds_outlives_a_close_in_its_loop(watched: Watched) -> None:
    async def story() -> None:
        driver = drivers_for(watched.url).aio
        session = await driver.open()
        await driver.close()
        gc.collect()
        await asyncio.sleep(0)
        assert await session.connection.fetchval("select 1") == 1
        await session.rollback()
        await asyncio.to_thread(watched.wait_for_sessions, 0)

    asyncio.run(story())


def test_a_forked_child_leaves_the_parents_connections_alone(watched: Watched) -> None:
    idempotency = Idempotency(watched.url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(use(idempotency))
    sync = idempotency.engine.drivers.sync.open()
    before = sorted(row[0] for row in watched.sessions())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            idempotency.close()
            asyncio.run(use(idempotency))
            asyncio.run(idempotency.aclose())
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    watched.wait_for_sessions(len(before))
    assert sorted(row[0] for row in watched.sessions()) == before
    assert sync.connection.execute("select 1").fetchone() == (1,)
    sync.rollback()
    loop.run_until_complete(use(idempotency))
    loop.run_until_complete(idempotency.aclose())
    loop.close()
    watched.wait_for_sessions(0)


def test_a_connection_that_is_cancelled_while_it_is_made_is_closed(watched: Watched) -> None:
    async def story() -> None:
        for moment in range(60):
            async with asyncpg_driver(watched.url) as driver:
                task = asyncio.ensure_future(driver.execute(find()))
                for _ in range(moment):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                assert driver._homes.here().statements.free == 10

    asyncio.run(story())
    watched.wait_for_sessions(0)


def test_a_connection_whose_caller_left_while_it_was_made_is_for_the_next_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crowd of callers with deadlines never gets through after a cold start: each new connection is
    closed because its own caller has gone meanwhile."""
    made: list[Any] = []
    connect = asyncpg.connect

    async def story() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(*args: Any, **options: Any) -> Any:
            begun.set()
            await go_on.wait()
            made.append(await connect(*args, **options))
            return made[-1]

        async def call(key: str) -> Any:
            return await idempotency.once_async(tenant="t", key=key, run=insert, mode="atomic")

        async def insert() -> str:
            await current_operation().connection.execute(INSERT, "kept")
            return "done"

        idempotency = Idempotency(watched.url)
        await idempotency.engine.drivers.aio.execute(find())  # the statements' own pool is warm
        monkeypatch.setattr(asyncpg, "connect", slowly)
        leaves = asyncio.create_task(call("leaves"))
        await begun.wait()
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        go_on.set()
        await until(lambda: len(made) == 1)
        for key in ("stays", "stays longer", "leaves"):
            assert await call(key) == "done"
        assert len(made) <= 2 and not made[0].is_closed()
        await idempotency.aclose()

    asyncio.run(story())
