"""The worker process: the outbox and the completer in one loop each, with a clean stop.

On SIGTERM or SIGINT no new work is taken; running jobs finish, or are given back after the grace time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ..drivers.run import run_async
from ..engine.idempotency import Idempotency
from ..errors import SamekeyError
from .completer import INTERVAL, Completer
from .outbox import GRACE, LEASE, OutboxWorker
from .wake import Listener, Polling, PostgresListener, Rhythm

logger = logging.getLogger("samekey")

AFTER_AN_ERROR = 1.0
"""Seconds before a service that failed looks again."""
STUCK = 70
"""The exit code of a worker whose event loop no longer turns (EX_SOFTWARE)."""


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
        listen_url: str | None = None,
    ) -> None:
        self._idempotency = idempotency
        self._listen_url = listen_url or idempotency.url
        self._with_outbox = outbox
        self._with_completer = completer
        self._options = (concurrency, lease, grace)
        self._interval = completer_interval
        self._worker: OutboxWorker | None = None
        self._completing = False
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
        # Only in a process of its own: inside an application it is not ours to end.
        watchdog = Watchdog(loop, self._longest_silence) if handle_signals else None
        services: list[Awaitable[None]] = []
        if self._with_outbox:
            services.append(self._run_outbox())
        if self._with_completer:
            services.append(self._run_completer())
        try:
            await asyncio.gather(*services)
        finally:
            if watchdog is not None:
                watchdog.stop()
            if handle_signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)

    def _longest_silence(self) -> float:
        """Seconds for which whatever runs now may run at most, and so keep the loop from turning."""
        _, lease, _ = self._options
        longest = timedelta(0) if self._worker is None else self._worker.longest_timeout
        if self._completing:
            longest = max(longest, self._idempotency.policy.max_run)
        return (longest + lease).total_seconds()

    async def _run_outbox(self) -> None:
        concurrency, lease, grace = self._options
        worker = OutboxWorker(self._idempotency, concurrency=concurrency, lease=lease, grace=grace)
        self._worker = worker
        postgres = self._idempotency.drivers.dialect == "postgres"
        listener: Listener = PostgresListener(self._listen_url) if postgres else Polling()
        rhythm = Rhythm()
        await listener.start(self._woken)
        try:
            while not self._stopping.is_set():
                pause = await self._careful(lambda: self._look(worker, listener, rhythm))
                await self._wait(pause)
        finally:
            await worker.stop()
            await listener.stop()

    async def _look(self, worker: OutboxWorker, listener: Listener, rhythm: Rhythm) -> float:
        self._woken.clear()  # before the look: what arrives during it must not be missed
        if await worker.run_once():
            rhythm.worked()
            return 0.0
        if not worker.has_room:
            await self._first(worker.until_room())
            return 0.0
        next_due = await run_async(self._idempotency.drivers.aio, self._idempotency.outbox.next_due)
        if next_due is not None and next_due <= 0 and await worker.run_suspect():
            rhythm.worked()
            return 0.0
        return rhythm.idle(listening=listener.listening, next_due_ms=next_due)

    async def _run_completer(self) -> None:
        completer = Completer(self._idempotency)
        while not self._stopping.is_set():

            async def once() -> float:
                self._completing = True
                try:
                    return 0.0 if await completer.run_once() else self._interval.total_seconds()
                finally:
                    self._completing = False

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


class Watchdog:
    """Ends the process when its event loop no longer turns: an async job blocks it and will not stop.

    Nothing inside the loop could; and a worker that cannot work must be started anew. Its jobs come back
    when their leases run out, the culprit in the end alone, then as a dead letter. Silence is counted in
    short turns of its own, so a process that was only paused as a whole is not taken for stuck.
    """

    TURN = 0.5

    def __init__(self, loop: asyncio.AbstractEventLoop, silence: Callable[[], float]) -> None:
        self._loop = loop
        self._silence = silence
        """How many seconds of it are too many, just now."""
        self._stopping = threading.Event()
        threading.Thread(target=self._run, name="samekey-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self.TURN):
            turned = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # the loop is closed
            silent = 0.0
            while not turned.wait(self.TURN) and not self._stopping.is_set():
                silent += self.TURN
                if silent >= self._silence():
                    self._end()

    def _end(self) -> None:
        logger.critical(
            "An async job has blocked this worker's event loop for longer than it may run. The worker ends "
            "here; start it again. Blocking code belongs in a sync job."
        )
        logging.shutdown()
        os._exit(STUCK)
