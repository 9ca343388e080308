"""The outbox worker: takes due jobs and runs them, one attempt at a time, until each is done or dead.

A job may raise, hang, kill its process, be undecodable or come from the future; it is tried a bounded number
of times, with a growing pause, and ends as a dead letter with its error. It never blocks another: what hangs
is let go of, and what was running when its worker died, twice, runs alone the next time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
import time
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.policy import milliseconds
from ..core.record import Answer, Lease
from ..core.replayable import replayable
from ..drivers.run import run_async, run_in, run_in_async
from ..engine.engine import Engine
from ..engine.jobs import Envelope, JobContext, JobDefinition, NewerVersion
from ..engine.keeper import Keeper
from ..errors import LeaseLost, NotSerialisable, StoreError
from ..response import answer_of
from ..stores.sql.jobs import Job
from .apart import Ended, call_apart

logger = logging.getLogger("samekey")

LEASE = timedelta(seconds=30)
"""How long a silent worker keeps a job, and so how long a killed worker's jobs wait."""
GRACE = timedelta(seconds=30)
"""How long a stopping worker waits for running jobs before it gives them back."""
STRANGER_ATTEMPTS = 10
"""How often a job without a known function is offered around before it is a dead letter."""
SUSPECTS_EVERY = 5.0
"""Seconds after which a worker that is never idle looks whether a suspect waits. It then has to let its
running jobs end first, so not often; but a suspect must not wait for ever."""
SETTLE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Seconds between attempts to record an effect that has happened. Recording is cheaper than calling the
provider again, and the lease bounds it in any case."""
FAREWELL = 1.0
"""Seconds that a cancelled job has for its clean-up."""


class OutboxWorker:
    """Runs jobs, ``concurrency`` at a time."""

    def __init__(
        self,
        idempotency: Engine,
        *,
        concurrency: int = 10,
        lease: timedelta = LEASE,
        grace: timedelta = GRACE,
    ) -> None:
        self._idempotency = idempotency
        self._driver = idempotency.drivers.aio
        self._outbox = idempotency.outbox
        self._concurrency = concurrency
        self._lease_ms = milliseconds(lease)
        self._grace = grace
        self._keeper = Keeper(idempotency.drivers.sync, self._outbox.renew, self._outbox.held)
        self._running: dict[asyncio.Task[None], Job] = {}
        self._let_go: set[asyncio.Task[Any]] = set()
        """Jobs that would not end when they were told to. They are no longer waited for."""
        self._one_done = asyncio.Event()
        self._alone = False
        """A suspect is running, and nothing else may."""
        self._draining = False
        """Nothing is taken until nothing runs, because a suspect waits."""
        self._suspects_at = 0.0
        self.done = 0
        """Jobs that this worker has finished, one way or another."""

    @property
    def has_room(self) -> bool:
        if self._alone or self._draining:
            return not self._running
        return len(self._running) < self._concurrency

    @property
    def longest_timeout(self) -> timedelta:
        """Of the jobs that are running here. Also for other threads."""
        known = map(self._idempotency.jobs.get, {job.name for job in list(self._running.values())})
        return max((found.timeout for found in known if found is not None), default=timedelta(0))

    async def run_once(self) -> int:
        """Takes as many due jobs as there is room for, and starts them; gives how many."""
        if not self._running:
            if self._draining and await self.run_suspect():
                return 1
            self._draining = False
        elif not self._alone and await self._suspect_waits():
            self._draining = True
        if not self.has_room:
            return 0
        return await self._take(self._concurrency - len(self._running))

    async def run_suspect(self) -> int:
        """Starts one job that was running when its worker died, more than once, if nothing else runs.

        It may kill this process too; alone, it takes nobody with it.
        """
        if self._running:
            return 0
        taken = await self._take(1, suspects=True)
        if taken:
            self._alone = self._draining = True  # and the next one after it
        return taken

    async def _take(self, batch: int, *, suspects: bool = False) -> int:
        token = secrets.token_hex(16)
        jobs = await run_async(
            self._driver,
            lambda: self._outbox.take(token, lease_ms=self._lease_ms, batch=batch, suspects=suspects),
        )
        for job in jobs:
            task = asyncio.create_task(self._perform(job), name=f"job {job.name}")
            self._running[task] = job
            task.add_done_callback(self._finished)
        return len(jobs)

    async def _suspect_waits(self) -> bool:
        """Asked only from time to time, and only by a worker that is never idle."""
        if time.monotonic() < self._suspects_at:
            return False
        self._suspects_at = time.monotonic() + SUSPECTS_EVERY
        return await run_async(self._driver, self._outbox.suspect_due)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._alone = False
        self.done += 1
        self._one_done.set()
        if not task.cancelled() and task.exception() is not None:
            # Its lease runs out and somebody tries again; the others are not touched.
            logger.error("A job could not be settled: %s", task.exception())

    async def drain(self) -> None:
        """Waits for every running job."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def until_room(self) -> None:
        """Waits until a job is done, if there is no room for another."""
        while not self.has_room:
            self._one_done.clear()
            await self._one_done.wait()

    async def stop(self) -> None:
        """Lets running jobs finish for a while; gives the rest back, not counting the attempt."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=self._grace.total_seconds())
        rest = dict(self._running)
        for task in rest:
            task.cancel()
        if rest:
            # Its own clean-up comes first: another worker may have the job the moment it is given back.
            await asyncio.wait(list(rest), timeout=FAREWELL)
        if self._let_go:
            await asyncio.wait(list(self._let_go), timeout=FAREWELL)
        for job in rest.values():
            try:
                await run_async(
                    self._driver,
                    lambda job=job: self._outbox.retry(job, pause_ms=0, error="stopped", forgiven=True),  # type: ignore[misc]
                )
            except StoreError as error:
                logger.warning("A job could not be given back; its lease runs out by itself: %s", error)
        await asyncio.to_thread(self._keeper.stop)

    async def _perform(self, job: Job) -> None:
        definition = self._idempotency.jobs.get(job.name)
        try:
            envelope = Envelope.decode(job.payload)
        except NotSerialisable as error:
            await self._bury(job, _kept(str(error)))
            return
        except NewerVersion as error:
            await self._try_again(job, str(error), STRANGER_ATTEMPTS, Backoff())
            return
        if definition is None:
            await self._try_again(
                job, f"No function for the job {job.name!r} is known here.", STRANGER_ATTEMPTS, Backoff()
            )
            return
        if job.attempts > definition.max_attempts:
            # Every attempt ended without a word: it killed its process, or was killed with it.
            await self._bury(job, f"The worker died {job.attempts - 1} times while running it.")
            return
        await self._run(job, definition, envelope)

    async def _run(self, job: Job, definition: JobDefinition, envelope: Envelope) -> None:
        context = JobContext(job, envelope)
        lease = Lease(job.id, "", job.attempt, self._lease_ms)
        # Its time for the work, its time for the writes, and what another worker grants it anyway.
        self._keeper.watch(lease, 2 * milliseconds(definition.timeout) + self._lease_ms)
        try:
            result = await self._call(definition, context, envelope.payload)
            answer = self._answer(result) if job.answers else None
            await self._settle(job, definition, context, answer, lease)
        except NotSerialisable as error:
            # The effect has happened and no further attempt can give a better result.
            await self._bury(job, _kept(str(error)), _provider_id(context))
        except LeaseLost:
            logger.warning("Another worker has taken the job %s; this result was dropped", job.id)
        except TimeoutError as error:
            sentence = str(error) or f"It took longer than {definition.timeout.total_seconds():g} s."
            await self._failed(job, definition, context, _kept(sentence))
        except Exception as error:
            await self._failed(job, definition, context, _kept(f"{type(error).__name__}: {error}"))
        finally:
            self._keeper.forget(lease)

    async def _call(self, definition: JobDefinition, context: JobContext, payload: Any) -> Any:
        """The job's own function, for its own time and no longer."""
        function = definition.function
        if inspect.iscoroutinefunction(function):

            async def work() -> Any:
                try:
                    return await function(context, payload)
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    raise Ended(error) from error  # nobody cancelled it: it raised that by itself
                except Exception:
                    raise
                except BaseException as error:
                    # SystemExit would end the loop, and with it every other job of this process.
                    raise Ended(error) from error

            task = asyncio.create_task(work(), name=f"work {context.id}")
        else:
            task = asyncio.ensure_future(call_apart(f"job {context.id}", function, context, payload))
        return await self._at_most(definition.timeout, task)

    async def _at_most(self, longest: timedelta, task: asyncio.Task[Any]) -> Any:
        """The task's result. One that neither ends nor lets itself be cancelled is let go of."""
        try:
            await asyncio.wait({task}, timeout=longest.total_seconds())
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                self._let_go.add(task)
                task.add_done_callback(self._forget_task)
        await asyncio.wait({task}, timeout=FAREWELL)
        raise TimeoutError

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._let_go.discard(task)
        if not task.cancelled():
            task.exception()  # seen, so that it is not reported as lost

    def _answer(self, result: Any) -> Answer | None:
        """What is stored of a result; None if it is too large to keep."""
        answer = replayable(answer_of(result))
        return None if len(answer.body) > self._idempotency.policy.max_answer else answer

    async def _settle(
        self,
        job: Job,
        definition: JobDefinition,
        context: JobContext,
        answer: Answer | None,
        lease: Lease,
    ) -> None:
        """Records what was done. The effect is out there, so a store that hiccups is asked again."""
        for pause in (*SETTLE_PAUSES, None):
            try:
                if inspect.iscoroutinefunction(definition.function):
                    work = asyncio.create_task(self._record(job, context, answer))
                else:
                    # In a thread of its own: its writes want a sync connection and may block.
                    name, record = f"end of job {job.id}", self._record_sync
                    work = asyncio.ensure_future(call_apart(name, record, job, context, answer))
                await self._at_most(definition.timeout, work)
                return
            except StoreError as error:
                if pause is None or self._keeper.remaining(lease) <= pause:
                    raise
                logger.warning("The end of the job %s will be recorded again: %s", job.id, error)
                await asyncio.sleep(pause)

    async def _record(self, job: Job, context: JobContext, answer: Answer | None) -> None:
        """The provider's id, the job's own writes, its end and the final answer: one transaction."""
        session = await self._driver.open()
        try:
            for function, args, kwargs in context.writes:
                written = function(session.connection, *args, **kwargs)
                if inspect.isawaitable(written):
                    await written
            await run_in_async(session, self._outbox.finish(job, answer, _provider_id(context)))
        except BaseException:
            await session.rollback()
            raise
        await session.commit()

    def _record_sync(self, job: Job, context: JobContext, answer: Answer | None) -> None:
        """The same for a sync job, whose writes want a sync connection."""
        session = self._idempotency.drivers.sync.open()
        try:
            for function, args, kwargs in context.writes:
                function(session.connection, *args, **kwargs)
            run_in(session, self._outbox.finish(job, answer, _provider_id(context)))
        except BaseException:
            session.rollback()
            raise
        session.commit()

    async def _failed(self, job: Job, definition: JobDefinition, context: JobContext, sentence: str) -> None:
        logger.info("The job %s failed (attempt %d): %s", job.id, job.attempts, sentence)
        await self._try_again(
            job, sentence, definition.max_attempts, definition.backoff, _provider_id(context)
        )

    async def _try_again(
        self, job: Job, error: str, max_attempts: int, backoff: Backoff, provider_id: str | None = None
    ) -> None:
        if job.attempts >= max_attempts:
            await self._bury(job, error, provider_id)
            return
        await self._note(job, provider_id)
        pause = backoff.pause_ms(job.attempts, random.random())  # noqa: S311
        await run_async(self._driver, lambda: self._outbox.retry(job, pause_ms=pause, error=_kept(error)))

    async def _bury(self, job: Job, error: str, provider_id: str | None = None) -> None:
        logger.error("The job %s (%s) is a dead letter: %s", job.id, job.name, error)
        await self._note(job, provider_id)
        try:
            await run_async(self._driver, lambda: self._outbox.bury(job, error=_kept(error)))
        except LeaseLost:
            logger.warning("Another worker has taken the job %s", job.id)
            return
        self._idempotency.events.emit("dead_letter", mode="deferred")

    async def _note(self, job: Job, provider_id: str | None) -> None:
        """What the provider made is known even if the job failed after it."""
        if provider_id is not None:
            await run_async(self._driver, lambda: self._outbox.note_provider_id(job, provider_id))


def _kept(text: str) -> str:
    """Text as it is logged and stored: bounded, and without what a log or a database cannot hold."""
    return text[:4000].replace("\x00", "�").encode("utf-8", "replace").decode()


def _provider_id(context: JobContext) -> str | None:
    """Providers number their objects too: whatever was set is kept as text."""
    found: object = context.provider_id
    return None if found is None else _kept(str(found))
