"""Performing one job: its function is called for its own time, and what came of it is recorded once.

A job may raise, hang, or have a result that cannot be kept; it is tried a bounded number of times, with a
growing pause, and ends as a dead letter with its error.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from ..core.agreement import ERRORS_FROM
from ..core.backoff import Backoff
from ..core.claim import downstream_key
from ..core.effects import Sent, SentStep
from ..core.policy import milliseconds
from ..core.program import BEGIN, Program
from ..core.record import Answer, Lease
from ..core.replayable import replayable
from ..drivers.protocol import Lending
from ..drivers.run import run_async, run_in, run_in_async
from ..engine.about import about
from ..engine.engine import Engine
from ..engine.evidence.belated import Belated
from ..engine.evidence.reconcile import NotingResolver
from ..engine.evidence.said import WordLeft
from ..engine.handler.own_responses import answer_returned
from ..engine.jobs import Envelope, JobContext, JobDefinition
from ..engine.keeper import TRIED_FOR, Keeper
from ..engine.sending import sends
from ..engine.within import SharedTransaction, inside
from ..errors import (
    EscapedTransaction,
    FailedTransaction,
    LeaseLost,
    NotSerialisable,
    StoreBusy,
    StoreUnavailable,
)
from ..evidence import Declined, Executed
from ..stores.sql.jobs import JOB_FAILED, Contested, Job
from ..stores.sql.operator import Operator
from .apart import Aborted, Apart, NotBegun, TooLong, told
from .lasting import will_last
from .unable import Unable

logger = logging.getLogger("samekey")

T = TypeVar("T")

SETTLE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Seconds between tries to record what came of a job, which is cheaper than calling the provider again. The
last is repeated for as long as the lease can be kept."""
NOT_BEGUN = timedelta(seconds=2)
"""Before a job is taken again whose function could not be called, for want of the store."""
LEFT_FOR = timedelta(hours=24)
"""How long a job of which a provider has said what became of it waits for a worker that can make use of that:
a deploy that was rolled back is put right within a day, or not at all."""


def name_of(job: Job) -> str:
    """What logs and threads call it."""
    return f"job {job.name} {job.id}"


def about_job(job: Job) -> dict[str, str | int]:
    return about(operation=job.operation_id, job=job.id, job_name=job.name, attempt=job.attempts)


class NotAwaited(Exception):
    """A sync job was given an async write, which nobody can await there."""

    def __init__(self, function: Any) -> None:
        super().__init__(
            f"The job was done, but its write {getattr(function, '__name__', function)!r} is async and the "
            "job is not: nothing of it was written. Make both async, or neither."
        )


