"""PostgreSQL for async code, through asyncpg.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import asyncpg

from ..core.program import Row, Statement
from ..errors import (
    CommitUncertain,
    ConnectionLost,
    OpenTransaction,
    SamekeyError,
    StoreBusy,
    StoreUnavailable,
)
from .sqlstate import from_sqlstate

T = TypeVar("T")

_CONNECTION_ERRORS = (
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    OSError,
    asyncio.IncompleteReadError,
)


class AsyncpgDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    def __init__(self, url: str, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self._url = url
        self._pool_size = pool_size
        self.timeout = timeout
        self._pools: dict[str, asyncpg.Pool] = {}
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._making = asyncio.Lock()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        pool = await self._pool("statements")
        sql, parameters = statement.render("numeric")
        connection = await self._acquire(pool)
        try:
            rows: Sequence[Row] = await connection.fetch(sql, *parameters, timeout=self.timeout)
            return rows
        except Exception as error:
            translated = translate(error)
            if isinstance(translated, StoreUnavailable):
                # Its siblings died of the same cause; let the pool replace them.
                await pool.expire_connections()
            raise translated from error
        finally:
            await _give_back(pool, connection)

    async def open(self, connection: Any = None) -> AsyncpgSession:
        if connection is not None:
            return await AsyncpgSession.begin(self, connection, pool=None)
        pool = await self._pool("operations")
        held = await self._acquire(pool)
        try:
            return await AsyncpgSession.begin(self, held, pool=pool)
        except SamekeyError as error:
            await _give_back(pool, held)
            if not isinstance(error, StoreUnavailable):
                raise
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            await pool.expire_connections()
            held = await self._acquire(pool)
            return await AsyncpgSession.begin(self, held, pool=pool)

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        if self._home == self._here():
            for pool in pools:
                pool.terminate()

    async def _acquire(self, pool: asyncpg.Pool) -> Any:
        try:
            return await pool.acquire(timeout=self.timeout)
        except TimeoutError as error:
            raise StoreBusy(
                f"No connection was free within {self.timeout:g} s. Does a handler take a second "
                "connection while it holds its own? Retry with the same key."
            ) from error
        except Exception as error:
            translated = translate(error)
            if isinstance(translated, ConnectionLost):
                # There was none to lose, and trying again at once would only take longer.
                raise StoreUnavailable(f"PostgreSQL cannot be reached: {error}") from error
            raise translated from error

    async def _pool(self, name: str) -> asyncpg.Pool:
        here = self._here()
        if self._home != here:
            # Connections belong to one event loop of one process; those of another are left alone.
            self._home, self._pools, self._making = here, {}, asyncio.Lock()
        if name in self._pools:
            return self._pools[name]
        async with self._making:
            if name not in self._pools:
                self._pools[name] = await self._make_pool(name)
            return self._pools[name]

    async def _make_pool(self, name: str) -> asyncpg.Pool:
        try:
            return await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=self._pool_size,
                timeout=self.timeout,
                # Our statements leave no session state behind. A handler's SET must not meet the next
                # caller, who may be another tenant: its connections are reset when they come back.
                reset=_no_reset if name == "statements" else None,
            )
        except Exception as error:
            raise translate(error) from error

    @staticmethod
    def _here() -> tuple[int, asyncio.AbstractEventLoop]:
        return os.getpid(), asyncio.get_running_loop()


class AsyncpgSession:
    """One transaction, opened through asyncpg's own object, so that the handler can nest savepoints."""

    def __init__(
        self, driver: AsyncpgDriver, connection: Any, transaction: Any, pool: asyncpg.Pool | None
    ) -> None:
        self._driver = driver
        self._connection = connection
        self._transaction = transaction
        self._pool = pool

    @classmethod
    async def begin(
        cls, driver: AsyncpgDriver, connection: Any, *, pool: asyncpg.Pool | None
    ) -> AsyncpgSession:
        if connection.is_in_transaction():
            raise OpenTransaction
        # On our own connection the level is ours to say; on the user's it is checked, not overruled.
        isolation = "read_committed" if pool is not None else None
        transaction = connection.transaction(isolation=isolation)
        try:
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
            await asyncio.wait_for(self._transaction.commit(), self._driver.timeout)
        except (TimeoutError, *_CONNECTION_ERRORS) as error:
            await self._abandon()
            raise CommitUncertain(f"The acknowledgement of COMMIT was lost: {error}") from error
        except asyncio.CancelledError:
            await self._abandon()
            raise
        except asyncpg.PostgresError as error:
            # The server answered, and the answer was no (a deferred constraint, say).
            await self._leave()
            translated = translate(error)
            if isinstance(translated, StoreUnavailable):
                raise CommitUncertain(f"COMMIT was cut short: {error}") from error
            raise translated from error
        await self._leave()

    async def rollback(self) -> None:
        try:
            await asyncio.wait_for(self._transaction.rollback(), self._driver.timeout)
        except Exception:
            # Ended already or broken: closing the connection makes the server roll back for certain.
            await self._abandon()
            return
        await self._leave()

    async def _leave(self) -> None:
        if self._pool is None:
            return
        if self._connection.is_in_transaction():
            self._connection.terminate()
        await _give_back(self._pool, self._connection)

    async def _abandon(self) -> None:
        self._connection.terminate()
        await self._leave()


async def _give_back(pool: asyncpg.Pool, connection: Any) -> None:
    try:
        await asyncio.shield(pool.release(connection))
    except (*_CONNECTION_ERRORS, asyncpg.PostgresError):
        connection.terminate()


async def _no_reset(_connection: Any) -> None:
    return None


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
