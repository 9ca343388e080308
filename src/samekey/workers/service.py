"""The worker process: every background service in one loop each, with a clean stop.

On SIGTERM or SIGINT no new work is taken; running jobs finish, or are given back after the grace time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from ..drivers.run import run_async
from ..engine.engine import Engine
from ..errors import SamekeyError
from .completer import INTERVAL as COMPLETER_INTERVAL
from .completer import Completer
from .ledger import AFTER_AN_ERROR as AFTER_A_LEDGER_ERROR
from .ledger import INTERVAL as LEDGER_INTERVAL
from .ledger import LedgerCheck
from .outbox import GRACE, LEASE, OutboxWorker
from .reaper import INTERVAL as REAPER_INTERVAL
from .reaper import PENDING_TIMEOUT, TOMBSTONES, Reaper
from .reconciler import INTERVAL as RECONCILER_INTERVAL
from .reconciler import Reconciler
from .sweeper import INTERVAL as SWEEPER_INTERVAL
from .sweeper import Sweeper
from .wake import Listener, Polling, Rhythm
from .watchdog import Watchdog

logger = logging.getLogger("samekey")

AFTER_AN_ERROR = timedelta(seconds=1)
"""Before a service that failed looks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Which services run, and how often. Each default has its reason where it is defined."""

    outbox: bool = True
    completer: bool = True
    sweeper: bool = True
    reaper: bool = True
    reconciler: bool = True
    ledger: bool = True
    concurrency: int = 10
    lease: timedelta = LEASE
    grace: timedelta = GRACE
    completer_interval: timedelta = COMPLETER_INTERVAL
    sweeper_interval: timedelta = SWEEPER_INTERVAL
    reaper_interval: timedelta = REAPER_INTERVAL
    reconciler_interval: timedelta = RECONCILER_INTERVAL
    ledger_interval: timedelta = LEDGER_INTERVAL
    pending_timeout: timedelta = PENDING_TIMEOUT
    tombstones: timedelta = TOMBSTONES
    listen_url: str | None = None
    """A direct URL for LISTEN, where the store's own goes through a pooler."""


@dataclass(frozen=True, slots=True)
class _Periodic:
    """Something to be done again and again. It gives True if there may be more to do at once."""

    once: Callable[[], Awaitable[bool]]
    interval: timedelta
    after_an_error: timedelta = AFTER_AN_ERROR


class WorkerService:
    """Runs the background services until it is told to stop."""

    def __init__(self, engine: Engine, services: Services | None = None) -> None:
        self._engine = engine
        self._services = services or Services()
        self._worker: OutboxWorker | None = None
        self._completer: Completer | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()

    def stop(self) -> None:
        """Asks for a clean stop."""
        self._stopping.set()
        self._woken.set()

    async def run(self, *, handle_signals: bool = True) -> None:
        """Until ``stop()`` or, if it handles signals, SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT) if handle_signals else ()
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        await asyncio.to_thread(self._engine.check)
        # Only in a process of its own: inside an application it is not ours to end.
        watchdog = Watchdog(loop, self._longest_silence) if handle_signals else None
        work = [self._run_periodic(periodic) for periodic in self._periodic()]
        if self._services.outbox and self._engine.store.transactional is not None:
            work.append(self._run_outbox())
        try:
            await asyncio.gather(*work)
        finally:
            if watchdog is not None:
                watchdog.stop()
            for number in signals:
                loop.remove_signal_handler(number)

    def _periodic(self) -> list[_Periodic]:
        engine, services = self._engine, self._services
        found: list[_Periodic] = []
        if services.completer and engine.store.transactional is not None:
            self._completer = Completer(engine)
            found.append(_Periodic(_any(self._completer.run_once), services.completer_interval))
        if services.sweeper:
            found.append(_Periodic(_any(Sweeper(engine).run_once), services.sweeper_interval))
        if services.reaper:
            reap = Reaper(engine, pending_timeout=services.pending_timeout, tombstones=services.tombstones)
            found.append(_Periodic(_nothing_more(reap.run_once), services.reaper_interval))
        if services.reconciler:
            found.append(_Periodic(_any(Reconciler(engine).run_once), services.reconciler_interval))
        if services.ledger:
            for ledgers in engine.ledgers:
                check = LedgerCheck.of(engine, ledgers)
                found.append(
                    _Periodic(
                        _nothing_more(check.run_once),
                        services.ledger_interval,
                        AFTER_A_LEDGER_ERROR,
                    )
                )
        return found

    async def _run_periodic(self, periodic: _Periodic) -> None:
        while not self._stopping.is_set():
            pause = await self._careful(lambda: self._once(periodic), periodic.after_an_error)
            if pause:
                await self._first(asyncio.sleep(pause))

    async def _once(self, periodic: _Periodic) -> float:
        return 0.0 if await periodic.once() else periodic.interval.total_seconds()

    async def _run_outbox(self) -> None:
        services = self._services
        worker = OutboxWorker(
            self._engine, concurrency=services.concurrency, lease=services.lease, grace=services.grace
        )
        self._worker = worker
        listener = self._listener()
        rhythm = Rhythm()
        await listener.start(self._woken)
        try:
            while not self._stopping.is_set():
                pause = await self._careful(lambda: self._look(worker, listener, rhythm), AFTER_AN_ERROR)
                await self._wait(pause)
        finally:
            await worker.stop()
            await listener.stop()

    def _listener(self) -> Listener:
        if self._engine.drivers.dialect != "postgres":
            return Polling()
        from ..drivers.listen import PostgresListener  # needs asyncpg, which SQLite does not

        return PostgresListener(self._services.listen_url or self._engine.url)

    async def _look(self, worker: OutboxWorker, listener: Listener, rhythm: Rhythm) -> float:
        self._woken.clear()  # before the look: what arrives during it must not be missed
        if await worker.run_once():
            rhythm.worked()
            return 0.0
        if not worker.has_room:
            await self._first(worker.until_room())
            return 0.0
        next_due = await run_async(self._engine.drivers.aio, self._engine.outbox.next_due)
        if next_due is not None and next_due <= 0 and await worker.run_suspect():
            rhythm.worked()
            return 0.0
        return rhythm.idle(listening=listener.listening, next_due_ms=next_due)

    def _longest_silence(self) -> float:
        """Seconds for which whatever runs now may run at most, and so keep the loop from turning."""
        longest = timedelta(0) if self._worker is None else self._worker.longest_timeout
        if self._completer is not None and self._completer.busy:
            longest = max(longest, self._engine.policy.max_run)
        return (longest + self._services.lease).total_seconds()

    async def _careful(self, work: Callable[[], Awaitable[float]], after_an_error: timedelta) -> float:
        try:
            return await work()
        except SamekeyError as error:
            logger.warning("The worker will try again: %s", error)
        except Exception:
            logger.exception("The worker will try again")
        return after_an_error.total_seconds()

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


def _any(once: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[bool]]:
    """What found something may find more at once."""

    async def found() -> bool:
        return await once() > 0

    return found


def _nothing_more(once: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    """What did all there was waits for its next time."""

    async def done() -> bool:
        await once()
        return False

    return done
