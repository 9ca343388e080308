"""The way to a Redis that is a cache: quick questions that may fail, and an operator's acts that may not.

A question is not repeated, and whatever goes wrong is one thing: there was no reply. After a few failures in
a row the breaker leaves the cache alone for a while. An operator's act is repeated once: its connection may
have died unseen, and doing it twice does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from ...errors import ConfigurationError, StoreUnavailable
from ..homes import Homes
from ..redis.driver import end_without_loop, hang_up
from .copies import CacheRequest

logger = logging.getLogger("samekey")

PATIENCE: Final = 0.05
"""Seconds for one question. The database answers in less than that; a slower cache is no help."""
CONNECT_PATIENCE: Final = 0.25
"""Seconds to connect, rarely needed: TLS takes several round trips."""
OPERATOR_PATIENCE: Final = 5.0
"""Seconds for what an operator does, perhaps from far away. It fails if the cache cannot be told."""
CONNECTIONS: Final = 32
"""At most, for the threads of a process. Who finds none free asks the database."""
LARGEST_BATCH: Final = 64
"""Questions of an event loop that go together."""
LAG: Final = 0.005
"""Seconds by which a timer of an idle event loop is never late."""
CHANCES: Final = 3

_SCHEMES: Final = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
}
_NOT_TOLD: Final = (
    "The cache could not be told, and would go on giving the answer that is to be evicted: {error}. Nothing "
    "was changed. Try again when the cache can be reached, or without it and wait a minute."
)


@dataclass(frozen=True, slots=True)
class CacheUrl:
    """Where the cache is, with two options of our own; all others are redis-py's.

    ``?namespace=`` keeps databases apart that cannot be told apart otherwise, ``?timeout=`` is in seconds.
    """

    url: str
    namespace: str = ""
    patience: float = PATIENCE

    @classmethod
    def parse(cls, text: str) -> CacheUrl:
        scheme = text.partition(":")[0].lower()
        if scheme not in _SCHEMES:
            raise ConfigurationError(
                f"samekey does not know the cache {scheme!r}. Use redis://host:6379/0 or rediss://…"
            )
        try:
            made = cls._parse(text, _SCHEMES[scheme])
            # Made and not connected: it is there that options are understood.
            redis.ConnectionPool.from_url(made.url).make_connection()
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"The cache's URL cannot be read: {error}") from error
        if not 0 < made.patience <= OPERATOR_PATIENCE:
            raise ConfigurationError(
                f"The cache's timeout is a part of a second, at most {OPERATOR_PATIENCE:g}."
            )
        return made

    @classmethod
    def _parse(cls, text: str, scheme: str) -> CacheUrl:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        namespace, patience = options.pop("namespace", ""), options.pop("timeout", str(PATIENCE))
        url = f"{scheme}://{parts.netloc}{parts.path}?{urlencode(options)}"
        return cls(url, namespace, float(patience))


class _Guard:
    """What both kinds of client share: a breaker of the cache's own, and one line in the log at each turn."""

    def __init__(self, breaker: AbstractContextManager[None]) -> None:
        self.breaker = breaker
        self._away = False

    def failed(self, error: BaseException) -> StoreUnavailable:
        if not self._away:
            self._away = True
            logger.warning("The cache cannot be used, so the database answers alone: %s", _words(error))
        return StoreUnavailable(f"the cache cannot be used: {_words(error)}")

    def answered(self) -> None:
        if self._away:
            self._away = False
            logger.warning("The cache answers again.")


