"""A flow: what the engine does with a store, in order, without doing it.

It is to the engine what a program is to a store: a generator that yields steps (run this program, begin,
commit …), so that sync and async code share one implementation. Two thin shells carry the steps out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, assert_never

from ..core.program import Program
from ..core.record import Record
from ..drivers.caller import Caller, leave_if_unwanted
from ..drivers.protocol import AsyncDriver, Driver
from ..drivers.run import run, run_async, run_in, run_in_async
from ..drivers.threads import Lane
from .breaker import Breaker
from .evidence.desk import Desk, Lookup

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program by itself."""

    factory: Callable[[], Program[Any]]


@dataclass(frozen=True, slots=True)
class Open:
    """Open a transaction, on the given connection or on one of ours."""

    connection: Any


@dataclass(frozen=True, slots=True)
class RunIn:
    """Run a program inside an open transaction."""

    session: Any
    program: Program[Any]


@dataclass(frozen=True, slots=True)
class Commit:
    session: Any


@dataclass(frozen=True, slots=True)
class Rollback:
    session: Any


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, holding nothing."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Consult:
    """Ask a user's lookup about a record, holding nothing. ``LookupFailed`` where it gives no finding."""

    lookup: Lookup
    record: Record
    desk: Desk


@dataclass(frozen=True, slots=True)
class Ponder:
    """Compute something that may take longer than an event loop may be held up."""

    work: Callable[[], Any]
    lane: Lane


Step: TypeAlias = RunProgram | Open | RunIn | Commit | Rollback | Pause | Consult | Ponder
Flow: TypeAlias = Generator[Step, Any, T]


def ask(factory: Callable[[], Program[T]]) -> Flow[T]:
    result: T = yield RunProgram(factory)
    return result


def ask_in(session: Any, program: Program[T]) -> Flow[T]:
    result: T = yield RunIn(session, program)
    return result


def drive(flow: Flow[T], driver: Driver, breaker: Breaker) -> T:
    """Carries a flow out with a sync driver."""
    try:
        step = next(flow)
        while True:
            try:
                result = _step(step, driver, breaker)
            except BaseException as error:  # the flow decides what it means
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _step(step: Step, driver: Driver, breaker: Breaker) -> Any:
    match step:
        case RunProgram(factory):
            with breaker:
                return run(driver, factory)
        case Open(connection):
            with breaker:
                return driver.open(connection)
        case RunIn(session, program):
            return run_in(session, program)
        case Commit(session):
            return session.commit()
        case Rollback(session):
            return session.rollback()
        case Pause(seconds):
            return time.sleep(seconds)
        case Consult(lookup, record, desk):
            return desk.ask(lookup, record)
        case Ponder(work, _):
            return work()
        case _:
            assert_never(step)


class Elsewhere(BaseException):
    """A thread has taken the flow from its event loop, which had stopped, and has come back since."""


class Course(Generic[T]):
    """A flow that an event loop carries. Once the loop has stopped, a thread may take it from there
    (``stranded.py``): there is always one who has it."""

    def __init__(self, flow: Flow[T]) -> None:
        self.flow = flow
        self.loop = asyncio.get_running_loop()
        self.step: Step | None = None
        """What is being carried out; None before the first one."""
        self.ended: T | None = None
        """What it came to, for a flow that ends with something in its hands."""
        self.caller: Caller | None = None
        """For a flow that takes something for a caller: whether that one has gone."""
        self.let_go: Callable[[T], None] | None = None
        """Gives back what such a flow ended with, without an event loop."""
        self._lock = threading.Lock()
        self._over = False
        self._elsewhere: Future[T] | None = None

    def move(self, result: Any, thrown: BaseException | None = None) -> Step:
        """One move of the flow, in its event loop: with what its last step came to."""
        with self._lock:
            if self._elsewhere is not None:
                raise Elsewhere
            try:
                self.step = self.flow.send(result) if thrown is None else self.flow.throw(thrown)
            except StopIteration as stop:
                self._over, self.ended = True, stop.value
                raise
            except BaseException:
                self._over = True
                raise
            return self.step

    def take(self) -> Future[T] | None:
        """For a thread, which owes what it comes to; None if it is over, or a thread has it."""
        with self._lock:
            if self._over or self._elsewhere is not None:
                return None
            self._elsewhere = Future()
            self._elsewhere.set_running_or_notify_cancel()
            return self._elsewhere

    async def result(self) -> T:
        """What it comes to elsewhere."""
        assert self._elsewhere is not None
        return await asyncio.wrap_future(self._elsewhere)


async def drive_async(course: Course[T], driver: AsyncDriver, breaker: Breaker) -> T:
    """Carries a flow out with an async driver."""
    try:
        step = course.move(None)
        while True:
            try:
                result = await _step_async(step, driver, breaker)
            except BaseException as error:  # the flow decides what it means
                step = course.move(None, error)
            else:
                step = _sent(course, step, result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except Elsewhere as elsewhere:
        if isinstance(elsewhere.__context__, GeneratorExit):
            raise elsewhere.__context__ from None  # nobody waits for it here
        return await course.result()


def _sent(course: Course[Any], step: Step, result: Any) -> Step:
    try:
        return course.move(result)
    except Elsewhere:
        if isinstance(step, Open):
            result.give_up()  # nobody else knows of it
        raise


async def _step_async(step: Step, driver: AsyncDriver, breaker: Breaker) -> Any:
    if isinstance(step, Open | RunIn | Pause | Consult | Ponder):
        leave_if_unwanted()  # a program by itself asks before each statement
    match step:
        case RunProgram(factory):
            with breaker:
                return await run_async(driver, factory)
        case Open(connection):
            with breaker:
                return await driver.open(connection)
        case RunIn(session, program):
            return await run_in_async(session, program)
        case Commit(session):
            return await session.commit()
        case Rollback(session):
            return await session.rollback()
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case Consult(lookup, record, desk):
            return await desk.ask_async(lookup, record)
        case Ponder(work, lane):
            return await lane.run(work)
        case _:
            assert_never(step)
