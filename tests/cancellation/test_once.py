"""``once_async``, cancelled wherever it waits: one effect at most, and nothing is left behind (X9)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Any

from samekey.testing.cancellation import Cancellation, enumerate_cancellations
from tests.cancellation.world import Mode, Shop, Store

CROWD = 16


async def cancelled_everywhere(store: Store, mode: Mode, crowd: int = 0) -> int:
    """Cancels one call at each of its points, among others that are not; gives how many points there were."""
    async with aclosing(Shop(store.url, connections=2 if crowd else 1)) as shop:
        return await _cancelled_everywhere(shop, store, mode, crowd)


async def _cancelled_everywhere(shop: Shop, store: Store, mode: Mode, crowd: int) -> int:
    async def operation(cancellation: Cancellation) -> Any:
        return await shop.once(cancellation.label, mode)

    async def others(name: str) -> None:
        calls = [shop.once(f"{name} {number}", mode) for number in range(crowd)]
        assert await asyncio.gather(*calls) == [f"did {name} {number}" for number in range(crowd)]

    await shop.once("the first", mode)  # connections are made and statements prepared
    points = 0
    among, moments = (others, store.moments[:1]) if crowd else (None, store.moments)
    async for cancelled in enumerate_cancellations(operation, among=among, moments=moments):
        points += 1
        await shop.check(cancelled, mode, partial(shop.once, cancelled.label, mode))
    return points


def test_leased_work(any_store: Store) -> None:
    assert asyncio.run(cancelled_everywhere(any_store, "leased")) > 4


def test_atomic_work(store: Store) -> None:
    assert asyncio.run(cancelled_everywhere(store, "atomic")) > 6


def test_leased_work_in_a_crowd(any_store: Store) -> None:
    assert asyncio.run(cancelled_everywhere(any_store, "leased", CROWD)) > 4


def test_atomic_work_in_a_crowd(store: Store) -> None:
    assert asyncio.run(cancelled_everywhere(store, "atomic", CROWD)) > 6
