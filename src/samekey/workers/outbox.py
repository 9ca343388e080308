"""The outbox worker: takes due jobs of the kinds that it knows, as there is room, and has each performed.

A job never blocks another. Kinds and tenants share the places; what hangs is let go of; what was running when
its worker died, twice, takes one place for all of its sort, because it may be what the worker died of. What
this process cannot run is not touched: an unknown kind is not taken, an unreadable payload is given back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..core.policy import milliseconds
from ..drivers.run import run_async
from ..engine.engine import Engine
from ..engine.jobs import Envelope, JobDefinition, NotForUs
from ..engine.keeper import Keeper
from ..errors import NotSerialisable, StoreError
from ..stores.sql.jobs import Job, Taking
from . import apart
from .depths import Depths
from .performing import Performer, name_of
from .places import Room
from .slots import Piece, Slots
from .unable import Unable
from .weather import GRANTED, Weather

logger = logging.getLogger("samekey")

CONCURRENCY = 10
LEASE = timedelta(seconds=30)
"""How long a silent worker keeps a job, and so how long a killed worker's jobs wait."""
GRACE = timedelta(seconds=30)
"""How long a stopping worker waits for what is running before it gives it back."""
NOT_FOR_US = timedelta(seconds=10)
"""Before a job that could not be read is taken again: soon after a worker with the right key was started."""
LONG_NOT_FOR_US = timedelta(minutes=5)
"""The same for one that has waited for long: half of its age, and this at most, so that a crowd of them costs
next to nothing."""
NEXT_SUSPECT = timedelta(seconds=1)
"""Before a suspect that found another one running is looked at again."""
REMIND = 60.0
"""Seconds between warnings about the same thing."""


