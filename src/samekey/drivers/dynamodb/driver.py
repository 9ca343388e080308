"""DynamoDB for sync code through botocore, for async code through aiobotocore.

A statement of this store is a plan (``stores/dynamodb/requests.py``): it says what to request, and what the
replies mean. Here the requests are made. Neither library sends one again by itself: a lost reply must be
seen by the runners, because programs recognise their own attempt. Only what DynamoDB throttled, and so did
not do, is sent again here, a few times.

boto3's client is botocore's, so boto3 itself is not needed.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import botocore.session
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import xform_name
from botocore.config import Config
from botocore.loaders import Loader

from ...core.program import Row, Statement
from ...errors import ConfigurationError
from ..fork import anew_after_fork, leave_to_parent
from .clock import Clock
from .errors import THROTTLED, code_of, translate
from .url import DynamoURL

AT_ONCE: Final = 8
"""Requests of one statement that are made side by side: enough for the leases of a busy process, and for the
sixteen shards of a queue in two turns."""
KEPT: Final = 50
"""Connections that are kept, at least: a thread that finds none free opens one, and it is closed again."""
TURNS: Final = 4
"""How often a throttled request is made, with pauses of 50, 100 and 200 ms between, more or less. A table
that needs more than that to recover is too busy, and the client is told to come back."""
PAUSE: Final = 0.05

_LOADER: Final = Loader()
"""Reads botocore's description of DynamoDB from disk, once in a process: it takes a tenth of a second."""


