"""Drivers whose every step is a point of a run (see ``samekey.testing.crash``).

Each statement, BEGIN, COMMIT and ROLLBACK is reported before and after. The report may raise: a crash,
or a lost connection. Then an open transaction is lost, as it is when a server loses its client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from ..core.program import Row, Statement
from ..drivers.errand import moves
from ..drivers.protocol import AsyncDriver, AsyncSession, Driver, Lending, Session
from ..errors import CommitUncertain, ConnectionLost


class Reach(Protocol):
    """Whatever wants to know where a run is."""

    def reach(self, name: str, *, io: bool) -> None: ...


class WatchedDriver:
    """A driver whose every step is a point."""

    def __init__(self, driver: Driver, points: Reach) -> None:
        self._driver = driver
        self._points = points
        self._sessions: list[_WatchedSession] = []

    def execute(self, statement: Statement) -> Sequence[Row]:
        self._points.reach(f"before {statement.name}", io=True)
        rows = self._driver.execute(statement)
        self._points.reach(f"after {statement.name}", io=True)
        return rows

    def open(self, connection: Any = None) -> Session:
        self._points.reach("before begin", io=True)
        session = _WatchedSession(self._driver.open(connection), self._points)
        self._sessions.append(session)
        session.reach("after begin")
        return session

    def abandon(self) -> None:
        """What the server does when the process is gone: open transactions are rolled back."""
        for session in self._sessions:
            session.abandon()

    def close(self) -> None:
        self.abandon()
        self._driver.close()


class _WatchedSession:
    def __init__(self, session: Session, points: Reach) -> None:
        self._session = session
        self._points = points
        self._open = True

    @property
    def connection(self) -> Any:
        return self._session.connection

    def cut(self) -> None:
        if self._open:
            cast(Lending, self._session).cut()

    def give_up(self) -> None:
        self._open = False
        cast(Lending, self._session).give_up()

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        cast(Lending, self._session).expire_after(seconds, then)

    def wrote(self) -> bool | None:
        return self._session.wrote()

    def sent(self) -> int:
        return cast(Lending, self._session).sent()

    def in_transaction(self) -> bool:
        return self._open and self._session.in_transaction()

    def execute(self, statement: Statement) -> Sequence[Row]:
        _must_be_open(self._open)
        self.reach(f"before {statement.name}")
        rows = self._session.execute(statement)
        self.reach(f"after {statement.name}")
        return rows

    def commit(self) -> None:
        _must_be_open(self._open)
        self.reach("before commit")
        self._open = False
        self._session.commit()
        try:
            self._points.reach("after commit", io=True)
        except ConnectionLost as error:
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error

    def rollback(self) -> None:
        try:
            self.reach("before rollback")
        except ConnectionLost:
            pass  # a rollback never raises; the lost connection has rolled back
        self.abandon()
        try:
            self._points.reach("after rollback", io=True)
        except ConnectionLost:
            pass

    def reach(self, name: str) -> None:
        """A point inside the transaction: a process that dies here takes it along."""
        try:
            self._points.reach(name, io=True)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """What the server does when the connection is gone."""
        if self._open:
            self._open = False
            self._session.rollback()


def _must_be_open(is_open: bool) -> None:
    if not is_open:
        raise ConnectionLost("The connection of this transaction was cut.")


class AsyncWatchedDriver:
    """``WatchedDriver`` for async drivers."""

    def __init__(self, driver: AsyncDriver, points: Reach) -> None:
        self._driver = driver
        self._points = points
        self._sessions: list[_AsyncWatchedSession] = []

    @property
    def moves(self) -> bool:
        return moves(self._driver)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        self._points.reach(f"before {statement.name}", io=True)
        rows = await self._driver.execute(statement)
        self._points.reach(f"after {statement.name}", io=True)
        return rows

    async def open(self, connection: Any = None) -> AsyncSession:
        self._points.reach("before begin", io=True)
        session = _AsyncWatchedSession(await self._driver.open(connection), self._points)
        self._sessions.append(session)
        await session.reach("after begin")
        return session

    async def abandon(self) -> None:
        """What the server does when the process is gone: open transactions are rolled back."""
        for session in self._sessions:
            await session.abandon()

    async def close(self) -> None:
        await self.abandon()
        await self._driver.close()


class _AsyncWatchedSession:
    def __init__(self, session: AsyncSession, points: Reach) -> None:
        self._session = session
        self._points = points
        self._open = True

    @property
    def connection(self) -> Any:
        return self._session.connection

    def cut(self) -> None:
        if self._open:
            cast(Lending, self._session).cut()

    def give_up(self) -> None:
        self._open = False
        cast(Lending, self._session).give_up()

    def expire_after(self, seconds: float, then: Callable[[], None]) -> None:
        cast(Lending, self._session).expire_after(seconds, then)

    def wrote(self) -> bool | None:
        return self._session.wrote()

    def sent(self) -> int:
        return cast(Lending, self._session).sent()

    def in_transaction(self) -> bool:
        return self._open and self._session.in_transaction()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        _must_be_open(self._open)
        await self.reach(f"before {statement.name}")
        rows = await self._session.execute(statement)
        await self.reach(f"after {statement.name}")
        return rows

    async def commit(self) -> None:
        _must_be_open(self._open)
        await self.reach("before commit")
        self._open = False
        await self._session.commit()
        try:
            self._points.reach("after commit", io=True)
        except ConnectionLost as error:
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error

    async def rollback(self) -> None:
        try:
            await self.reach("before rollback")
        except ConnectionLost:
            pass  # a rollback never raises; the lost connection has rolled back
        await self.abandon()
        try:
            self._points.reach("after rollback", io=True)
        except ConnectionLost:
            pass

    async def reach(self, name: str) -> None:
        """A point inside the transaction: a process that dies here takes it along."""
        try:
            self._points.reach(name, io=True)
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """What the server does when the connection is gone."""
        if self._open:
            self._open = False
            await self._session.rollback()
