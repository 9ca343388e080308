"""When a worker looks again: at once when told, else by polling that slows down while nothing happens."""

from __future__ import annotations

import asyncio
from typing import Protocol

FASTEST_POLL = 0.05
SLOWEST_POLL = 2.0
"""Seconds between looks of an idle worker that is not notified."""
SAFETY_POLL = 30.0
"""Seconds between looks of one that is: a notification can be lost with its connection."""


class Listener(Protocol):
    """Tells that there may be work."""

    @property
    def listening(self) -> bool: ...

    async def start(self, woken: asyncio.Event) -> None: ...

    async def stop(self) -> None: ...


class Polling:
    """No notifications: SQLite."""

    listening = False

    async def start(self, woken: asyncio.Event) -> None:
        return None

    async def stop(self) -> None:
        return None


class Rhythm:
    """How long to wait before the next look."""

    def __init__(self) -> None:
        self._idle_looks = 0

    def worked(self) -> None:
        self._idle_looks = 0

    def idle(self, *, listening: bool, next_due_ms: int | None) -> float:
        """Seconds to wait, after a look that found nothing to take."""
        polling: float = min(SLOWEST_POLL, FASTEST_POLL * 2 ** min(self._idle_looks, 10))
        self._idle_looks += 1
        pause = SAFETY_POLL if listening else polling
        if next_due_ms is None:
            return pause
        if next_due_ms <= 0:
            # Due, and yet it could not be taken: somebody holds it just now. Not a reason to spin.
            return min(pause, polling)
        return min(pause, max(next_due_ms / 1000, FASTEST_POLL))