class DynamoRequest(Protocol):
    """One call of DynamoDB's API (``samekey.stores.dynamodb.requests.Request``)."""

    @property
    def operation(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    @property
    def answers(self) -> frozenset[str]: ...

    @property
    def pause(self) -> float: ...


Plan: TypeAlias = Generator[Sequence[DynamoRequest], Sequence[Mapping[str, Any]], Sequence[Row]]


class Planned(Protocol):
    """A query that is a plan (``samekey.stores.dynamodb.requests.PlannedQuery``)."""

    def plan(self, values: Mapping[str, Any], now: int, /) -> Plan: ...


class _Access:
    """What sync and async share: the table, the clock, and what an error means."""

    def __init__(self, url: DynamoURL, clock: Clock, *, pool_size: int, timeout: float) -> None:
        self.url = url
        self.clock = clock
        self.patience = 2 * timeout
        """For one request with all that comes before it: a free connection, credentials, the connect."""
        self.settings: dict[str, Any] = {
            "connect_timeout": timeout,
            "read_timeout": timeout,
            "max_pool_connections": max(pool_size, KEPT),
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "tcp_keepalive": True,
            "parameter_validation": False,  # what we send is ours, and DynamoDB looks at it anyway
        }
        self.client: dict[str, Any] = {
            "service_name": "dynamodb",
            "region_name": url.region,
            "endpoint_url": url.endpoint,
        }

    def plan_of(self, statement: Statement) -> Plan:
        now = statement.parameters["now"]
        moment = self.clock.now() if now is None else now
        return cast(Planned, statement.query).plan(statement.parameters, cast(int, moment))

    def needs_time(self, statement: Statement) -> bool:
        """Whether the statement goes by our clock, and nobody has told us yet whether that is right."""
        return statement.parameters["now"] is None and not self.clock.proven

    def call(self, client: Any, asked: DynamoRequest) -> Any:
        """The reply, or what an async client has instead. Its methods have names of Python's kind."""
        return getattr(client, xform_name(asked.operation))(TableName=self.url.table, **asked.arguments)

    def heard(self, response: Mapping[str, Any], sent: float) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.prove(headers.get("date"), sent, self.clock.ticks())

    def failed(self, error: Exception, asked: DynamoRequest, sent: float) -> Mapping[str, Any]:
        """The reply that an error is, where the plan asked to see it; else it is raised as one of ours."""
        code = code_of(error)
        if code is not None:
            response: Mapping[str, Any] = error.response  # type: ignore[attr-defined]  # a ClientError
            self.heard(response, sent)
            if code in asked.answers:
                return response
        raise translate(error, asked.operation, self.url) from error


class _Tick:
    """Asks for nothing but the time: a record that nobody has."""

    operation = "GetItem"
    arguments: Mapping[str, Any] = {"Key": {"pk": {"S": "time"}}}
    answers: frozenset[str] = frozenset()
    pause = 0.0


def _again_after(error: Exception, turn: int) -> float | None:
    """How long to wait before a throttled request is made again; None: not at all."""
    if turn == TURNS or code_of(error) not in THROTTLED:
        return None
    return PAUSE * (1 << (turn - 1)) * (0.5 + random.random())  # noqa: S311 - spreads, hides nothing


class DynamoDriver:
    """``timeout`` bounds every wait for a connection and for an answer."""

    def __init__(self, url: DynamoURL, clock: Clock, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self._access = _Access(url, clock, pool_size=pool_size, timeout=timeout)
        self._made: Any = None
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        leave_to_parent(self._made)
        self._lock = threading.Lock()
        self._made = None

    def execute(self, statement: Statement) -> Sequence[Row]:
        if self._access.needs_time(statement):
            self._ask(_Tick())
        plan = self._access.plan_of(statement)
        try:
            asked = next(plan)
            while True:
                asked = plan.send(self._ask_all(asked))
        except StopIteration as stop:
            rows: Sequence[Row] = stop.value
            return rows
        finally:
            plan.close()

    def _ask_all(self, asked: Sequence[DynamoRequest]) -> Sequence[Mapping[str, Any]]:
        if len(asked) <= 1:
            return [self._ask(one) for one in asked]
        with ThreadPoolExecutor(min(AT_ONCE, len(asked)), "samekey-dynamodb") as threads:
            return list(threads.map(self._ask, asked))

    def _ask(self, asked: DynamoRequest) -> Mapping[str, Any]:
        if asked.pause:
            time.sleep(asked.pause)
        for turn in range(1, TURNS + 1):
            sent = self._access.clock.ticks()
            try:
                reply: Mapping[str, Any] = self._access.call(self._client(), asked)
            except Exception as error:
                pause = _again_after(error, turn)
                if pause is None:
                    return self._access.failed(error, asked, sent)
                time.sleep(pause)
            else:
                self._access.heard(reply, sent)
                return reply
        raise AssertionError("unreachable")

    def open(self, connection: Any = None) -> NoReturn:
        raise no_transactions()

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _client(self) -> Any:
        """One for all threads of this process: it is safe for threads, its connections not for a fork."""
        with self._lock:
            if self._made is None:
                session = botocore.session.Session()
                session.register_component("data_loader", _LOADER)
                self._made = session.create_client(
                    **self._access.client, config=Config(**self._access.settings)
                )
            return self._made


class AsyncDynamoDriver:
    """``DynamoDriver`` for async code."""

    def __init__(self, url: DynamoURL, clock: Clock, *, pool_size: int = 10, timeout: float = 5.0) -> None:
        self._access = _Access(url, clock, pool_size=pool_size, timeout=timeout)
        self._made: dict[asyncio.AbstractEventLoop, asyncio.Task[tuple[AsyncGenerator[Any, None], Any]]] = {}
        anew_after_fork(self)

    def start_anew(self) -> None:
        leave_to_parent(self._made)
        self._made = {}

    async def execute(self, statement: Statement) -> Sequence[Row]:
        if self._access.needs_time(statement):
            await self._ask(_Tick())
        plan = self._access.plan_of(statement)
        try:
            asked = next(plan)
            while True:
                asked = plan.send(await self._ask_all(asked))
        except StopIteration as stop:
            rows: Sequence[Row] = stop.value
            return rows
        finally:
            plan.close()

    async def _ask_all(self, asked: Sequence[DynamoRequest]) -> Sequence[Mapping[str, Any]]:
        if len(asked) <= 1:
            return [await self._ask(one) for one in asked]
        room = asyncio.Semaphore(AT_ONCE)

        async def ask(one: DynamoRequest) -> Mapping[str, Any]:
            async with room:
                return await self._ask(one)

        replies = await asyncio.gather(*(ask(one) for one in asked), return_exceptions=True)
        for reply in replies:  # all have ended: none goes on behind the caller's back
            if isinstance(reply, BaseException):
                raise reply
        return cast(list[Mapping[str, Any]], replies)

    async def _ask(self, asked: DynamoRequest) -> Mapping[str, Any]:
        if asked.pause:
            await asyncio.sleep(asked.pause)
        for turn in range(1, TURNS + 1):
            sent = self._access.clock.ticks()
            try:
                async with asyncio.timeout(self._access.patience):
                    client = await self._client()
                    sent = self._access.clock.ticks()
                    reply: Mapping[str, Any] = await self._access.call(client, asked)
            except Exception as error:
                pause = _again_after(error, turn)
                if pause is None:
                    return self._access.failed(error, asked, sent)
                await asyncio.sleep(pause)
            else:
                self._access.heard(reply, sent)
                return reply
        raise AssertionError("unreachable")

    async def open(self, connection: Any = None) -> NoReturn:
        raise no_transactions()

    async def close(self) -> None:
        made = self._made.pop(asyncio.get_running_loop(), None)
        if made is not None:
            with suppress(Exception):
                await (await made)[0].aclose()

    async def _client(self) -> Any:
        """One for each event loop of this process."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made = {there: made for there, made in self._made.items() if not there.is_closed()}
            self._made[loop] = loop.create_task(self._make())
        made = self._made[loop]
        try:
            return (await asyncio.shield(made))[1]
        except BaseException:
            if made.done() and (made.cancelled() or made.exception() is not None):
                self._made.pop(loop, None)  # the next one tries anew
            raise

    async def _make(self) -> tuple[AsyncGenerator[Any, None], Any]:
        life = self._life()
        return life, await anext(life)

    async def _life(self) -> AsyncGenerator[Any, None]:
        """A client as long as it lives. A loop that ends closes its generators, and so the client with it."""
        session = AioSession()
        session.register_component("data_loader", _LOADER)
        config = AioConfig(**self._access.settings)
        async with session.create_client(**self._access.client, config=config) as client:
            yield client


def no_transactions() -> ConfigurationError:
    return ConfigurationError(
        "DynamoDB keeps keys only: there is no transaction that a handler's writes could share. Declare the "
        "handler @idempotency.leased."
    )
