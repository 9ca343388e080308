"""The outbox worker: takes due jobs and runs them, one attempt at a time, until each is done or dead.

A job may raise, hang, kill its process, be undecodable or come from the future; it is tried a bounded number
of times, with a growing pause, and ends as a dead letter with its error. It never blocks another.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..core.backoff import Backoff
from ..core.policy import milliseconds
from ..core.record import Answer, Lease
from ..core.replayable import replayable
from ..drivers.run import run_async, run_in, run_in_async
from ..engine.idempotency import Idempotency
from ..engine.jobs import Envelope, JobContext, JobDefinition, NewerVersion
from ..engine.keeper import Keeper
from ..errors import LeaseLost, NotSerialisable, StoreError
from ..response import answer_of
from ..stores.sql.jobs import Job

logger = logging.getLogger("samekey")

LEASE = timedelta(seconds=30)
"""How long a silent worker keeps a job, and so how long a killed worker's jobs wait."""
GRACE = timedelta(seconds=30)
"""How long a stopping worker waits for running jobs before it gives them back."""
STRANGER_ATTEMPTS = 10
"""How often a job without a known function is offered around before it is a dead letter."""


class OutboxWorker:
    """Runs jobs, ``concurrency`` at a time."""

    def __init__(
        self,
        idempotency: Idempotency,
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
        self._keeper = Keeper(idempotency.drivers.sync, self._outbox.renew)
        self._running: dict[asyncio.Task[None], Job] = {}
        self._one_done = asyncio.Event()
        self.done = 0
        """Jobs that this worker has finished, one way or another."""

    @property
    def has_room(self) -> bool:
        return len(self._running) < self._concurrency

    async def run_once(self) -> int:
        """Takes as many due jobs as there is room for, and starts them; gives how many."""
        room = self._concurrency - len(self._running)
        if room <= 0:
            return 0
        token = secrets.token_hex(16)
        jobs = await run_async(
            self._driver, lambda: self._outbox.take(token, lease_ms=self._lease_ms, batch=room)
        )
        for job in jobs:
            task = asyncio.create_task(self._perform(job), name=f"job {job.name}")
            self._running[task] = job
            task.add_done_callback(self._finished)
        return len(jobs)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
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
        for task, job in list(self._running.items()):
            task.cancel()
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
            await self._bury(job, str(error))
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
        self._keeper.watch(lease, milliseconds(definition.timeout) + self._lease_ms)
        try:
            async with asyncio.timeout(definition.timeout.total_seconds()):
                result = await _call(definition.function, context, envelope.payload)
            answer = replayable(answer_of(result)) if job.answers else None
            if inspect.iscoroutinefunction(definition.function):
                await self._settle(job, context, answer)
            else:
                await asyncio.to_thread(self._settle_sync, job, context, answer)
        except NotSerialisable as error:
            # The effect has happened and no further attempt can give a better result.
            await self._bury(job, str(error), context.provider_id)
        except LeaseLost:
            logger.warning("Another worker has taken the job %s; this result was dropped", job.id)
        except TimeoutError as error:
            sentence = str(error) or f"It took longer than {definition.timeout.total_seconds():g} s."
            await self._try_again(job, sentence, definition.max_attempts, definition.backoff)
        except Exception as error:
            sentence = f"{type(error).__name__}: {error}"
            logger.info("The job %s failed (attempt %d): %s", job.id, job.attempts, sentence)
            await self._try_again(job, sentence, definition.max_attempts, definition.backoff)
        finally:
            self._keeper.forget(lease)

    async def _settle(self, job: Job, context: JobContext, answer: Answer | None) -> None:
        """The provider's id, the job's own writes, its end and the final answer: one transaction."""
        session = await self._driver.open()
        try:
            for function, args, kwargs in context.writes:
                written = function(session.connection, *args, **kwargs)
                if inspect.isawaitable(written):
                    await written
            await run_in_async(session, self._outbox.finish(job, answer, context.provider_id))
        except BaseException:
            await session.rollback()
            raise
        await session.commit()

    def _settle_sync(self, job: Job, context: JobContext, answer: Answer | None) -> None:
        """The same for a sync job, whose writes want a sync connection."""
        session = self._idempotency.drivers.sync.open()
        try:
            for function, args, kwargs in context.writes:
                function(session.connection, *args, **kwargs)
            run_in(session, self._outbox.finish(job, answer, context.provider_id))
        except BaseException:
            session.rollback()
            raise
        session.commit()

    async def _try_again(self, job: Job, error: str, max_attempts: int, backoff: Backoff) -> None:
        if job.attempts >= max_attempts:
            await self._bury(job, error)
            return
        pause = backoff.pause_ms(job.attempts, random.random())  # noqa: S311
        await run_async(self._driver, lambda: self._outbox.retry(job, pause_ms=pause, error=error[:4000]))

    async def _bury(self, job: Job, error: str, provider_id: str | None = None) -> None:
        logger.error("The job %s (%s) is a dead letter: %s", job.id, job.name, error)
        try:
            if provider_id is not None:
                await run_async(self._driver, lambda: self._outbox.note_provider_id(job, provider_id))
            await run_async(self._driver, lambda: self._outbox.bury(job, error=error[:4000]))
        except LeaseLost:
            logger.warning("Another worker has taken the job %s", job.id)


async def _call(function: Callable[..., Any], context: JobContext, payload: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(context, payload)
    # A thread of its own: one that hangs cannot use up a pool that the others share.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (function(context, payload), None)
        except Exception as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            pass  # the worker has stopped; the job was given back

    threading.Thread(target=work, name=f"job {context.id}", daemon=True).start()
    return await future
