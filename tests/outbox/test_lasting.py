"""A write of a job's own that fails: tried again where that can help, and not where it cannot."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest

from samekey import JobContext
from samekey.errors import CommitRefused, StoreBusy
from samekey.workers import performing
from samekey.workers.lasting import will_last
from tests.outbox.world import NO_PAUSE, Outbox


def of_sqlite(statement: str) -> sqlite3.Error:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("create table t (n integer primary key)")
        connection.execute("insert into t values (1)")
        connection.execute(statement)
    except sqlite3.Error as error:
        return error
    finally:
        connection.close()
    raise AssertionError("no error")


def locked() -> sqlite3.Error:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


class Wrapped(Exception):
    """As SQLAlchemy wraps what a driver raised."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__("(wrapped)")
        self.orig = orig


@pytest.mark.parametrize(
    "error",
    [
        of_sqlite("insert into t values (1)"),
        of_sqlite("insert into nowhere values (1)"),
        psycopg.errors.UniqueViolation(),
        psycopg.errors.UndefinedTable(),
        psycopg.errors.NumericValueOutOfRange(),
        pymysql.err.IntegrityError(1062, "Duplicate entry"),
        pymysql.err.ProgrammingError(1146, "no such table"),
        Wrapped(psycopg.errors.CheckViolation()),
        CommitRefused("no"),
        KeyError("amount"),
        TypeError("NoneType"),
    ],
    ids=repr,
)
def test_what_the_database_refuses_lasts(error: BaseException) -> None:
    assert will_last(performing.WriteFailed(error)) is False, "of itself it says nothing"
    assert will_last(_caused(error))


@pytest.mark.parametrize(
    "error",
    [
        locked(),
        psycopg.errors.DeadlockDetected(),
        psycopg.errors.SerializationFailure(),
        psycopg.errors.LockNotAvailable(),
        psycopg.errors.AdminShutdown(),
        psycopg.OperationalError("the connection is lost"),
        pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
        pymysql.err.OperationalError(2013, "Lost connection"),
        Wrapped(psycopg.errors.DeadlockDetected()),
        ConnectionResetError(),
        TimeoutError(),
        StoreBusy("locked"),
        RuntimeError("who knows"),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(error: BaseException) -> None:
    assert not will_last(_caused(error))


def test_a_mistake_that_came_of_a_lock_may_pass() -> None:
    mistake = KeyError("row")
    mistake.__cause__ = psycopg.errors.LockNotAvailable()
    assert not will_last(mistake)


def _caused(error: BaseException) -> BaseException:
    failed = performing.WriteFailed(error)
    failed.__cause__ = error
    return failed


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_an_attempt_whose_write_is_refused_ends_at_once(
    outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hold its place for as long as a lock would be waited for."""
    tries: list[int] = []

    async def no_pause(seconds: float) -> None:
        raise AssertionError(f"It waited for {seconds} s.")

    def write(_connection: Any) -> None:
        tries.append(1)
        raise KeyError("amount")

    def job_sync(job: JobContext, _: Any) -> None:
        job.write(write)

    async def job_async(job: JobContext, _: Any) -> None:
        job.write(write)

    outbox.idempotency.job("job", max_attempts=2, backoff=NO_PAUSE)(
        job_async if kind == "async" else job_sync
    )
    outbox.place("job")
    monkeypatch.setattr("samekey.workers.performing.asyncio.sleep", no_pause)
    try:
        outbox.work(rounds=2)
    finally:
        monkeypatch.undo()
    assert asyncio.sleep is not no_pause
    row = outbox.job()
    assert (row.state, row.attempts, tries) == ("dead", 2, [1, 1])
    assert "amount" in (row.error or "")
