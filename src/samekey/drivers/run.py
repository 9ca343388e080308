"""The runners: they carry a program's statements to a driver and the rows back.

``run`` gives a program its own transaction if it asks for one; ``run_in`` runs it inside the caller's.
Both throw database errors into the program and close it at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..core.program import Begin, Program, Row
from ..errors import ConnectionLost, StoreError, TransactionConflict
from .caller import NotSent, leave_if_unwanted
from .protocol import SHORT, AsyncDriver, AsyncSession, Driver, Session

T = TypeVar("T")

ATTEMPTS = 3
"""A conflict or a dead pooled connection is worth a second try and a third; more would hide an outage."""


def run(driver: Driver, factory: Callable[[], Program[T]]) -> T:
    """Runs a program; makes it anew after a serialization failure or a lost connection.

    That is safe because every program compares attempt ids: one whose first try landed without an
    acknowledgement recognises its own work.
    """
    lost: ConnectionLost | None = None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _run_once(driver, factory())
        except StoreError as error:
            lost = _lost(lost, error)
            if not _again(error, attempt):
                _raise_lost(lost, error)
                raise
    raise AssertionError("unreachable")


def _lost(before: ConnectionLost | None, error: BaseException) -> ConnectionLost | None:
    """The first try that may have been carried out though nobody heard of it."""
    return before or (error if isinstance(error, ConnectionLost) else None)


def _again(error: BaseException, attempt: int) -> bool:
    return isinstance(error, TransactionConflict | ConnectionLost) and attempt < ATTEMPTS


def _raise_lost(lost: ConnectionLost | None, error: BaseException) -> None:
    """What is known of the last try (busy, read-only, not sent) says nothing about the one that was lost."""
    if lost is not None and not isinstance(error, ConnectionLost):
        raise lost from error


def _run_once(driver: Driver, program: Program[T]) -> T:
    session: Session | None = None
    try:
        request = next(program)
        while True:
            try:
                if isinstance(request, Begin):
                    # A program made of others begins once.
                    session = session or driver.open(SHORT)
                    rows: Sequence[Row] = ()
                else:
                    rows = (session or driver).execute(request)
            except StoreError as error:
                request = program.throw(error)
            else:
                request = program.send(rows)
    except StopIteration as stop:
        if session is not None:
            session.commit()
        result: T = stop.value
        return result
    except BaseException:
        if session is not None:
            session.rollback()
        raise
    finally:
        program.close()


def run_in(session: Session, program: Program[T]) -> T:
    """Runs a program inside a transaction that is not ours to end. Never begins, commits or retries."""
    try:
        request = next(program)
        while True:
            if isinstance(request, Begin):
                request = program.send(())
                continue
            try:
                rows = session.execute(request)
            except StoreError as error:
                request = program.throw(error)
            else:
                request = program.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        program.close()


async def run_async(driver: AsyncDriver, factory: Callable[[], Program[T]]) -> T:
    """``run`` for async drivers."""
    lost: ConnectionLost | None = None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _run_once_async(driver, factory())
        except (StoreError, NotSent) as error:
            lost = _lost(lost, error)
            if not _again(error, attempt):
                _raise_lost(lost, error)
                raise
    raise AssertionError("unreachable")


async def _run_once_async(driver: AsyncDriver, program: Program[T]) -> T:
    session: AsyncSession | None = None
    try:
        request = next(program)
        while True:
            try:
                leave_if_unwanted()
                if isinstance(request, Begin):
                    # A program made of others begins once.
                    session = session or await driver.open(SHORT)
                    rows: Sequence[Row] = ()
                else:
                    rows = await (session or driver).execute(request)
            except StoreError as error:
                request = program.throw(error)
            else:
                request = program.send(rows)
    except StopIteration as stop:
        if session is not None:
            await session.commit()
        result: T = stop.value
        return result
    except BaseException:
        if session is not None:
            await session.rollback()
        raise
    finally:
        program.close()


async def run_in_async(session: AsyncSession, program: Program[T]) -> T:
    """``run_in`` for async drivers."""
    try:
        request = next(program)
        while True:
            if isinstance(request, Begin):
                request = program.send(())
                continue
            try:
                rows = await session.execute(request)
            except StoreError as error:
                request = program.throw(error)
            else:
                request = program.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        program.close()