class WriteFailed(Exception):
    """A ``job.write`` raised. The job's function is not to blame, and has done what it does."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"The job was done, but a write of its own failed: {told(error)}")


class Performer:
    """Runs jobs that have been taken and entered.

    An attempt has three parts, each judged by itself: the function's call, which fails by any error of its
    own; what is kept of its result; and the record. After the call only the record is tried again.
    """

    def __init__(
        self,
        engine: Engine,
        apart: Apart,
        keeper: Keeper,
        lease_ms: int,
        unable: Unable,
        left_to_others: Callable[[str, timedelta, str], timedelta],
        record_late: Callable[[Job, Coroutine[Any, Any, None]], object],
    ) -> None:
        """``left_to_others`` is told of a kind why its job waits, and since when; gives for how long.
        ``record_late`` is given what records the end of a job that has come after its time."""
        self._engine = engine
        self._driver = engine.drivers.aio
        self._outbox = engine.outbox
        self._apart = apart
        self._keeper = keeper
        self._lease_ms = lease_ms
        self._unable = unable
        self._left_to_others = left_to_others
        self._start_late = record_late
        self._belated = Belated(engine.keys, engine.resolver)
        self.left: dict[str, str | None] = {}
        """The provider's ids of jobs that were cancelled, by the job's id."""
        self.has_stopped = False
        """What comes later still is tried once: nobody waits for it, and the loop may end at any time."""

    async def run(self, job: Job, definition: JobDefinition, envelope: Envelope) -> None:
        """One attempt, to its end."""
        context = JobContext(job, envelope, self._engine.jobs)
        lease = Lease(job.id, "", job.attempt, self._lease_ms)
        try:
            try:
                self._watch(lease, definition)
                function = await self._ready(job, definition, context)
            except Exception as error:  # none is the function's own: it was not called
                await self._not_begun(job, error)
                return
            await self._attempt(job, definition, function, context, envelope.payload)
        except asyncio.CancelledError:
            self.left[job.id] = context.provider_id
            raise
        finally:
            self._keeper.forget(lease)

    def _watch(self, lease: Lease, definition: JobDefinition) -> None:
        """For its time for the work, its time for the writes, and what another worker grants it anyway."""
        try:
            self._keeper.watch(lease, 2 * milliseconds(definition.timeout) + self._lease_ms)
        except StoreBusy as error:
            raise NotBegun(str(error)) from error

    async def _ready(self, job: Job, definition: JobDefinition, context: JobContext) -> Callable[..., Any]:
        """Its function, with what is known of the job where it takes that."""
        if not definition.takes_found:
            if context.tried_before and (since := await self._settled_at(job, context)) is not None:
                raise WordLeft(
                    "A provider has said what became of it, and by this process's code its function does not "
                    "take that (`found`): it would call the provider again. It waits for a worker whose does",
                    since,
                )
            return definition.function
        return partial(definition.function, found=await self._found(job, context))

    async def _not_begun(self, job: Job, error: Exception) -> None:
        """Its function was not called, so nothing counts, and others may try."""
        sentence = _kept(f"It was not begun: {told(error)}")
        wait = NOT_BEGUN
        if isinstance(error, NotBegun):
            self._unable.failed(job.name, str(error))
            wait = timedelta(0)  # for others, who can
        elif isinstance(error, WordLeft):
            age = timedelta(milliseconds=max(0, job.taken_at - error.since))
            if age > LEFT_FOR:
                await self._bury_known(job, error)
                return
            wait = self._left_to_others(job.name, age, str(error))
        else:
            logger.warning("The %s is given back. %s", name_of(job), sentence)
        pause = milliseconds(wait)

        async def once() -> None:
            await run_async(
                self._driver, lambda: self._outbox.give_back([job], pause_ms=pause, error=sentence)
            )

        await self._patiently(job, once, self._kept_until())

    async def _bury_known(self, job: Job, error: WordLeft) -> None:
        """Nobody has come who can make use of what a provider has said of it: an operator decides."""
        sentence = (
            f"{error}. None has come for {LEFT_FOR.total_seconds() / 3600:g} hours. Start a worker that can, "
            "and samekey dead retry; or look at the provider's side, and say samekey keys resolve --executed "
            "(of a job that does not answer: samekey dead discard)."
        )

        def known() -> Program[bool]:
            yield BEGIN
            yield from self._outbox.ends_here(job)
            return (yield from self.buried(job, sentence))

        await self._bury_as(job, sentence, lambda: run_async(self._driver, known))

    async def _attempt(
        self,
        job: Job,
        definition: JobDefinition,
        function: Callable[..., Any],
        context: JobContext,
        payload: Any,
    ) -> None:
        longest = definition.timeout
        try:
            work = self._apart.call_any(
                name_of(job),
                function,
                context,
                payload,
                late=lambda result: self._hear_late(job, definition, context, result),
            )
            with sends(context):
                result, awaited = await self._apart.at_most(longest, name_of(job), work)
        except TooLong:
            await self._failed(
                job, definition, context, f"It took longer than {longest.total_seconds():g} s."
            )
            return
        except NotBegun as error:
            await self._not_begun(job, error)
            return
        except Exception as error:  # whatever it is, also one of ours: it is the function's own
            self._unable.began(job.name)
            if error is context.refused:
                # A job after it, which no attempt can store; and the effect may have happened.
                await self.bury(job, str(error), context.provider_id)
                return
            await self._failed(job, definition, context, told(error))
            return
        self._unable.began(job.name)
        try:
            _check_result(result)
            answer, before = self._answer(result) if job.answers else None, context.mark()
            try:
                await self._settle(job, definition, context, answer, awaited, before)
            except LeaseLost:
                logger.warning("Another worker has taken the %s; this result comes late", name_of(job))
                await self._settle_late(job, definition, context, answer, awaited, before)
        except LeaseLost:
            await self._tell(job, context, answer)
        except Contested as error:
            await self.bury(job, str(error), context.provider_id, code=error.code)
        except (NotSerialisable, EscapedTransaction, NotAwaited) as error:
            # The effect has happened and no further attempt can give a better result; the provider can.
            await self.bury(job, str(error), context.provider_id)
        except TooLong:
            # Nothing of this process's can end it: the lease is no longer kept for it.
            why = "one of its writes does not end." if context.writes else "the store does not answer."
            sentence = f"The job was done, but that could not be recorded: {why}"
            await self._failed(job, definition, context, sentence)
        except WriteFailed as error:
            await self._failed(job, definition, context, str(error))
        except Exception as error:
            sentence = f"The job was done, but that could not be recorded: {told(error)}"
            await self._failed(job, definition, context, sentence)

    async def _found(self, job: Job, context: JobContext) -> Executed | Declined | None:
        """What a provider has said about this job meanwhile: its function makes that call no more."""
        resolver = self._engine.resolver
        assert isinstance(resolver, NotingResolver)
        return await run_async(self._driver, lambda: resolver.told_about(job.operation_id, context.key))

    async def _settled_at(self, job: Job, context: JobContext) -> int | None:
        resolver = self._engine.resolver
        assert isinstance(resolver, NotingResolver)
        return await run_async(self._driver, lambda: resolver.settled_at(job.operation_id, context.key))

    def _hear_late(self, job: Job, definition: JobDefinition, context: JobContext, result: Any) -> None:
        """A thread that could not be stopped has ended well after its time: nobody else knows that."""
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            return  # and nobody runs it
        self._start_late(job, self._record_late(job, definition, context, result))

    async def _record_late(
        self, job: Job, definition: JobDefinition, context: JobContext, result: Any
    ) -> None:
        logger.warning("The %s has ended well after its time; this result comes late", name_of(job))
        try:
            answer, before = self._answer(result) if job.answers else None, context.mark()
            try:
                try:
                    # It may still hold the job: its worker has stopped, or is yet to record its time-out.
                    await self._settle(job, definition, context, answer, False, before)
                except LeaseLost:
                    await self._settle_late(job, definition, context, answer, False, before)
            except LeaseLost:
                await self._tell(job, context, answer)
        except Exception as error:
            logger.error("The late end of the %s could not be recorded: %s", name_of(job), told(error))

    async def bury(
        self, job: Job, error: str, provider_id: str | None = None, *, code: str = JOB_FAILED
    ) -> None:
        """The end of its attempts, or of its hopes: a dead letter."""
        await self._bury_as(job, error, lambda: self._bury(job, error, provider_id, code), provider_id)

    async def _bury_as(
        self, job: Job, error: str, once: Callable[[], Awaitable[bool]], provider_id: str | None = None
    ) -> None:
        logger.error(
            "The %s of operation %s is a dead letter: %s",
            name_of(job),
            job.operation_id,
            error,
            extra=about_job(job),
        )
        try:
            settled = await self._patiently(job, once, self._kept_until())
        except LeaseLost:
            logger.warning("Another worker has taken the %s", name_of(job))
            await self._note(job, provider_id)
            return
        if settled:
            logger.warning("The %s was done after all: the provider had said so", name_of(job))
            self._engine.events.emit("reconcile.resolved", mode="deferred")
            return
        self._engine.events.emit("dead_letter", mode="deferred")

    async def _tell(self, job: Job, context: JobContext, answer: Answer | None) -> None:
        """What this run has done is known to nobody else: others who have the job are told. Where it has
        writes of its own, or jobs after it, its word alone would not be its end: nobody else makes them."""
        finding = self._engine.store.finding
        assert isinstance(finding, Operator)
        lease, step = self._sent_by(job, context.provider_id)
        until = self._kept_until()
        found = await self._patiently(
            job, lambda: run_async(self._driver, lambda: finding.job(job.id)), until
        )
        if found is not None and found.state == "done":
            # By this very run, whose commit was not acknowledged, or by the other one: all of it is there.
            await self._note(job, context.provider_id)
            if None in (found.provider_id, context.provider_id) or found.provider_id == context.provider_id:
                return
            await self._patiently(
                job,
                lambda: run_async(
                    self._driver, lambda: self._belated.made_twice(lease, job.operation_id, step)
                ),
                self._kept_until(),
            )
            return
        whole = context.mark() == (0, 0)

        def done() -> Program[None]:
            return self._belated.job_done(
                lease, job.operation_id, step, answer, answers=job.answers, whole=whole
            )

        await self._patiently(job, lambda: run_async(self._driver, done), self._kept_until())

    async def _note(self, job: Job, provider_id: str | None) -> None:
        """What the provider has made for a run that others have followed still finds its operation."""
        if provider_id is None:
            return
        lease, step = self._sent_by(job, provider_id)

        def made() -> Program[None]:
            return self._engine.keys.note_former(lease, job.operation_id, Sent((step,)))

        await self._patiently(job, lambda: run_async(self._driver, made), self._kept_until())

    def _sent_by(self, job: Job, provider_id: str | None) -> tuple[Lease, SentStep]:
        step = Envelope.decode(job.payload).step
        source = self._engine.jobs.source_of(job.name)
        sent = SentStep(step, downstream_key(job.scope, job.key, step), provider_id, source)
        return Lease(job.scope, job.key, job.attempt, self._lease_ms), sent

    async def _bury(self, job: Job, error: str, provider_id: str | None, code: str) -> bool:
        return await run_async(self._driver, lambda: self.buried(job, _kept(error), provider_id, code))

    def buried(
        self, job: Job, error: str, provider_id: str | None = None, code: str = JOB_FAILED
    ) -> Program[bool]:
        """Dead, unless the provider has said meanwhile what became of it: that was kept while the job could
        still be tried, and is used now, in the same transaction."""
        yield BEGIN
        yield from self._outbox.bury(job, error=error, code=code, provider_id=provider_id)
        return (yield from self._engine.resolver.apply_waiting(job.operation_id))

    def _answer(self, result: Any) -> Answer | None:
        """What is stored of a result; None if it is too large to keep."""
        try:
            policy = self._engine.policy
            answer = replayable(answer_returned(result), policy.keep_headers, policy.drop_headers)
        except NotSerialisable:
            raise
        except Exception as error:  # a status, header or text that no answer can have
            raise NotSerialisable(f"The result cannot be kept as an answer: {told(error)}") from error
        return None if len(answer.body) > policy.max_answer else answer

    async def _settle(
        self,
        job: Job,
        definition: JobDefinition,
        context: JobContext,
        answer: Answer | None,
        awaited: bool,
        before: tuple[int, int],
        *,
        late: bool = False,
    ) -> None:
        """Records what was done. ``before``: what the context held when the function had ended. ``late``:
        others had the job meanwhile; if none of them runs it, this is its end like any other, with its writes
        and the jobs after it.

        The function's time is no measure for it: a store that stalls is waited for, each statement for the
        store's own time-out, and the whole for as long as the lease can be kept.
        """
        name = name_of(job)
        until = self._kept_until(definition.timeout)

        async def once() -> None:
            context.cut_back(before)  # what the writes of a try that does not count have added
            left = max(until - time.monotonic(), self._lease_ms / 1000)
            if awaited:
                work = self._record(job, context, answer, definition.timeout, late)
            else:
                # In a thread of its own: its writes want a sync connection and may block. A thread cannot be
                # stopped, so a second one would only wait behind it.
                work = self._apart.call(name, self._record_sync, job, context, answer, late, left)
            try:
                await self._apart.at_most(timedelta(seconds=left), name, work)
            except NotBegun as error:
                raise StoreBusy(str(error)) from error

        await self._patiently(job, once, until)

    async def _settle_late(
        self,
        job: Job,
        definition: JobDefinition,
        context: JobContext,
        answer: Answer | None,
        awaited: bool,
        before: tuple[int, int],
    ) -> None:
        """Others had the job meanwhile. That it was refused says nothing of what they have sent since."""
        context.cut_back(before)
        if answer is not None and answer.status >= ERRORS_FROM:
            raise LeaseLost("Another worker has had the job since.")
        await self._settle(job, definition, context, answer, awaited, before, late=True)

    def _kept_until(self, longest: timedelta = timedelta(0)) -> float:
        """When the lease can be kept no longer, if what is to be recorded may take so long by itself."""
        return time.monotonic() + longest.total_seconds() + self._lease_ms / 1000

    async def _patiently(self, job: Job, once: Callable[[], Awaitable[T]], until: float) -> T:
        """Has something recorded, again and again if need be, for as long as the lease can be kept; and for
        much longer while the store is away: then nobody else can take the job, and nobody else knows.

        What came of the job must not be lost because a store, or whatever encrypts for it, is away for a
        moment. A write that fails is tried for a while too, unless its error will last: it may have met a
        lock. Only the attempt that holds the job can record anything, so a try that comes too late does no
        harm.
        """
        lease = self._lease_ms / 1000
        pauses = itertools.chain(SETTLE_PAUSES, itertools.repeat(SETTLE_PAUSES[-1]))
        for tries, pause in enumerate(pauses, 1):
            try:
                return await once()
            except (LeaseLost, EscapedTransaction, NotAwaited, TooLong, Contested):
                raise
            except Exception as error:
                shorter = min(pause, lease / 4)
                hopeless = isinstance(error, WriteFailed | Aborted) and tries > len(SETTLE_PAUSES)
                if isinstance(error, WriteFailed) and will_last(error):
                    raise
                longest = TRIED_FOR if isinstance(error, StoreUnavailable) else 0.0
                if self.has_stopped or hopeless or time.monotonic() + shorter >= until + longest:
                    raise
                logger.warning("What came of the %s will be recorded again: %s", name_of(job), told(error))
                await asyncio.sleep(shorter)
        raise AssertionError("unreachable")

    async def _record(
        self, job: Job, context: JobContext, answer: Answer | None, longest: timedelta, late: bool
    ) -> None:
        """The provider's id, the job's own writes, the jobs after it, its end and the final answer: one
        transaction."""
        session = await self._driver.open(self._engine.drivers.users if context.writes else None)
        try:
            if late:
                await run_in_async(session, self._outbox.regain(job))
            if context.writes:
                proof = await run_in_async(session, self._outbox.open_writes())
                with inside(session, self._engine.binding, sync=False) as transaction:
                    await _write(context, session.connection, longest, transaction)
                still = session.in_transaction()
                await run_in_async(session, self._outbox.close_writes(proof, in_transaction=still))
            await run_in_async(session, context.enqueue_next(self._outbox))
            await run_in_async(session, self._outbox.finish(job, answer, context.provider_id))
        except BaseException:
            await session.rollback()
            raise
        try:
            await session.commit()
        except FailedTransaction as error:
            raise WriteFailed(error) from error

    def _record_sync(
        self, job: Job, context: JobContext, answer: Answer | None, late: bool, longest: float
    ) -> None:
        """The same for a sync job, whose writes want a sync connection: they keep it for so long at most."""
        session = self._engine.drivers.sync.open(self._engine.drivers.users if context.writes else None)
        try:
            cast(Lending, session).expire_after(
                longest, lambda: logger.error("The writes of a job took too long")
            )
            if late:
                run_in(session, self._outbox.regain(job))
            if context.writes:
                proof = run_in(session, self._outbox.open_writes())
                with inside(session, self._engine.binding, sync=True) as transaction:
                    for function, args, kwargs in context.writes:
                        try:
                            written = function(session.connection, *args, **kwargs)
                        except Exception as error:
                            raise WriteFailed(error) from error
                        _written(function, written)
                    try:
                        transaction.settle()
                    except Exception as error:
                        raise WriteFailed(error) from error
                still = session.in_transaction()
                run_in(session, self._outbox.close_writes(proof, in_transaction=still))
            run_in(session, context.enqueue_next(self._outbox))
            run_in(session, self._outbox.finish(job, answer, context.provider_id))
        except BaseException:
            session.rollback()
            raise
        try:
            session.commit()
        except FailedTransaction as error:
            raise WriteFailed(error) from error

    async def _failed(self, job: Job, definition: JobDefinition, context: JobContext, sentence: str) -> None:
        """The attempt is over. The provider's id is kept too: something may have been made."""
        error, provider_id = _kept(sentence), context.provider_id
        sentence = "The %s of operation %s failed (attempt %d of %d): %s"
        most = definition.max_attempts
        logger.warning(
            sentence, name_of(job), job.operation_id, job.attempts, most, error, extra=about_job(job)
        )
        if job.attempts >= definition.max_attempts:
            await self.bury(job, error, provider_id)
            return
        pause = _pause_ms(definition.backoff, job.attempts)

        async def once() -> bool:
            return await run_async(
                self._driver,
                lambda: self._outbox.retry(job, pause_ms=pause, error=error, provider_id=provider_id),
            )

        if not await self._patiently(job, once, self._kept_until()):
            await self._note(job, provider_id)


