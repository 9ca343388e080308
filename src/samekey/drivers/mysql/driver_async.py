"""MySQL and MariaDB for async code: the sync driver, run in threads of its own.

Short statements, openings and transactions have separate threads. A replay never queues behind handlers; and
who waits for a connection takes no thread from those that have one and want to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.program import Row, Statement
from ..threaded_session import ThreadedSession
from ..threads import Lane
from .driver import PyMySQLDriver, PyMySQLSession


class AsyncPyMySQLDriver:
    """``driver`` for event loops; it may be used by sync code at the same time, which shares its pools."""

    def __init__(self, driver: PyMySQLDriver) -> None:
        self.driver = driver
        size, patience = driver.pool_size, driver.timeout
        self._statements = Lane("samekey-mysql", size, patience)
        self._openings = Lane("samekey-mysql-open", size, patience)
        # Two for each connection: a statement of a cancelled caller may run when its transaction is ended.
        self._transactions = Lane("samekey-mysql-tx", 2 * size, patience)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        return await self._statements.run(lambda: self.driver.execute(statement))

    async def open(self, connection: Any = None) -> ThreadedSession[PyMySQLSession]:
        session = await self._openings.run(
            lambda: self.driver.open(connection), undo=lambda made: made.rollback()
        )
        return ThreadedSession(session, self._transactions)

    async def close(self) -> None:
        for lane in (self._statements, self._openings, self._transactions):
            await lane.close()
