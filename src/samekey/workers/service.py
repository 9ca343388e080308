"""The worker process: every background service in one loop each, with a clean stop.

No loop ends by itself: one that fails looks again, and one that is thrown out of its loop is started anew,
both with a word in the log. On SIGTERM or SIGINT no new work is taken; what runs may finish for the grace
time, then it is given back. Whatever hangs, the service ends a moment after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from datetime import timedelta
from typing import Any, Literal

from ..core.backoff import Backoff
from ..drivers.threads import in_a_thread
from ..engine.engine import Engine
from ..errors import SamekeyError, StoreError
from . import apart
from .completer import Completer
from .ending import Signals
from .ledger import AFTER_AN_ERROR as AFTER_A_LEDGER_ERROR
from .ledger import LedgerCheck
from .looks import Loop, Once, again, contained, done, slotted, within
from .outbox import OutboxWorker
from .own_threads import use_own_threads
from .reaper import Reaper
from .reconciler import Reconciler
from .services import Services
from .slots import Slots
from .sweeper import Sweeper
from .wake import Listener, Polling, Rhythm
from .watchdog import STUCK, Watchdog

logger = logging.getLogger("samekey")

STARTING = Backoff(first=timedelta(seconds=0.5), longest=timedelta(seconds=15))
"""Before the store is asked again whether it is there: soon after a restart, and no hammering for hours."""
LEFTOVERS = 2 * apart.FAREWELL + 0.5
"""Seconds after the grace time for giving back and hanging up. What has not ended then is left."""
LATE, KILLED = 0.5, 1.5
"""Seconds after that, at which a process of our own that has not ended is ended by its watchdog, and killed
by its guardian."""

__all__ = ["Services", "WorkerService"]

State = Literal["starting", "running", "stopping", "stopped"]


class WorkerService:
    """Runs the background services until it is told to stop."""

    def __init__(self, engine: Engine, services: Services | None = None) -> None:
        self._engine = engine
        self._services = services or Services()
        self._worker: OutboxWorker | None = None
        self._completer: Completer | None = None
        self._reconciler: Reconciler | None = None
        self._checks: list[LedgerCheck] = []
        self._stopping = asyncio.Event()
        self._asked_at: float | None = None
        self._own_process = False
        self._exit_code = 0
        self.state: State = "starting"
        """``starting`` until the store was there once."""
        self.troubles: dict[str, str] = {}
        """What is wrong just now, by service; a look that succeeds takes it away."""

    @property
    def healthy(self) -> bool:
        """Whether everything runs, and the last look of each service was good. For a readiness probe."""
        return self.state == "running" and not self.troubles

    @property
    def hanging(self) -> dict[str, int]:
        """Users' functions that hang here and cannot be stopped, by name."""
        parts = [part for part in (self._worker, self._completer, self._reconciler) if part is not None]
        calls = [*(part.slots.apart for part in parts), *(check.apart for check in self._checks)]
        return dict(sum((one.hanging for one in calls), Counter()))

    def stop(self) -> None:
        """Asks for a clean stop."""
        self._asked()
        self._stopping.set()

    def _asked(self) -> None:
        """From here on the grace time counts."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def _overdue(self) -> bool:
        if self._asked_at is None:
            return False
        return time.monotonic() - self._asked_at > self._services.grace.total_seconds() + LEFTOVERS + LATE

    def started(self, running: asyncio.Task[int]) -> None:
        """Whoever runs it in a task of theirs has its end noticed, where nobody has asked for it."""
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[int]) -> None:
        if self._asked_at is not None:
            return
        error = None if running.cancelled() else running.exception()
        sentence = "it was cancelled" if running.cancelled() else f"{type(error).__name__}: {error}"
        self.troubles["service"] = f"It has ended by itself: {sentence}"
        logger.critical(
            "The background work has ended by itself; nothing is done until the application starts again: %s",
            sentence,
            exc_info=error,
        )

    async def check(self) -> None:
        """Asks the store once, so that tables which do not fit are told at the start.

        A store that is away is not an error: it is logged, and ``run`` asks again until it is there.
        """
        try:
            await in_a_thread(self._engine.check)
        except StoreError as error:
            self._note("store", error)

    async def run(self, *, handle_signals: bool = True) -> int:
        """Until ``stop()`` or, if it handles signals, SIGTERM or SIGINT; gives the exit code."""
        loop = asyncio.get_running_loop()
        self._own_process = handle_signals
        use_own_threads(loop)
        with contextlib.ExitStack() as open_ones:
            if handle_signals:  # in a process of its own: inside an application it is not ours to end
                patience = self._services.grace.total_seconds() + LEFTOVERS + KILLED
                signals = Signals(loop, stop=self.stop, asked=self._asked, patience=patience)
                open_ones.callback(signals.close)
                watchdog = Watchdog(loop, self._longest_silence, self._overdue)
                open_ones.callback(watchdog.stop)
            try:
                await self._until_the_store_is_there()
                await self._run_loops()
            finally:
                self.state = "stopped"
        return self._exit_code

    async def _until_the_store_is_there(self) -> None:
        tries = 0
        while not self._stopping.is_set():
            asking = asyncio.ensure_future(in_a_thread(self._engine.check))
            await self._first(asking)
            if not asking.done():
                asking.cancel()
                return
            try:
                asking.result()
            except Exception as error:
                # Tables that do not fit end a process of our own, whose supervisor sees it. Inside an
                # application nobody would: there a migration is waited for, as a store that is away is.
                if self._own_process and not isinstance(error, StoreError):
                    raise
                tries += 1
                pause = max(0.05, STARTING.pause_ms(tries, 1) / 1000)
                self._note("store", error, f"asked again in {pause:g} s")
                await self._first(asyncio.sleep(pause))
                continue
            self.troubles.pop("store", None)
            return

    async def _run_loops(self) -> None:
        if self._stopping.is_set():
            return
        self.state = "running"
        tasks = {asyncio.create_task(self._supervise(one), name=one.name) for one in self._loops()}
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            # A supervised loop only ends after the stop.
            await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            self.state = "stopping"
            await asyncio.wait(tasks, timeout=self._services.grace.total_seconds() + LEFTOVERS)
        finally:
            self._stopping.set()
            stopping.cancel()
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=0.2)
            for task in left:
                logger.error("The %s had not ended after the grace time and was left", task.get_name())

    # One service

    async def _supervise(self, one: Loop) -> None:
        """A service that is thrown out of its loop, whatever by, is started anew."""
        while True:
            try:
                await self._run(one)
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._stopping.is_set() or task is None or task.cancelling():
                    raise
                self._note(one.name, RuntimeError("it was cancelled from inside"), "it is started anew")
            except BaseException as error:
                self._note(one.name, error, "it is started anew")
            await self._first(asyncio.sleep(one.after_an_error.total_seconds()))

    async def _run(self, one: Loop) -> None:
        if one.start is not None:
            await one.start()
        try:
            while not self._stopping.is_set():
                pause = await self._look(one)
                await self._pause(pause, one.woken)
        finally:
            if one.stop is not None:
                await one.stop()

    async def _look(self, one: Loop) -> float:
        """One look. At the stop it has the grace time, then it is let go of."""
        look = asyncio.ensure_future(contained(one.once))
        try:
            await self._first(look)
            if not look.done():
                await asyncio.wait({look}, timeout=self._services.grace.total_seconds())
            if not look.done():
                look.cancel()
                await asyncio.wait({look}, timeout=apart.FAREWELL)
                logger.error("The %s was still at it after the grace time and was left", one.name)
                return 0.0
            pause = look.result()
        except Exception as error:
            self._note(one.name, error, "it looks again soon")
            return one.after_an_error.total_seconds()
        finally:
            if not look.done():
                look.cancel()
        if self.troubles.pop(one.name, None) is not None:
            logger.info("The %s works again", one.name)
        return pause

    def _note(self, service: str, error: BaseException, then: str = "") -> None:
        """What goes wrong is logged, counted, and to be seen."""
        sentence = str(error) if isinstance(error, SamekeyError) else f"{type(error).__name__}: {error}"
        self.troubles[service] = sentence
        told = None if isinstance(error, SamekeyError) else error
        logger.warning("The %s failed%s: %s", service, then and f" ({then})", sentence, exc_info=told)
        self._engine.events.emit("worker.trouble", service=service, kind=type(error).__name__)

    async def _pause(self, seconds: float, woken: asyncio.Event | None) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
        elif woken is None:
            await self._first(asyncio.sleep(seconds))
        else:
            await self._first(within(seconds, woken.wait()))

    async def _first(self, waiting: Any) -> None:
        """Waits for something, or for the stop. What is a task already goes on; anything else is ended."""
        given = isinstance(waiting, asyncio.Future)
        waited, stopped = asyncio.ensure_future(waiting), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waited, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not given:
                waited.cancel()

    # The services

    def _loops(self) -> list[Loop]:
        engine, services = self._engine, self._services
        found: list[Loop] = []
        if services.outbox and engine.store.transactional is not None:
            found.append(self._outbox_loop())
        if services.completer and engine.store.transactional is not None:
            woken, every = asyncio.Event(), services.completer_interval
            self._completer = completer = Completer(
                engine, concurrency=services.completer_concurrency, changed=woken.set
            )
            found.append(
                Loop(
                    "completer",
                    self._watched("completer", completer.slots, slotted(completer.look, every, woken)),
                    woken=woken,
                    stop=lambda: completer.stop(services.grace),
                )
            )
        if services.reconciler:
            woken, every = asyncio.Event(), services.reconciler_interval
            self._reconciler = reconciler = Reconciler(
                engine,
                concurrency=services.reconciler_concurrency,
                max_tries=services.reconciler_tries,
                backoff=services.reconciler_backoff,
                timeout=services.reconciler_timeout,
                changed=woken.set,
            )
            found.append(
                Loop(
                    "reconciler",
                    self._watched("reconciler", reconciler.slots, slotted(reconciler.start, every, woken)),
                    woken=woken,
                    stop=lambda: reconciler.stop(services.grace),
                )
            )
        if services.sweeper:
            found.append(Loop("sweeper", again(Sweeper(engine).run_once, services.sweeper_interval)))
        if services.reaper:
            reap = Reaper(
                engine,
                pending_timeout=services.pending_timeout,
                tombstones=services.tombstones,
                audit=services.audit_retention,
            )
            found.append(Loop("reaper", done(reap.run_once, services.reaper_interval)))
        if services.ledger:
            for ledgers in engine.ledgers:
                check = LedgerCheck.of(engine, ledgers)
                self._checks.append(check)
                once = done(check.run_once, services.ledger_interval)
                name, pause = f"comparison of {ledgers.name}", AFTER_A_LEDGER_ERROR
                found.append(Loop(name, once, pause, stop=check.apart.farewell))
        return found

    def _outbox_loop(self) -> Loop:
        services, woken, rhythm, listener = self._services, asyncio.Event(), Rhythm(), self._listener()
        self._worker = worker = OutboxWorker(
            self._engine,
            concurrency=services.concurrency,
            lease=services.lease,
            grace=services.grace,
            changed=woken.set,
            new=True,
        )

        async def look() -> float:
            woken.clear()  # before the look: what arrives, or ends, during it must not be missed
            await worker.run_once()
            self._tell("outbox, unreadable", worker.unreadable, logging.WARNING)
            self._tell("outbox, unable", worker.unable.sentence, logging.CRITICAL)
            if worker.unable.lasts:
                self._end()
            if worker.took:
                rhythm.worked()
                return 0.0
            return rhythm.idle(listening=listener.listening, next_due_ms=worker.next_due_ms)

        async def stop() -> None:
            await listener.stop()
            await worker.stop()

        once = self._watched("outbox", worker.slots, look)
        return Loop("outbox", once, woken=woken, start=lambda: listener.start(woken), stop=stop)

    def _listener(self) -> Listener:
        url = self._services.listen_url or self._engine.url
        if self._engine.drivers.dialect != "postgres" or not url:
            return Polling()
        from ..drivers.postgres.listen import PostgresListener  # needs asyncpg, which SQLite does not

        return PostgresListener(url, self._engine.drivers.aio)

    def _watched(self, name: str, slots: Slots, once: Once) -> Once:
        """A look of what runs users' functions in places."""

        async def look() -> float:
            self._end_if_stuck(name, slots)
            return await once()

        return look

    def _end_if_stuck(self, name: str, slots: Slots) -> None:
        """What hangs cannot be stopped; where it holds all that a kind may have, only a new process helps."""
        stuck = ", ".join(slots.stuck)
        sentence = stuck and (
            f"Calls of the {name} hang and hold every place of their kind: {stuck}. Give them a time-out of "
            "their own."
        )
        self._tell(f"{name}, hanging", sentence, logging.CRITICAL)
        if stuck:
            self._end()

    def _end(self) -> None:
        """A process of our own that can do no more: its supervisor starts another. An application goes on."""
        if self._own_process:
            logger.critical("This worker can do no more of them and ends here; start it again.")
            self._exit_code = STUCK
            self.stop()

    def _tell(self, trouble: str, sentence: str, level: int) -> None:
        """A trouble that is no failed look: it is logged when it begins, and to be seen while it lasts."""
        if not sentence:
            self.troubles.pop(trouble, None)
            return
        if trouble not in self.troubles:
            logger.log(level, "%s", sentence)
            service, _, kind = trouble.partition(", ")
            self._engine.events.emit("worker.trouble", service=service, kind=kind)
        self.troubles[trouble] = sentence

    def _longest_silence(self) -> float:
        """Seconds for which whatever runs now may run at most, and so keep the loop from turning."""
        longest = timedelta(0) if self._worker is None else self._worker.longest_timeout
        if self._completer is not None and self._completer.busy:
            longest = max(longest, self._engine.policy.max_run)
        return (longest + self._services.lease).total_seconds()
