"""Both drivers of a URL behind one method, and small programs to ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.crc import key_slot

from samekey.core.program import Program
from samekey.core.record import Record
from samekey.drivers.redis.driver import AsyncRedisDriver, RedisDriver
from samekey.drivers.redis.url import read_url
from samekey.drivers.run import run, run_async
from samekey.stores.keys import Keys
from samekey.stores.redis.scripts import RedisStatements
from samekey.testing.conformance import new_claim
from samekey.testing.conformance_claims import POLICY

KEYS = Keys(RedisStatements())
STYLES = ("sync", "async")


def read(key: str = "k") -> Program[Record | None]:
    return KEYS.read("scope", key)


def claim(key: str | None = None) -> Callable[[], Program[Any]]:
    wanted = new_claim(key=key)
    return lambda: KEYS.claim(wanted, POLICY)


class Asking:
    """Both drivers of a URL behind one method."""

    def __init__(self, url: str, style: str, **options: Any) -> None:
        self.style = style
        self.sync = RedisDriver(read_url(url), **options)
        self.aio = AsyncRedisDriver(read_url(url), **options)
        self._runner = asyncio.Runner()

    def ask(self, factory: Callable[[], Program[Any]]) -> Any:
        if self.style == "sync":
            return run(self.sync, factory)
        return self._runner.run(run_async(self.aio, factory))

    def owner(self, key: str) -> tuple[str, int] | None:
        """Which server a Cluster's driver takes for the one that holds this key."""
        driver = self.sync if self.style == "sync" else self.aio
        return driver.planner.router._owners.get(key_slot(key.encode()))

    def close(self) -> None:
        self.sync.close()
        self._runner.run(self.aio.close())
        self._runner.close()


@contextmanager
def asking(url: str, style: str, **options: Any) -> Iterator[Asking]:
    made = Asking(url, style, **options)
    try:
        yield made
    finally:
        made.close()
