"""A flow: what the engine does with a store, in order, without doing it.

It is to the engine what a program is to a store: a generator that yields steps (run this program, begin,
commit …), so that sync and async code share one implementation. Two thin shells carry the steps out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, assert_never

from ..core.program import Program
from ..core.record import Record
from ..drivers.caller import leave_if_unwanted
from ..drivers.protocol import AsyncDriver, Driver
from ..drivers.run import run, run_async, run_in, run_in_async
from .breaker import Breaker
from .desk import Desk, Lookup

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
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


Step: TypeAlias = Run | Open | RunIn | Commit | Rollback | Pause | Consult
Flow: TypeAlias = Generator[Step, Any, T]


def ask(factory: Callable[[], Program[T]]) -> Flow[T]:
    result: T = yield Run(factory)
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
        case Run(factory):
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
        case _:
            assert_never(step)


async def drive_async(flow: Flow[T], driver: AsyncDriver, breaker: Breaker) -> T:
    """Carries a flow out with an async driver."""
    try:
        step = next(flow)
        while True:
            try:
                result = await _step_async(step, driver, breaker)
            except BaseException as error:  # the flow decides what it means
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def _step_async(step: Step, driver: AsyncDriver, breaker: Breaker) -> Any:
    if isinstance(step, Open | RunIn | Pause | Consult):
        leave_if_unwanted()  # a program by itself asks before each statement
    match step:
        case Run(factory):
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
        case _:
            assert_never(step)
