"""Several event loops on one SQLite database: they take turns, and none keeps another from ending."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from samekey import Idempotency, current_operation
from samekey.drivers.turn import Turn
from tests.stores.crash_scenarios import execute

PATIENCE = 30.0
LOOPS = 4


def in_loops(*stories: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Each in a thread and an event loop of its own."""
    errors: list[BaseException] = []

    def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(asyncio.wait_for(story(), PATIENCE))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(story,)) for story in stories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_transaction_of_one_loop_ends_while_others_wait_to_begin(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url)
    execute(sqlite_url, "create table effects (n int)")
    claimed, begun, asking = (threading.Barrier(LOOPS), threading.Event(), threading.Semaphore(0))
    insert = "insert into effects values (1)"

    async def until(met: Callable[[], bool]) -> None:
        while not met():
            await asyncio.sleep(0.01)

    async def first() -> None:
        async def run() -> int:
            claimed.wait(PATIENCE)
            await current_operation().connection.execute(insert)
            begun.set()
            for _ in range(LOOPS - 1):
                await until(lambda: asking.acquire(blocking=False))
            for _ in range(20):  # what the others ask is on its way
                await asyncio.sleep(0.01)
            await current_operation().connection.execute(insert)
            return 1

        assert await idempotency.once_async(tenant="t", key="first", run=run, mode="atomic") == 1

    def other(number: int) -> Callable[[], Coroutine[Any, Any, None]]:
        async def run() -> int:
            claimed.wait(PATIENCE)
            await until(begun.is_set)
            asking.release()
            await current_operation().connection.execute(insert)
            return 1

        async def story() -> None:
            assert await idempotency.once_async(tenant="t", key=f"{number}", run=run, mode="atomic") == 1

        return story

    in_loops(first, *(other(number) for number in range(LOOPS - 1)))
    assert execute(sqlite_url, "select count(*) from effects")[0][0] == LOOPS + 1
    idempotency.close()


def test_a_turn_is_one_loops_at_a_time_and_goes_round() -> None:
    turn = Turn()
    inside = most = rounds = 0

    async def story() -> None:
        nonlocal inside, most, rounds

        async def use() -> None:
            nonlocal inside, most, rounds
            for _ in range(25):
                await turn.take(PATIENCE)
                inside += 1
                most, rounds = max(most, inside), rounds + 1
                await asyncio.sleep(0)
                inside -= 1
                turn.give_back()

        await asyncio.gather(*(use() for _ in range(4)))

    in_loops(*[story] * LOOPS)
    assert (most, rounds, inside) == (1, 25 * 4 * LOOPS, 0)


def test_whoever_stops_waiting_for_a_turn_takes_it_from_nobody() -> None:
    turn = Turn()

    async def story() -> None:
        await turn.take(PATIENCE)
        with pytest.raises(TimeoutError):
            await turn.take(0)
        waiting = [asyncio.ensure_future(turn.take(PATIENCE)) for _ in range(3)]
        await asyncio.sleep(0)
        turn.give_back()
        waiting[0].cancel()  # in the moment in which it is woken
        done, _ = await asyncio.wait(waiting[:1])
        assert next(iter(done)).cancelled()
        await asyncio.wait_for(waiting[1], PATIENCE)
        turn.give_back()
        await asyncio.wait_for(waiting[2], PATIENCE)
        turn.give_back()
        await turn.take(0)
        turn.give_back()

    asyncio.run(story())


def test_a_loop_that_was_closed_while_it_waited_keeps_no_turn() -> None:
    turn = Turn()

    async def take() -> None:
        await turn.take(PATIENCE)

    asyncio.run(take())
    dead = asyncio.new_event_loop()
    waiting = dead.create_task(take())
    dead.call_soon(dead.stop)
    dead.run_forever()
    stopped = asyncio.new_event_loop()  # and one that only does not run
    asleep = stopped.create_task(take())
    stopped.call_soon(stopped.stop)
    stopped.run_forever()
    dead.close()
    turn.give_back()
    asyncio.run(asyncio.wait_for(take(), PATIENCE))
    turn.give_back()
    stopped.run_until_complete(asleep)
    turn.give_back()
    stopped.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting
    gc.collect()
    asyncio.run(asyncio.wait_for(take(), PATIENCE))
