"""Redis and several event loops in one process: each has connections of its own, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from lab.processes import wait_until
from samekey import Idempotency
from tests.chosen import whole
from tests.edges.callers import LoopThread

pytestmark = whole


@contextmanager
def onlooker(url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(url)
    yield client
    client.close()


def connections(client: Any) -> int:
    return len(client.client_list())


async def call(idempotency: Idempotency, key: str) -> Any:
    return await idempotency.once_async(tenant="t", key=key, run=lambda: key, name="call")


def test_two_loops_do_not_throw_away_each_others_connections(redis_url: str) -> None:
    idempotency = Idempotency(redis_url)
    with onlooker(redis_url) as client:
        loops = [LoopThread(), LoopThread()]
        for loop in loops:
            loop.run(call(idempotency, "warm"))
        before = client.info("stats")["total_connections_received"]
        for number in range(20):
            assert loops[number % 2].run(call(idempotency, f"k{number}")) == f"k{number}"
        assert client.info("stats")["total_connections_received"] == before
        for loop in loops:
            loop.run(idempotency.aclose())
            loop.close()
    idempotency.close()


@pytest.mark.parametrize("how", ["ended", "closed", "kept"])
def test_no_connection_outlives_its_loop_and_the_close(redis_url: str, how: str) -> None:
    with onlooker(redis_url) as client:
        others = connections(client)  # the onlooker's own, and what other tests have
        idempotency = Idempotency(redis_url)
        idempotency.once(tenant="t", key="warm", run=lambda: 1, name="call")
        before = connections(client)
        loops = []
        for number in range(5):
            if how == "ended":
                asyncio.run(call(idempotency, f"k{number}"))
                wait_until(lambda: connections(client) <= before)
                continue
            loop = asyncio.new_event_loop()
            loops.append(loop)
            loop.run_until_complete(call(idempotency, f"k{number}"))
            if how == "closed":
                loop.close()
        idempotency.close()
        wait_until(lambda: connections(client) <= others)
        for loop in loops:
            if not loop.is_closed():
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()
