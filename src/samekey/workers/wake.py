"""When a worker looks again: at once when told, else by polling that slows down while nothing happens.

On PostgreSQL with a direct connection a job's commit sends a notification. Behind a pooler in transaction
mode notifications do not arrive; the listener notices that at its start, and polling takes over.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

logger = logging.getLogger("samekey")

CHANNEL = "samekey_jobs"
FASTEST_POLL = 0.05
SLOWEST_POLL = 2.0
"""Seconds between looks of an idle worker that is not notified."""
SAFETY_POLL = 30.0
"""Seconds between looks of one that is: a notification can be lost with its connection."""
PROOF_SECONDS = 2.0
"""How long the listener waits for its own notification at the start."""


class Listener(Protocol):
    """Tells that there may be work."""

    listening: bool

    async def start(self, woken: asyncio.Event) -> None: ...

    async def stop(self) -> None: ...


class Polling:
    """No notifications: SQLite, or a pooler in between."""

    listening = False

    async def start(self, woken: asyncio.Event) -> None:
        return None

    async def stop(self) -> None:
        return None


class PostgresListener:
    """LISTEN on a connection of its own, made again when it is lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.listening = False
        self._connection: Any = None
        self._woken: asyncio.Event | None = None

    async def start(self, woken: asyncio.Event) -> None:
        self._woken = woken
        await self._connect()

    async def _connect(self) -> None:
        import asyncpg

        assert self._woken is not None
        heard = asyncio.Event()

        def notified(*_: object) -> None:
            heard.set()
            assert self._woken is not None
            self._woken.set()

        try:
            connection = await asyncpg.connect(self._url, timeout=5)
            await connection.add_listener(CHANNEL, notified)
            # Proof that notifications arrive here: behind a pooler LISTEN succeeds and hears nothing.
            await connection.execute(f"notify {CHANNEL}")
            async with asyncio.timeout(PROOF_SECONDS):
                await heard.wait()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            logger.info("samekey polls for jobs: notifications do not arrive (%s)", type(error).__name__)
            return
        connection.add_termination_listener(self._lost)
        self._connection = connection
        self.listening = True

    def _lost(self, _connection: object) -> None:
        self.listening = False
        self._connection = None
        if self._woken is not None:
            self._woken.set()

    async def revive(self) -> None:
        """Tries to listen again after the connection was lost."""
        if not self.listening and self._woken is not None:
            await self._connect()

    async def stop(self) -> None:
        self._woken = None
        if self._connection is not None:
            await self._connection.close()


class Rhythm:
    """How long to wait before the next look."""

    def __init__(self) -> None:
        self._idle_looks = 0

    def worked(self) -> None:
        self._idle_looks = 0

    def idle(self, *, listening: bool, next_due_ms: int | None) -> float:
        """Seconds to wait, after a look that found nothing."""
        self._idle_looks += 1
        slowest = SAFETY_POLL if listening else SLOWEST_POLL
        pause = slowest if listening else min(slowest, FASTEST_POLL * 2 ** min(self._idle_looks, 10))
        if next_due_ms is not None:
            pause = min(pause, max(next_due_ms / 1000, 0.001))
        return pause
