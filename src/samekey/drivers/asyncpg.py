"""PostgreSQL for async code, through asyncpg.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.

What takes too long is ended by closing the connection, never by a cancel request. A COMMIT that waits for a
synchronous standby would take that for permission to go on without it, and the record could be seen, and
answered from, before a failover takes it away again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, TargetServerAttributeNotMatched

from ..core.program import Row, Statement
from ..errors import (
    CommitUncertain,
    ConfigurationError,
    ConnectionLost,
    OpenTransaction,
    ReadOnlyStore,
    SamekeyError,
    StoreUnavailable,
)
from .pool import AsyncPool
from .sqlstate import OLDEST_SERVER, from_sqlstate, is_standby, servers_of, too_old, unreachable

T = TypeVar("T")

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
        self._servers = servers_of(url)
        self._cache: int | None = None if prepared_statements else 0
        """How many statements a connection keeps prepared; None until we know that no pooler is between."""
        self._pool_size = pool_size
        self.timeout = timeout
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._made: tuple[Connections, Connections] | None = None
        self._asking = asyncio.Lock()

    async def execute(self, statement: Statement) -> Sequence[Row]:
        pool = self._pools()[0]
        sql, parameters = statement.render("numeric")
        connection = await pool.take()
        try:
            with _bounded(connection, self.timeout):
                rows: Sequence[Row] = await connection.fetch(sql, *parameters)
            return rows
        except Exception as error:
            translated = translate(error)
            if isinstance(translated, StoreUnavailable):
                # Its siblings died of the same cause, or are connected to the same standby.
                pool.drop_idle()
            if isinstance(translated, ReadOnlyStore):
                connection.terminate()
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
            self._asking = asyncio.Lock()
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
        if self._cache is None:
            async with self._asking:  # one asks, and the others of a crowd wait for its answer
                if self._cache is None:
                    self._cache = 100 if await self._is_direct() else 0
        return await self._reach(self._cache)

    async def _is_direct(self) -> bool:
        """Whether no pooler is in between.

        Prepared statements belong to a server's session, and a pooler may change that under us: then the name
        of one of ours may stand for a statement of somebody else's.
        """
        probe = await self._reach(0)
        try:
            with _bounded(probe, self.timeout):
                return bool(await probe.fetchval("select pg_backend_pid()") == probe.get_server_pid())
        except Exception as error:
            raise translate(error) from error
        finally:
            probe.terminate()

    async def _reach(self, cache: int) -> asyncpg.Connection:
        """A connection to the first server that can be written to; the one that was it last is asked first.

        One by one, each with a time of its own: a server that is gone without a word must not use up the
        time of the one that took its place.
        """
        failed: StoreUnavailable | None = None
        for server in list(self._servers):
            try:
                connection = await asyncpg.connect(
                    self._url, timeout=self.timeout, statement_cache_size=cache, **server
                )
                await self._check(connection)
            except Exception as error:
                translated = _no_connection(error)
                if not isinstance(translated, StoreUnavailable):
                    raise translated from error
                failed = translated
                failed.__cause__ = error
                continue
            self._servers.sort(key=lambda other: other is not server)
            return connection
        assert failed is not None
        raise failed

    async def _check(self, connection: asyncpg.Connection) -> None:
        """Refuses a server that cannot carry us. What it says of itself costs no round trip."""
        version = connection.get_server_version()
        problem: SamekeyError | None = None
        if version.major < OLDEST_SERVER:
            problem = too_old(f"{version.major}.{version.minor}")
        elif getattr(connection.get_settings(), "in_hot_standby", "off") == "on":
            # A pooler may remember this from before the standby was promoted.
            with _bounded(connection, self.timeout):
                if await connection.fetchval("select pg_is_in_recovery()"):
                    problem = is_standby()
        if problem is not None:
            connection.terminate()
            raise problem

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
            with _bounded(connection, driver.timeout if pool is not None else None):
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
            with _bounded(self._connection, self._driver.timeout):
                rows: Sequence[Row] = await self._connection.fetch(
                    sql, *parameters, record_class=asyncpg.Record
                )
            return rows
        except Exception as error:
            raise translate(error) from error

    async def commit(self) -> None:
        try:
            with _bounded(self._connection, self._driver.timeout):
                await _uncancelled(self._transaction.commit(), self._connection.terminate)
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
            with _bounded(self._connection, self._driver.timeout):
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
            with _bounded(self._connection, self._driver.timeout):
                await self._connection.execute(_RESET)
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


@contextmanager
def _bounded(connection: Any, seconds: float | None) -> Iterator[None]:
    """Closes the connection if what is done on it takes longer."""
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()
    late = False

    def give_up() -> None:
        nonlocal late
        late = True
        connection.terminate()

    timer = loop.call_later(seconds, give_up)
    try:
        yield
    except Exception as error:
        if late:
            raise TimeoutError("the server did not answer in time") from error
        raise
    finally:
        timer.cancel()


async def _uncancelled(work: Awaitable[T], give_up: Callable[[], None]) -> T:
    """Awaits something that must not hear of our own cancellation as a cancel request to the server."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            give_up()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is told that it was not
        raise


def _no_connection(error: Exception) -> Exception:
    """Why a connection could not be had, as one of our errors."""
    if isinstance(error, SamekeyError):
        return error
    if isinstance(error, ClientConfigurationError) and not isinstance(error, TargetServerAttributeNotMatched):
        return ConfigurationError(f"The PostgreSQL URL cannot be used: {error}")
    if isinstance(error, asyncpg.PostgresError):
        return unreachable(error.sqlstate, _words(error))
    if isinstance(error, TimeoutError):
        return unreachable(None, "it did not answer in time")
    if isinstance(error, TargetServerAttributeNotMatched):
        return unreachable(None, "the server is read-only")
    if isinstance(error, _CONNECTION_ERRORS):
        return unreachable(None, str(error) or type(error).__name__)
    return error


def _words(error: asyncpg.PostgresError) -> str:
    """The message without detail and hint: those quote values, and advise on asyncpg instead of on us."""
    return str(error.args[0]) if error.args else type(error).__name__


def translate(error: Exception) -> Exception:
    """A driver's error as one of ours; anything that is not about the database stays what it is."""
    if isinstance(error, SamekeyError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return from_sqlstate(error.sqlstate, _words(error))
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL did not answer in time.")
    if isinstance(error, _CONNECTION_ERRORS):
        return from_sqlstate(None, str(error) or type(error).__name__)
    return error
