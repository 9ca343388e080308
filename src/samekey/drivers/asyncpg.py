"""PostgreSQL for async code, through asyncpg.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import asyncpg

from ..core.program import Row, Statement
from ..errors import (
    CommitUncertain,
    ConnectionLost,
    OpenTransaction,
    SamekeyError,
    StoreUnavailable,
)
from .pool import AsyncPool
from .sqlstate import from_sqlstate

_CONNECTION_ERRORS = (
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    OSError,
    asyncio.IncompleteReadError,
)


_RESET = (
    "select pg_advisory_unlock_all(); close all; unlisten *; reset all; reset role; "
    "reset session authorization; discard temp"
)

Connections: TypeAlias = AsyncPool[Any]


class AsyncpgDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(
        self, url: str, *, pool_size: int = 10, timeout: float = 5.0, prepared_statements: bool = True
    ) -> None:
        self._url = url
        self._cache = 100 if prepared_statements else 0
        self._pool_size = pool_size
        self.timeout = timeout
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._made: tuple[Connections, Connections] | None = None

    async def execute(self, statement: Statement) -> Sequence[Row]:
        pool = self._pools()[0]
        sql, parameters = statement.render("numeric")
        connection = await pool.take()
        try:
            rows: Sequence[Row] = await connection.fetch(sql, *parameters, timeout=self.timeout)
            return rows
        except Exception as error:
            translated = translate(error)
            if isinstance(translated, StoreUnavailable):
                # Its siblings died of the same cause.
                pool.drop_idle()
            raise translated from error
        finally:
            pool.give_back(connection)

    async def open(self, connection: Any = None) -> AsyncpgSession:
        if connection is not None:
            return await AsyncpgSession.begin(self, connection, pool=None)
        pool = self._pools()[1]
        try:
            return await self._open(pool)
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            pool.drop_idle()
            return await self._open(pool)

    async def _open(self, pool: Connections) -> AsyncpgSession:
        held = await pool.take()
        try:
            return await AsyncpgSession.begin(self, held, pool=pool)
        except BaseException:
            pool.give_back(held)
            raise

    async def close(self) -> None:
        pools, self._made = self._made or (), None
        if self._home == self._here():
            for pool in pools:
                pool.drop_idle()

    def _pools(self) -> tuple[Connections, Connections]:
        """For short statements of ours, and for handlers that hold a connection."""
        here = self._here()
        if self._made is None or self._home != here:
            # Connections belong to one event loop of one process; those of another are left alone.
            self._home = here
            self._made = (self._make_pool(), self._make_pool())
        return self._made

    def _make_pool(self) -> Connections:
        return AsyncPool(
            self._connect,
            asyncpg.Connection.terminate,
            size=self._pool_size,
            timeout=self.timeout,
            usable=_usable,
        )

    async def _connect(self) -> asyncpg.Connection:
        try:
            return await asyncpg.connect(self._url, timeout=self.timeout, statement_cache_size=self._cache)
        except Exception as error:
            translated = translate(error)
            if isinstance(translated, StoreUnavailable):
                # Not a lost connection: there was none, and trying again at once would only take longer.
                raise StoreUnavailable(f"PostgreSQL cannot be reached: {error}") from error
            raise translated from error

    @staticmethod
    def _here() -> tuple[int, asyncio.AbstractEventLoop]:
        return os.getpid(), asyncio.get_running_loop()


class AsyncpgSession:
    """One transaction, opened through asyncpg's own object, so that the handler can nest savepoints."""

    def __init__(
        self, driver: AsyncpgDriver, connection: Any, transaction: Any, pool: Connections | None
    ) -> None:
        self._driver = driver
        self._connection = connection
        self._transaction = transaction
        self._pool = pool

    @classmethod
    async def begin(
        cls, driver: AsyncpgDriver, connection: Any, *, pool: Connections | None
    ) -> AsyncpgSession:
        if connection.is_closed():
            raise ConnectionLost("The connection that was given for atomic work is closed.")
        if connection.is_in_transaction():
            raise OpenTransaction
        # On our own connection the level is ours to say; on the user's it is checked, not overruled.
        isolation = "read_committed" if pool is not None else None
        try:
            transaction = connection.transaction(isolation=isolation)
            await transaction.start()
        except Exception as error:
            raise translate(error) from error
        return cls(driver, connection, transaction, pool)

    @property
    def connection(self) -> Any:
        return self._connection

    def wrote(self) -> None:
        return None

    def in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def execute(self, statement: Statement) -> Sequence[Row]:
        sql, parameters = statement.render("numeric")
        try:
            rows: Sequence[Row] = await self._connection.fetch(
                sql, *parameters, timeout=self._driver.timeout, record_class=asyncpg.Record
            )
            return rows
        except Exception as error:
            raise translate(error) from error

    async def commit(self) -> None:
        try:
            async with asyncio.timeout(self._driver.timeout):
                await self._transaction.commit()
        except (TimeoutError, *_CONNECTION_ERRORS) as error:
            self._abandon()
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
        except asyncpg.PostgresError as error:
            # The server answered, and the answer was no (a deferred constraint, say).
            await self._leave()
            translated = translate(error)
            if isinstance(translated, StoreUnavailable):
                raise CommitUncertain(f"COMMIT was cut short: {error}") from error
            raise translated from error
        except BaseException:
            self._abandon()
            raise
        await self._leave()

    async def rollback(self) -> None:
        try:
            async with asyncio.timeout(self._driver.timeout):
                await self._transaction.rollback()
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            self._abandon()
            return
        await self._leave()

    async def _leave(self) -> None:
        if self._pool is None:
            return
        try:
            # What a handler set must not meet the next caller, who may be another tenant.
            await self._connection.execute(_RESET, timeout=self._driver.timeout)
        except Exception:
            self._connection.terminate()
        self._pool.give_back(self._connection)

    def _abandon(self) -> None:
        self._connection.terminate()
        if self._pool is not None:
            self._pool.give_back(self._connection)


def _usable(connection: Any) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return not connection.is_closed() and not connection.is_in_transaction()


def translate(error: Exception) -> Exception:
    """A driver's error as one of ours; anything that is not about the database stays what it is."""
    if isinstance(error, SamekeyError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return from_sqlstate(error.sqlstate, str(error))
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL did not answer in time.")
    if isinstance(error, _CONNECTION_ERRORS):
        return from_sqlstate(None, str(error) or type(error).__name__)
    return error