def _check_result(result: Any) -> None:
    """A generator that comes back has not run, and nobody runs it. What the function did before is done, so
    it is not called again."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise NotSerialisable(
            "The function gave a generator, of which nothing has run. Let it do its work and return."
        )


async def _write(
    context: JobContext, connection: Any, longest: timedelta, transaction: SharedTransaction
) -> None:
    """An async job's own writes. One that takes too long may have met a lock, or a connection that nobody
    answers on: it is like one that failed."""
    try:
        async with asyncio.timeout(longest.total_seconds()):
            for function, args, kwargs in context.writes:
                try:
                    written = function(connection, *args, **kwargs)
                    if inspect.isawaitable(written):
                        await written
                except Exception as error:
                    raise WriteFailed(error) from error
            try:
                await transaction.settle_async()
            except Exception as error:
                raise WriteFailed(error) from error
    except TimeoutError:
        late = TimeoutError(f"It took longer than {longest.total_seconds():g} s.")
        raise WriteFailed(late) from None


def _written(function: Any, given: Any) -> None:
    """Where there is no loop, what a write gives cannot be awaited: it would be lost without a word."""
    if inspect.isawaitable(given):
        if inspect.iscoroutine(given):
            given.close()
        raise NotAwaited(function)


def _pause_ms(backoff: Backoff, attempts: int) -> int:
    return backoff.pause_ms(attempts, random.random())  # noqa: S311


def _kept(text: str) -> str:
    """Text as it is logged and stored: bounded, and without what a log or a database cannot hold."""
    return text[:4000].replace("\x00", "�").encode("utf-8", "replace").decode()
