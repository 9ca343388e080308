"""The worker process: the outbox and the completer in one loop each, with a clean stop.

On SIGTERM or SIGINT no new work is taken; running jobs finish, or are given back after the grace time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ..drivers.run import run_async
from ..engine.idempotency import Idempotency
from ..errors import SamekeyError
from .completer import INTERVAL, Completer
from .outbox import GRACE, LEASE, OutboxWorker
from .wake import Polling, PostgresListener, Rhythm

logger = logging.getLogger("samekey")

AFTER_AN_ERROR = 1.0
"""Seconds before a service that failed looks again."""


class WorkerService:
    """Runs the outbox and the completer until it is told to stop."""

    def __init__(
        self,
        idempotency: Idempotency,
        *,
        concurrency: int = 10,
        lease: timedelta = LEASE,
        grace: timedelta = GRACE,
        completer_interval: timedelta = INTERVAL,
        outbox: bool = True,
        completer: bool = True,
    ) -> None:
        self._idempotency = idempotency
        self._with_outbox = outbox
        self._with_completer = completer
        self._options = (concurrency, lease, grace)
        self._interval = completer_interval
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()

    def stop(self) -> None:
        """Asks for a clean stop."""
        self._stopping.set()
        self._woken.set()

    async def run(self, *, handle_signals: bool = True) -> None:
        """Until ``stop()`` or, if it handles signals, SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        if handle_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
        await asyncio.to_thread(self._idempotency.check)
        services: list[Awaitable[None]] = []
        if self._with_outbox:
            services.append(self._run_outbox())
        if self._with_completer:
            services.append(self._run_completer())
        try:
            await asyncio.gather(*services)
        finally:
            if handle_signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)

    async def _run_outbox(self) -> None:
        concurrency, lease, grace = self._options
        worker = OutboxWorker(self._idempotency, concurrency=concurrency, lease=lease, grace=grace)
        url = self._idempotency.url
        listener = PostgresListener(url) if self._idempotency.drivers.dialect == "postgres" else Polling()
        rhythm = Rhythm()
        await listener.start(self._woken)
        try:
            while not self._stopping.is_set():
                pause = await self._careful(lambda: self._look(worker, listener, rhythm))
                await self._wait(pause)
        finally:
            await worker.stop()
            await listener.stop()

    async def _look(
        self, worker: OutboxWorker, listener: PostgresListener | Polling, rhythm: Rhythm
    ) -> float:
        self._woken.clear()  # before the look: what arrives during it must not be missed
        if await worker.run_once():
            rhythm.worked()
            return 0.0
        if not worker.has_room:
            await self._first(worker.until_room())
            return 0.0
        if isinstance(listener, PostgresListener):
            await listener.revive()
        next_due = await run_async(self._idempotency.drivers.aio, self._idempotency.outbox.next_due)
        return rhythm.idle(listening=listener.listening, next_due_ms=next_due)

    async def _run_completer(self) -> None:
        completer = Completer(self._idempotency)
        while not self._stopping.is_set():

            async def once() -> float:
                return 0.0 if await completer.run_once() else self._interval.total_seconds()

            pause = await self._careful(once)
            if pause:
                await self._first(asyncio.sleep(pause))

    async def _careful(self, work: Callable[[], Awaitable[float]]) -> float:
        try:
            return await work()
        except SamekeyError as error:
            logger.warning("The worker will try again: %s", error)
        except Exception:
            logger.exception("The worker will try again")
        return AFTER_AN_ERROR

    async def _wait(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _first(self, waiting: Awaitable[None]) -> None:
        """Waits for something, or for the stop."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