class OutboxWorker:
    """Runs jobs, ``concurrency`` at a time. ``changed`` is called when there may be room, or work, again."""

    def __init__(
        self,
        idempotency: Engine,
        *,
        concurrency: int = CONCURRENCY,
        lease: timedelta = LEASE,
        grace: timedelta = GRACE,
        changed: Callable[[], None] = lambda: None,
        new: bool = False,
    ) -> None:
        """``new``: its process has just begun, and cannot know whether the store was away before: what others
        hold is left to them for a lease."""
        self._engine = idempotency
        self._driver = idempotency.drivers.aio
        self._outbox = idempotency.outbox
        self._lease = lease
        self._lease_ms = milliseconds(lease)
        self._grace = grace
        began = time.monotonic() if new else None
        self._weather = Weather(lease.total_seconds(), began)
        self._keeper = Keeper(idempotency.drivers.sync, self._outbox.renew, self._outbox.held, self._heard)
        self.slots = Slots(concurrency, changed, self._hangs)
        self.unable = Unable()
        self._performer = Performer(
            idempotency,
            self.slots.apart,
            self._keeper,
            self._lease_ms,
            self.unable,
            self._left_to_others,
            self._start_late,
        )
        self._late: set[asyncio.Task[Any]] = set()
        """Which record the ends of jobs that have come after their time."""
        self._held: dict[asyncio.Task[Any], Job] = {}
        self._buried: set[asyncio.Task[Any]] = set()
        """Those of them that were never entered, and only end as dead letters."""
        self._not_begun: dict[str, Job] = {}
        """Taken, perhaps even entered, and not started. What is left here when a look was cut short is given
        back as if it had never been taken."""
        self._started = 0
        self._depths = Depths()
        self._unreadable: dict[str, tuple[float, str]] = {}
        self._reminded: dict[str, float] = {}
        self.next_due_ms: int | None = None
        """Until there is something to take for which there is room, as the last look saw it."""
        self.took = 0
        """Jobs that the last look took, begun or not."""
        self.done = 0
        """Jobs that this worker has finished, one way or another."""

    @property
    def has_room(self) -> bool:
        return self.slots.places.free > 0

    @property
    def longest_timeout(self) -> timedelta:
        """Of the jobs that are running here. Also for other threads."""
        known = map(self._engine.jobs.get, {piece.kind for piece in self.slots.running})
        return max((found.timeout for found in known if found is not None), default=timedelta(0))

    @property
    def unreadable(self) -> str:
        """Why jobs wait that this process cannot read; empty if there are none."""
        now = time.monotonic()
        return " ".join(sentence for until, sentence in self._unreadable.values() if now < until)

    async def run_once(self) -> int:
        """Takes as many due jobs as there is room for, and starts those that it can run; gives how many.

        ``took`` says how many it took: the rest is given back, and hides others that it could run.
        """
        try:
            await self._give_back(list(self._not_begun.values()), timedelta(0), None)
            return await self._look()
        except StoreError:
            # Nobody else could renew a lease either. Those who live do so as soon as they can, and their
            # jobs must not be run a second time beside them.
            self._weather.bad(time.monotonic())
            raise

    def _heard(self, there: bool, asked: float) -> None:
        """The keeper has asked the store: also while there is no room, and so no look."""
        if there:
            self._weather.good(time.monotonic(), asked)
        else:
            self._weather.bad(time.monotonic())

    async def _look(self) -> int:
        self.next_due_ms, self.took = None, 0
        places = self.slots.places
        if not self.has_room:
            return 0
        asked = time.monotonic()
        due = await run_async(self._driver, self._outbox.due)
        self._weather.good(time.monotonic(), asked)
        self._tell_strangers(name for name, ms in due.items() if ms <= 0)
        waiting = {name: ms for name, ms in due.items() if self._engine.jobs.get(name) is not None}
        begun = 0
        # Who holds least comes first: what hangs has held its places for long.
        for name in sorted(waiting, key=lambda name: (places.held(name), waiting[name])):
            room = places.room(name)
            if self.unable.tries(name):
                room = replace(room, places=min(room.places, 1))
            if room.places and waiting[name] <= 0 and not self.unable.rests(name):
                with self._depths.look(name, room) as look:
                    look.found, started = await self._take(name, room, look.depth)
                self.took += look.found
                begun += started
        self.next_due_ms = min(
            (
                max(ms, int(1000 * self.unable.rests(name)))
                for name, ms in waiting.items()
                if places.room(name).places
            ),
            default=None,
        )
        return begun

    def _tell_strangers(self, due: Iterable[str]) -> None:
        for name in due:
            if self._engine.jobs.get(name) is None:
                self._remind(
                    f"Jobs {name!r} are due, and this worker has no function of that name. They are left to "
                    "others; if there are none, import the module that defines it"
                )

    def _remind(self, sentence: str) -> None:
        now = time.monotonic()
        if now >= self._reminded.get(sentence, 0.0):
            self._reminded[sentence] = now + REMIND
            logger.warning("%s", sentence)

    async def _take(self, name: str, room: Room, ahead: int) -> tuple[int, int]:
        """Gives how many were taken, and how many of them begun."""
        patience = max(self._weather.patience(time.monotonic()), self._lease.total_seconds() * GRANTED)
        taking = Taking(
            name,
            room.places,
            room.full_tenants,
            here=[job.id for job in self._held.values()],
            suspects=not any(job.suspect for job in self._held.values()),
            patience_ms=int(patience * 1000),
            ahead=ahead,
        )
        token = secrets.token_hex(16)
        jobs = await run_async(
            self._driver, lambda: self._outbox.take(token, taking, lease_ms=self._lease_ms)
        )
        self._not_begun.update((job.id, job) for job in jobs)
        definition = self._engine.jobs.get(name)
        assert definition is not None
        before = self._started
        ready: dict[str, tuple[Job, Envelope]] = {}
        strange: list[Job] = []
        for job in await self._without_spare_suspects(jobs):
            if job.attempts >= definition.max_attempts:
                # Attempts that ended without a word have killed their process, or were killed with it. Else
                # the job has fewer attempts now than it had when it was last tried.
                sentence = f"The worker died {job.attempts} times while running it."
                if job.silences == 0:
                    sentence = f"Tried {job.attempts} times; max_attempts is {definition.max_attempts} now."
                self._bury(job, sentence)
                continue
            try:
                ready[job.id] = job, Envelope.decode(job.payload)
            except NotSerialisable as error:
                self._bury(job, str(error))
            except NotForUs as error:
                strange.append(job)
                why = str(error)
        if strange:
            await self._leave_to_others(name, strange, why)
        await self._enter(definition, ready)
        return len(jobs), self._started - before

    async def _leave_to_others(self, name: str, jobs: list[Job], why: str) -> None:
        age = timedelta(milliseconds=min(job.taken_at - job.created_at for job in jobs))
        await self._give_back(jobs, self._left_to_others(name, age, why), why)

    def _left_to_others(self, name: str, age: timedelta, why: str) -> timedelta:
        """Says why jobs wait, and for how long they are left alone: half of the time that it has been so."""
        pause = min(max(NOT_FOR_US, age / 2), LONG_NOT_FOR_US)
        sentence = f"Jobs {name!r} wait, untouched. {why}"
        self._remind(sentence)
        self._unreadable[name] = time.monotonic() + pause.total_seconds() + REMIND, sentence
        return pause

    async def _without_spare_suspects(self, jobs: list[Job]) -> list[Job]:
        """One suspect at a time: if it kills this process, it takes no other one with it."""
        suspects = [job for job in jobs if job.suspect]
        if len(suspects) > 1:
            await self._give_back(suspects[1:], NEXT_SUSPECT, None)
        return [job for job in jobs if job not in suspects[1:]]

    async def _give_back(self, jobs: list[Job], pause: timedelta, error: str | None) -> None:
        if not jobs:
            return
        pause_ms = milliseconds(pause)
        await run_async(self._driver, lambda: self._outbox.give_back(jobs, pause_ms=pause_ms, error=error))
        for job in jobs:
            self._not_begun.pop(job.id, None)

    async def _enter(self, definition: JobDefinition, ready: dict[str, tuple[Job, Envelope]]) -> None:
        """From here on the attempt counts; if that was not heard, nothing has begun and nothing counts."""
        if not ready:
            return
        jobs = [job for job, _ in ready.values()]
        entered = await run_async(self._driver, lambda: self._outbox.enter(jobs))
        for job in entered:
            self._start(job, self._performer.run(job, definition, ready[job.id][1]))
        for job in jobs:  # also those that somebody else has by now
            self._not_begun.pop(job.id, None)

    def _bury(self, job: Job, sentence: str) -> None:
        self._buried.add(self._start(job, self._performer.bury(job, sentence)))

    def _start(self, job: Job, work: Any) -> asyncio.Task[Any]:
        task = self.slots.start(_piece(job), work)
        self._started += 1
        self._held[task] = job
        self._not_begun.pop(job.id, None)
        task.add_done_callback(self._finished)
        return task

    def _start_late(self, job: Job, work: Coroutine[Any, Any, None]) -> None:
        task = self.slots.start(_piece(job), work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._held.pop(task, None)
        self._buried.discard(task)
        self.done += 1

    def _hangs(self) -> None:
        self._engine.events.emit("worker.hanging", service="outbox")

    async def drain(self) -> None:
        """Waits for every running job."""
        await self.slots.drain()

    async def stop(self) -> None:
        """Lets running jobs finish for the grace time, then gives the rest back, not counting the attempt.

        What does not end even when it is told to is left to its lease, because it may still be at it.
        """
        held, buried = dict(self._held), set(self._buried)
        await self.slots.stop(self._grace)
        self._performer.has_stopped = True
        left = {task: job for task, job in held.items() if not task.done() or task.cancelled()}
        rest = [job for task, job in left.items() if task not in buried]
        # No attempt of theirs was cut short: none is given back, and who killed workers stays a suspect.
        self._not_begun.update((job.id, job) for task, job in left.items() if task in buried)
        try:
            async with asyncio.timeout(apart.FAREWELL):
                await asyncio.gather(self._end_late(), self._give_back_rest(), *map(self._let_go, rest))
                # Not in a pool whose threads are waited for at the end of the process.
                await self.slots.apart.call("keeper", self._keeper.stop)
        except TimeoutError:
            logger.error("The store does not answer: %d jobs are left to their leases", len(rest))

    async def _end_late(self) -> None:
        """Nobody else knows what they record. None is left behind in a loop that may end now."""
        try:
            while self._late:
                await asyncio.wait(self._late)
        finally:
            for task in self._late:
                task.cancel()
            if self._late:
                await asyncio.wait(self._late, timeout=0.2)

    async def _give_back_rest(self) -> None:
        """What a look that was cut short has left."""
        try:
            await self._give_back(list(self._not_begun.values()), timedelta(0), None)
        except StoreError as error:
            logger.warning("Jobs could not be given back; their leases run out: %s", error)

    async def _let_go(self, job: Job) -> None:
        goes_on = self.slots.apart.hanging[name_of(job)] > 0
        made = self._performer.left.get(job.id)
        try:
            if goes_on:
                await run_async(self._driver, lambda: self._outbox.leave(job))
            else:
                await run_async(
                    self._driver,
                    lambda: self._outbox.retry(
                        job, pause_ms=0, error="stopped", provider_id=made, forgiven=True
                    ),
                )
        except StoreError as error:
            logger.warning("The %s could not be given back; its lease runs out: %s", name_of(job), error)


def _piece(job: Job) -> Piece:
    return Piece(name_of(job), job.name, job.tenant)
