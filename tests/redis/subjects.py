"""Redis as a store under test: what the conformance suite asks of one, and raw writes behind its back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import redis
import redis.cluster

from samekey.core.claim import downstream_base
from samekey.core.program import Program, Value
from samekey.drivers.redis.driver import AsyncRedisDriver, RedisDriver
from samekey.drivers.redis.plan import Layout
from samekey.drivers.redis.url import RedisURL, read_url
from samekey.drivers.run import run, run_async
from samekey.stores.keys import Keys
from samekey.stores.redis.scripts import RedisStatements

T = TypeVar("T")


def plain_client(url: str) -> Any:
    """A client that knows nothing of samekey; one for each server and process, never closed."""
    read = read_url(url)
    return _client(read.servers[0], read.login["db"], read.cluster, os.getpid())


@cache
def _client(server: tuple[str, int], database: int, cluster: bool, pid: int) -> Any:
    host, port = server
    if cluster:
        # It asks a great deal of every node before it is ready.
        return redis.cluster.RedisCluster(host=host, port=port)
    return redis.Redis(host=host, port=port, db=database)


class RedisSubject:
    """What sync and async share: the raw writes."""

    def __init__(self, url: str) -> None:
        self.url: RedisURL = read_url(url)
        self.keys = Keys(RedisStatements())
        self.client = plain_client(url)
        self._layout = Layout(self.url.prefix, self.url.partitions)

    def name_of(self, scope: str, key: str) -> str:
        return self._layout.record(downstream_base(scope, key))

    def overwrite(self, scope: str, key: str, **columns: Value) -> None:
        name = self.name_of(scope, key)
        if not self.client.exists(name):
            raise LookupError(f"there is no record of {key!r} in {scope!r} to change")
        written = {column: value for column, value in columns.items() if value is not None}
        if written:
            self.client.hset(name, mapping=written)
        for column in columns.keys() - written.keys():
            self.client.hdel(name, column)

    def remove(self, scope: str, key: str) -> None:
        if not self.client.delete(self.name_of(scope, key)):
            raise LookupError(f"there is no record of {key!r} in {scope!r} to remove")


class SyncRedisSubject(RedisSubject):
    """The sync driver under test."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.driver = RedisDriver(self.url)

    def close(self) -> None:
        self.driver.close()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return run(self.driver, factory)

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        barrier = threading.Barrier(len(factories), timeout=30)

        def one(factory: Callable[[], Program[T]]) -> T:
            barrier.wait()
            return run(self.driver, factory)

        with ThreadPoolExecutor(len(factories)) as threads:
            return list(threads.map(one, factories))


class AsyncRedisSubject(RedisSubject):
    """The async driver under test, run through one event loop."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.driver = AsyncRedisDriver(self.url)
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.run(self.driver.close())
        self._runner.close()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return self._runner.run(run_async(self.driver, factory))

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        async def together() -> list[T]:
            return list(await asyncio.gather(*(run_async(self.driver, factory) for factory in factories)))

        return self._runner.run(together())