def _words(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _options(patience: float, *, pooled: bool = True) -> dict[str, Any]:
    return {
        **({"max_connections": CONNECTIONS, "timeout": patience} if pooled else {}),
        "socket_timeout": patience,
        "socket_connect_timeout": max(patience, CONNECT_PATIENCE),
        # Plain replies, and as few questions at connecting as can be.
        "protocol": 2,
        "driver_info": None,
    }


def _command(ask: CacheRequest) -> tuple[Any, ...]:
    return ("EVALSHA", ask.script.sha, 2, *ask.keys, *ask.arguments)


def _whole_command(ask: CacheRequest) -> tuple[Any, ...]:
    return ("EVAL", ask.script.source, 2, *ask.keys, *ask.arguments)


def _done(reply: object) -> object:
    """What an act must hear: anything else was not said by our script."""
    if reply != 1:
        raise ValueError("it did not answer as Redis does")
    return reply


class RedisCache:
    """The cache, for threads. Safe after a fork: redis-py leaves the parent's connections alone."""

    def __init__(self, where: CacheUrl, breaker: AbstractContextManager[None]) -> None:
        self._guard = _Guard(breaker)
        self._quick: Any
        self._patient: Any
        self._quick, self._patient = (
            redis.Redis(
                connection_pool=redis.BlockingConnectionPool.from_url(
                    where.url, **_options(patience), retry=Retry(NoBackoff(), retries)
                )
            )
            for patience, retries in ((where.patience, 0), (OPERATOR_PATIENCE, 1))
        )

    def ask(self, ask: CacheRequest) -> Any:
        """The reply; None if there is none to be had. ``StoreUnavailable`` only if it must be had."""
        if ask.must:
            return self._insist(ask)
        try:
            with self._guard.breaker:
                return self._run(ask)
        except StoreUnavailable:
            return None

    def _run(self, ask: CacheRequest) -> Any:
        try:
            try:
                reply = self._quick.execute_command(*_command(ask))
            except NoScriptError:
                reply = self._quick.execute_command(*_whole_command(ask))
        except Exception as error:  # whatever it is, it is not worth a request
            raise self._guard.failed(error) from error
        self._guard.answered()
        return reply

    def _insist(self, ask: CacheRequest) -> Any:
        try:
            return _done(self._patient.execute_command(*_whole_command(ask)))
        except Exception as error:
            raise StoreUnavailable(_NOT_TOLD.format(error=_words(error))) from error

    def close(self) -> None:
        for client in (self._quick, self._patient):
            client.connection_pool.disconnect()


class AsyncRedisCache:
    """The cache, for event loops: connections belong to one loop of one process."""

    def __init__(self, where: CacheUrl, breaker: AbstractContextManager[None]) -> None:
        self._guard = _Guard(breaker)
        self._where = where
        self._lines = Homes(lambda: _Line(where, self._guard), hang_up, end_without_loop)

    async def ask(self, ask: CacheRequest) -> Any:
        """As ``RedisCache.ask``."""
        if ask.must:
            return await self._insist(ask)
        return await self._lines.here().ask(ask)

    async def _insist(self, ask: CacheRequest) -> Any:
        options = _options(OPERATOR_PATIENCE) | {"retry": AsyncRetry(NoBackoff(), 1)}
        client: Any = redis.asyncio.Redis(
            connection_pool=redis.asyncio.BlockingConnectionPool.from_url(self._where.url, **options)
        )
        try:
            return _done(await client.execute_command(*_whole_command(ask)))
        except Exception as error:
            raise StoreUnavailable(_NOT_TOLD.format(error=_words(error))) from error
        finally:
            await client.connection_pool.disconnect()

    async def close(self) -> None:
        await self._lines.here().end()
        self._lines.close()


class _Line:
    """One connection for all requests of an event loop: what they ask at the same time goes together.

    A round trip of its own would cost an event loop more than the database's answer, which is batched too.
    Nobody waits for company: a question that finds none under way is sent at once, and what comes meanwhile
    is the next batch. Each batch has the same time.
    """

    def __init__(self, where: CacheUrl, guard: _Guard) -> None:
        self._where = where
        self._guard = guard
        self._waiting: list[tuple[CacheRequest, asyncio.Future[Any]]] = []
        self._pump: asyncio.Task[None] | None = None
        self._connection: Any = None
        self.farewell: AsyncGenerator[None, None] | None = None

    def close(self) -> None:
        for connection in self.empty():
            hang_up(connection)

    @property
    def in_use(self) -> bool:
        return self._pump is not None

    def empty(self) -> list[Any]:
        connection, self._connection = self._connection, None
        return [] if connection is None else [connection]

    def ask(self, ask: CacheRequest) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((ask, reply))
        if self._pump is None:
            self._pump = loop.create_task(self._run())
        return reply

    async def _run(self) -> None:
        batch: list[tuple[CacheRequest, asyncio.Future[Any]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
                with self._guard.breaker:
                    replies = await self._send([ask for ask, _ in batch])
                _settle([future for _, future in batch], replies)
        except StoreUnavailable:
            pass
        finally:
            # Without a reply they ask the database; who came meanwhile would wait as long for the same.
            left, self._waiting = batch + self._waiting, []
            _settle([future for _, future in left], [None] * len(left))
            self._pump = None

    async def _send(self, asks: list[CacheRequest]) -> list[Any]:
        try:
            if self._connection is None:
                await self._connect()
            async with _in_time(self._where.patience):
                replies = await self._exchange([_command(ask) for ask in asks])
                unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if unknown:
                    again = await self._exchange([_whole_command(asks[at]) for at in unknown])
                    for at, reply in zip(unknown, again, strict=True):
                        replies[at] = reply
        except Exception as error:  # whatever it is, it is not worth a request
            await self._hang_up()
            raise self._guard.failed(error) from error
        except BaseException:
            await self._hang_up()  # a reply that comes later belongs to nobody
            raise
        refused = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if refused is not None:
            raise self._guard.failed(refused) from refused
        self._guard.answered()
        return replies

    async def _exchange(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        connection = self._connection
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                # The time is counted for all of them together.
                replies.append(await connection.read_response(timeout=math.inf))
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    async def _connect(self) -> None:
        pool: Any = redis.asyncio.ConnectionPool.from_url(
            self._where.url,
            **_options(max(self._where.patience, CONNECT_PATIENCE), pooled=False),
            retry=AsyncRetry(NoBackoff(), 0),
        )
        connection = pool.make_connection()
        async with _in_time(max(self._where.patience, CONNECT_PATIENCE)):
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        self._connection = connection

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def end(self) -> None:
        """Waits until it is closed."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
        # If it had not begun yet, it has settled nothing.
        _settle([future for _, future in self._waiting], [None] * len(self._waiting))
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()


@asynccontextmanager
async def _in_time(seconds: float) -> AsyncIterator[None]:
    """As ``asyncio.timeout``, but a loop that was busy itself has not waited: it gets the time once more.

    The reply may have been there all along, and under load is just when the cache should not be given up.
    """
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    async with asyncio.timeout(None) as bound:

        def wait(chances: int) -> None:
            due = loop.time() + seconds
            timers.append(loop.call_at(due, look, due, chances))

        def look(due: float, chances: int) -> None:
            if chances and loop.time() - due > LAG:
                wait(chances - 1)
            else:
                bound.reschedule(loop.time())

        wait(CHANCES)
        try:
            yield
        finally:
            timers[-1].cancel()


def _settle(futures: list[asyncio.Future[Any]], replies: list[Any]) -> None:
    for future, reply in zip(futures, replies, strict=True):
        if not future.done():  # settled already, or nobody waits for it any more
            future.set_result(reply)
