"""Looks: what a service does again and again, and how long it waits for the next time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from . import apart

Once = Callable[[], Awaitable[float]]
"""One look of a service; gives the seconds until the next."""
AFTER_AN_ERROR = timedelta(seconds=1)
"""Before a service that failed looks again."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One service: what it does again and again, and how it stops."""

    name: str
    once: Once
    after_an_error: timedelta = AFTER_AN_ERROR
    woken: asyncio.Event | None = None
    """Set when the next look should come sooner."""
    start: Callable[[], Awaitable[None]] | None = None
    stop: Callable[[], Awaitable[None]] | None = None


async def contained(once: Once) -> float:
    """SystemExit in a task would end the loop, and with it everything in this process."""
    try:
        return await once()
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise apart.Aborted(error) from error


async def within(seconds: float, waiting: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        pass


def slotted(start: Callable[[], Awaitable[int]], interval: timedelta, woken: asyncio.Event) -> Once:
    """What starts work in slots looks again at once if it found something, and when a slot is free again."""

    async def look() -> float:
        woken.clear()
        return 0.0 if await start() > 0 else interval.total_seconds()

    return look


def again(once: Callable[[], Awaitable[int]], interval: timedelta) -> Once:
    """What found something may find more at once."""

    async def look() -> float:
        return 0.0 if await once() > 0 else interval.total_seconds()

    return look


def done(once: Callable[[], Awaitable[object]], interval: timedelta) -> Once:
    """What did all there was waits for its next time."""

    async def look() -> float:
        await once()
        return interval.total_seconds()

    return look
