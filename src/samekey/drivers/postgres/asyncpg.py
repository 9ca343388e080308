"""PostgreSQL for async code, through asyncpg.

Two pools: short statements of ours never queue behind atomic handlers that hold a connection.

What takes too long is ended by closing the connection, never by a cancel request. A COMMIT that waits for a
synchronous standby would take that for permission to go on without it, and the record could be seen, and
answered from, before a failover takes it away again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, TargetServerAttributeNotMatched

from ...core.program import Row, Statement
from ...errors import (
    ConfigurationError,
    ConnectionLost,
    ReadOnlyStore,
    SamekeyError,
    StoreUnavailable,
    StoreUnreachable,
)
from ..homes import Homes, Pools, end_without_loop
from ..pool import AsyncPool
from ..protocol import LATE, SHORT, Ready
from ..spelled import Prepared
from .asyncpg_bounds import bounded
from .asyncpg_session import CONNECTION_ERRORS, AsyncpgSession, translate, words_of
from .sqlstate import OLDEST_SERVER, is_standby, servers_of, too_old, unreachable


class AsyncpgDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for one statement of ours."""

    moves = True

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        timeout: float = 5.0,
        prepared_statements: bool = True,
        ready: Ready | None = None,
    ) -> None:
        self._url = url
        self._ready = ready
        self._servers = servers_of(url)
        self._cache: int | None = None if prepared_statements else 0
        """How many statements a connection keeps prepared; None until we know that no pooler is between."""
        self._prepared = Prepared()
        self._pool_size = pool_size
        self.timeout = timeout
        self._homes = Homes(self._make_home, asyncpg.Connection.terminate, end_without_loop)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        pool = self._homes.here().statements
        sql, parameters = statement.render("numeric")
        connection = await pool.take()
        try:
            with bounded(connection, self.timeout):
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
        pool = self._homes.here().operations
        late, short = connection is LATE, connection is SHORT
        if connection is not None and not late and not short:
            return await AsyncpgSession.begin(connection, bound=self.timeout, pool=None)
        try:
            return await self._open(pool, late, short)
        except ConnectionLost:
            # The pooled connection had died unseen. Nothing was done on it: try a fresh one.
            pool.drop_idle()
            return await self._open(pool, late, short)

    async def _open(self, pool: AsyncPool[Any], late: bool, short: bool) -> AsyncpgSession:
        held = await self._take(pool)
        if late:
            prepared = self._prepared if self._cache else None
            return AsyncpgSession(
                held, bound=self.timeout, pool=pool, prepared=prepared, another=lambda: self._take(pool)
            )
        try:
            return await AsyncpgSession.begin(held, bound=self.timeout, pool=pool, short=short)
        except BaseException:
            pool.give_back(held)
            raise

    async def _take(self, pool: AsyncPool[Any]) -> Any:
        held = await pool.take()
        try:
            if self._ready is not None:
                with bounded(held, self.timeout):
                    # A task, because it is the user's own code.
                    await asyncio.ensure_future(self._ready.ready_async(held))
        except BaseException:
            pool.give_back(held)
            raise
        return held

    async def close(self) -> None:
        self._homes.close()

    def close_now(self) -> None:
        """``close`` for sync code: the connections of every event loop of this process."""
        self._homes.close()

    def _make_home(self) -> Pools:
        asking = asyncio.Lock()

        def pool() -> AsyncPool[Any]:
            return AsyncPool(
                lambda: self._connect(asking),
                asyncpg.Connection.terminate,
                size=self._pool_size,
                timeout=self.timeout,
                usable=_usable,
            )

        return Pools(pool(), pool())

    async def _connect(self, asking: asyncio.Lock) -> asyncpg.Connection:
        if self._cache is None:
            await self._wait_for(asking)  # one asks, and the others of a crowd wait for its answer
            try:
                if self._cache is None:
                    self._cache = 100 if await self._is_direct() else 0
            finally:
                asking.release()
        return await self._reach(self._cache)

    async def _wait_for(self, asking: asyncio.Lock) -> None:
        """A server that says nothing says it to one after the other: nobody waits for all of them."""
        try:
            async with asyncio.timeout(self.timeout):
                await asking.acquire()
        except TimeoutError:
            raise StoreUnreachable("PostgreSQL cannot be reached: it did not answer in time.") from None

    async def _is_direct(self) -> bool:
        """Whether no pooler is in between.

        Prepared statements belong to a server's session, and a pooler may change that under us: then the name
        of one of ours may stand for a statement of somebody else's.
        """
        probe = await self._reach(0)
        try:
            with bounded(probe, self.timeout):
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
                try:
                    await self._check(connection)
                except BaseException:
                    connection.terminate()
                    raise
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
            with bounded(connection, self.timeout):
                if await connection.fetchval("select pg_is_in_recovery()"):
                    problem = is_standby()
        if problem is not None:
            raise problem


def _usable(connection: Any) -> bool:
    """Open and idle. Whatever was left in another state is not worth mending."""
    return not connection.is_closed() and not connection.is_in_transaction()


def _no_connection(error: Exception) -> Exception:
    """Why a connection could not be had, as one of our errors."""
    if isinstance(error, SamekeyError):
        return error
    if isinstance(error, ClientConfigurationError) and not isinstance(error, TargetServerAttributeNotMatched):
        return ConfigurationError(f"The PostgreSQL URL cannot be used: {error}")
    if isinstance(error, asyncpg.PostgresError):
        return unreachable(error.sqlstate, words_of(error))
    if isinstance(error, TimeoutError):
        return unreachable(None, "it did not answer in time")
    if isinstance(error, TargetServerAttributeNotMatched):
        return unreachable(None, "the server is read-only")
    if isinstance(error, CONNECTION_ERRORS):
        return unreachable(None, str(error) or type(error).__name__)
    return error
