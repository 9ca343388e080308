"""An error that no future takes: whoever waits for a thread hears of it all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from samekey import Idempotency, current_operation
from samekey.drivers.threads import Lane, in_a_thread


def stops() -> None:
    raise StopIteration("a bare next()")


@pytest.mark.parametrize("way", ["run", "finish", "in a thread"])
def test_what_a_thread_raises_is_heard(way: str) -> None:
    async def story() -> None:
        lane = Lane("lane", 1, 5)
        ways: dict[str, Any] = {"run": lane.run, "finish": lane.finish, "in a thread": in_a_thread}
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="StopIteration") as raised:
                await ways[way](stops)
        assert isinstance(raised.value.__cause__, StopIteration)
        await lane.close()

    asyncio.run(story())


def test_a_value_that_cannot_be_adapted_fails_its_handler_and_nobody_else(sqlite_url: str) -> None:
    class Odd:
        def __conform__(self, _protocol: Any) -> Any:
            stops()

    async def story() -> None:
        idempotency = Idempotency(sqlite_url)

        async def odd() -> None:
            await current_operation().connection.execute("select ?", (Odd(),))

        async def plain() -> str:
            await current_operation().connection.execute("create table effects (n)")
            await current_operation().connection.execute("insert into effects values (1)")
            return "done"

        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="StopIteration"):
                await idempotency.once_async(tenant="t", key="odd", run=odd, mode="atomic")
            assert await idempotency.once_async(tenant="t", key="k", run=plain, mode="atomic") == "done"
        await idempotency.aclose()

    asyncio.run(story())
