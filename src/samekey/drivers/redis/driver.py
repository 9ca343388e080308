"""Redis and Valkey for sync and async code, through redis-py: one server, or a Cluster.

What to send where, and what a reply means, is in ``plan.py``; here it is sent. Nothing is ever sent
twice: a lost reply is an error, and the runners know what to do about it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from ...core.program import Row, Statement
from ...errors import ConfigurationError
from ..fork import anew_after_fork, leave_to_parent
from ..homes import Homes, end_transport
from .plan import Batch, Planner, Replies, without_asking
from .url import Address, RedisURL


class RedisDriver:
    """``timeout`` bounds every wait: for a connection, for a connect, for the replies of one statement.

    ``beside``: closes what async code has opened, maybe in an event loop that is gone. It goes with ours.
    """

    def __init__(
        self,
        url: RedisURL,
        *,
        pool_size: int = 10,
        timeout: float = 5.0,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        self.planner = Planner(url)
        self._pool_size = pool_size
        self._timeout = timeout
        self._beside = beside
        self._lock = threading.Lock()
        self._clients: dict[Address, redis.Redis] = {}
        anew_after_fork(self)

    def start_anew(self) -> None:
        leave_to_parent(self._clients)
        self.planner = Planner(self.planner.url)
        self._lock, self._clients = threading.Lock(), {}

    def execute(self, statement: Statement) -> Sequence[Row]:
        plan = self.planner.plan(statement)
        try:
            batches = next(plan)
            while True:
                batches = plan.send([self._send(batch) for batch in batches])
        except StopIteration as stop:
            rows: Sequence[Row] = stop.value
            return rows

    def _send(self, batch: Batch) -> Replies:
        client = self._client(batch.server)
        try:
            pipeline: Any = client.pipeline(transaction=False)
            for command in batch.commands:
                pipeline.execute_command(*command)
            return without_asking(batch, pipeline.execute(raise_on_error=False))
        except (redis.RedisError, OSError) as error:
            client.connection_pool.disconnect(inuse_connections=False)
            return error

    def open(self, connection: Any = None) -> NoReturn:
        raise _no_transactions()

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
            client.connection_pool.disconnect()
        self._beside()

    def _client(self, server: Address) -> redis.Redis:
        with self._lock:
            if server not in self._clients:
                options = _options(self.planner.url, self._timeout, Retry(NoBackoff(), 0))
                kind = redis.SSLConnection if options.pop("ssl", False) else redis.Connection
                pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
                    max_connections=self._pool_size,
                    timeout=self._timeout,
                    connection_class=kind,
                    host=server[0],
                    port=server[1],
                    **options,
                )
                self._clients[server] = redis.Redis(connection_pool=pool)
            return self._clients[server]


@dataclass(slots=True)
class _Clients:
    """Those of one event loop."""

    by_server: dict[Address, redis.asyncio.Redis] = field(default_factory=dict)
    farewell: AsyncGenerator[None, None] | None = field(default=None, repr=False)

    def close(self) -> None:
        for connection in self.empty():
            hang_up(connection)

    @property
    def in_use(self) -> bool:
        return any(_pool(client)._in_use_connections for client in self.by_server.values())

    def empty(self) -> list[Any]:
        pools = [_pool(client) for client in self.by_server.values()]
        return [one for pool in pools for one in (*pool._available_connections, *pool._in_use_connections)]


def _pool(client: Any) -> Any:
    return client.connection_pool


def hang_up(connection: Any) -> None:
    """Ends a connection of redis-py's at once, within its event loop."""
    connection._close()


def end_without_loop(connection: Any) -> None:
    """The same where its event loop does not run: by its socket."""
    if connection._writer is not None:
        end_transport(connection._writer.transport, connection._close)
        connection._writer = connection._reader = None


class AsyncRedisDriver:
    """The same for event loops; connections belong to one loop of one process."""

    def __init__(self, url: RedisURL, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self.planner = Planner(url)
        self._pool_size = pool_size
        self._timeout = timeout
        self._homes = Homes(_Clients, hang_up, end_without_loop)
        anew_after_fork(self)

    def start_anew(self) -> None:
        self.planner = Planner(self.planner.url)

    async def execute(self, statement: Statement) -> Sequence[Row]:
        plan = self.planner.plan(statement)
        try:
            batches = next(plan)
            while True:
                if len(batches) == 1:
                    answers = [await self._send(batches[0])]
                else:
                    answers = await asyncio.gather(*(self._send(batch) for batch in batches))
                batches = plan.send(answers)
        except StopIteration as stop:
            rows: Sequence[Row] = stop.value
            return rows

    async def _send(self, batch: Batch) -> Replies:
        client = self._client(batch.server)
        try:
            pipeline = client.pipeline(transaction=False)
            for command in batch.commands:
                pipeline.execute_command(*command)
            return without_asking(batch, await pipeline.execute(raise_on_error=False))
        except (redis.RedisError, OSError) as error:
            await client.connection_pool.disconnect(inuse_connections=False)
            return error

    async def open(self, connection: Any = None) -> NoReturn:
        raise _no_transactions()

    async def close(self) -> None:
        for client in self._homes.here().by_server.values():
            await client.connection_pool.disconnect()
        self._homes.close()

    def close_now(self) -> None:
        """``close`` for sync code: the connections of every event loop of this process."""
        self._homes.close()

    def _client(self, server: Address) -> redis.asyncio.Redis:
        clients = self._homes.here().by_server
        if server not in clients:
            options = _options(self.planner.url, self._timeout, redis.asyncio.retry.Retry(NoBackoff(), 0))
            kind = redis.asyncio.SSLConnection if options.pop("ssl", False) else redis.asyncio.Connection
            pool = redis.asyncio.BlockingConnectionPool(
                max_connections=self._pool_size,
                timeout=self._timeout,
                connection_class=kind,
                host=server[0],
                port=server[1],
                **options,
            )
            clients[server] = redis.asyncio.Redis(connection_pool=pool)
        return clients[server]


def _options(url: RedisURL, timeout: float, retry: Any) -> dict[str, Any]:
    return {
        **{name: value for name, value in url.login.items() if value is not None},
        # WAIT is answered late on purpose.
        "socket_timeout": timeout + (url.wait_seconds if url.wait else 0),
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "protocol": 2,
        "retry": retry,
        "retry_on_error": [],
        "health_check_interval": 0,
    }


def _no_transactions() -> Exception:
    return ConfigurationError(
        "Redis keeps keys only: it has no transaction that a handler's writes could share. Use a "
        "transactional store: SQLite, PostgreSQL or MySQL/MariaDB."
    )
