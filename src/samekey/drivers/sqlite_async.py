"""SQLite for async code: the sync driver, run in threads of its own.

Looks, short writes and transactions have separate threads. A look never queues behind writers, who wait for
SQLite's one write lock; and a transaction that holds that lock can end while writers wait for it. Of the
transactions only one is let at the lock at a time; the others wait in the event loop, where waiting costs no
thread.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

from ..core.program import Row, Statement
from ..errors import StoreBusy
from .sqlite import SQLiteDriver, SQLiteSession
from .threads import Lane, ThreadedSession


class AsyncSQLiteDriver:
    """``driver`` for event loops; it may be used by sync code at the same time."""

    def __init__(self, driver: SQLiteDriver) -> None:
        self.driver = driver
        patience = driver.busy_seconds
        self._looks = Lane("samekey-sqlite-look", 8, patience)
        # More than one, so that short writes go on while one is unlucky at the lock.
        self._writes = Lane("samekey-sqlite-write", 8, patience)
        # The one whose turn it is needs two: a statement of a cancelled caller may run when it is ended.
        self._transactions = Lane("samekey-sqlite-tx", 2, patience)
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def execute(self, statement: Statement) -> Sequence[Row]:
        lane = self._looks if _only_looks(statement) else self._writes
        return await lane.run(lambda: self.driver.execute(statement))

    async def open(self, connection: Any = None) -> ThreadedSession[SQLiteSession]:
        return ThreadedSession(self.driver.open(connection), self._transactions, self._take_turn)

    async def close(self) -> None:
        for lane in (self._looks, self._writes, self._transactions):
            await lane.close()

    async def _take_turn(self) -> asyncio.Lock:
        """The right to be the one transaction of this event loop, until the lock is released."""
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        try:
            async with asyncio.timeout(self.driver.busy_seconds):
                await turn.acquire()
        except TimeoutError:
            raise StoreBusy(
                "Other handlers of this process have held SQLite's write lock for too long. Retry with the "
                "same key."
            ) from None
        return turn


def _only_looks(statement: Statement) -> bool:
    """Our statements that change something begin with what they do; none begins with WITH."""
    return statement.query.sql.startswith("select")
