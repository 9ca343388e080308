"""SQLite for async code: the sync driver, run in threads of its own.

Looks, short writes and transactions have separate threads. A look never queues behind writers, who wait for
SQLite's one write lock; and a transaction that holds that lock can end while writers wait for it. Of the
transactions only one is let at the lock at a time, in all event loops together; the others wait in their
loop, where waiting costs no thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.program import Row, Statement
from ..places import NoPlace
from ..threaded_session import ThreadedSession
from ..threads import Lane
from ..turn import Turn
from .driver import SQLiteDriver, SQLiteSession


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
        self._turn = Turn()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        lane = self._looks if _only_looks(statement) else self._writes
        return await lane.run(lambda: self.driver.execute(statement))

    async def open(self, connection: Any = None) -> ThreadedSession[SQLiteSession]:
        return ThreadedSession(self.driver.open(connection), self._transactions, self._take_turn)

    async def close(self) -> None:
        for lane in (self._looks, self._writes, self._transactions):
            await lane.close()

    async def _take_turn(self) -> Turn:
        """The right to be the one transaction of this process, until it is given back."""
        try:
            await self._turn.take(self.driver.busy_seconds)
        except TimeoutError:
            raise NoPlace(
                "Other handlers of this process have held SQLite's write lock for too long. Retry with the "
                "same key."
            ) from None
        return self._turn


def _only_looks(statement: Statement) -> bool:
    """Our statements that change something begin with what they do; none begins with WITH."""
    return statement.query.sql.startswith("select")
