"""Async work on SQLite that is cancelled: whatever its thread was doing, the write lock comes free again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samekey.drivers.sqlite.driver import SQLiteDriver, SQLiteSession
from samekey.drivers.sqlite.driver_async import AsyncSQLiteDriver
from samekey.drivers.threaded_session import ThreadedSession
from samekey.errors import OperationOver


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "x.db")
    with sqlite3.connect(found) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (a)")
    connection.close()
    return found


@pytest.fixture
def writer(path: str) -> Iterator[sqlite3.Connection]:
    """Somebody else, who holds the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("begin immediate")
    yield connection
    connection.close()


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a session is about to wait for the write lock."""
    reached, real = threading.Event(), SQLiteSession._begin

    def begin(session: SQLiteSession) -> Any:
        reached.set()
        return real(session)

    monkeypatch.setattr(SQLiteSession, "_begin", begin)
    return reached


async def cancelled(session: ThreadedSession[SQLiteSession], begins: threading.Event) -> None:
    """A handler that is cancelled while its first statement waits to begin."""
    task = asyncio.ensure_future(session.connection.execute("insert into t values (1)"))
    await asyncio.to_thread(begins.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def is_free(path: str) -> bool:
    with sqlite3.connect(path, timeout=0) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.rollback()
    connection.close()
    return True


def test_a_statement_left_behind_does_not_keep_the_write_lock(
    path: str, writer: sqlite3.Connection, begins: threading.Event
) -> None:
    async def story() -> None:
        driver = AsyncSQLiteDriver(SQLiteDriver(path, busy_seconds=60))
        session = await driver.open()
        await cancelled(session, begins)
        rolling_back = asyncio.ensure_future(session.rollback())
        await asyncio.sleep(0)
        writer.execute("commit")
        await rolling_back
        assert is_free(path)
        # The same process goes on: nobody sits on its turn either.
        again = await driver.open()
        await again.connection.execute("insert into t values (2)")
        await again.commit()
        await driver.close()
        driver.driver.close()

    asyncio.run(story())
    assert writer.execute("select a from t").fetchall() == [(2,)]


def test_a_rollback_that_is_cancelled_too_is_done_all_the_same(
    path: str, writer: sqlite3.Connection, begins: threading.Event
) -> None:
    async def story() -> None:
        driver = AsyncSQLiteDriver(SQLiteDriver(path, busy_seconds=60))
        session = await driver.open()
        await cancelled(session, begins)
        rolling_back = asyncio.ensure_future(session.rollback())
        await asyncio.sleep(0)
        rolling_back.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rolling_back
        writer.execute("commit")
        await driver.close()  # waits for what its threads are doing
        assert is_free(path)
        driver.driver.close()

    asyncio.run(story())


def test_nothing_begins_once_it_is_over(path: str) -> None:
    driver = SQLiteDriver(path)
    for end in (SQLiteSession.commit, SQLiteSession.rollback):
        session = driver.open()
        end(session)
        with pytest.raises(OperationOver, match="is over"):
            session.connection.execute("insert into t values (3)")
        assert is_free(path)
    driver.close()
