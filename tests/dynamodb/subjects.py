"""DynamoDB as a store under test: what the conformance suite asks of one, and raw writes behind its back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import botocore.session

from samekey.core.program import Program, Value
from samekey.drivers.dynamodb.driver import _LOADER
from samekey.drivers.dynamodb.url import DynamoURL
from samekey.drivers.run import run, run_async
from samekey.drivers.url import drivers_for
from samekey.stores.dynamodb.items import encode, pk_of
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.keys import Keys

T = TypeVar("T")


def plain_client(url: str) -> Any:
    """A client that knows nothing of samekey."""
    read = DynamoURL.parse(url)
    session = botocore.session.Session()
    session.register_component("data_loader", _LOADER)  # it has read its files already
    return session.create_client("dynamodb", region_name=read.region, endpoint_url=read.endpoint)


class DynamoSubject:
    """What sync and async share: the raw writes."""

    def __init__(self, url: str) -> None:
        self.keys = Keys(DynamoStatements())
        self.drivers = drivers_for(url)
        self.table = DynamoURL.parse(url).table
        self.client = plain_client(url)

    def item(self, scope: str, key: str) -> dict[str, Any] | None:
        """What is there, as it is there."""
        there = {"pk": {"S": pk_of(scope, key)}}
        found: dict[str, Any] | None = self.client.get_item(
            TableName=self.table, Key=there, ConsistentRead=True
        ).get("Item")
        return found

    def overwrite(self, scope: str, key: str, **columns: Value) -> None:
        self.change(scope, key, columns)

    def change(self, scope: str, key: str, columns: Mapping[str, Value]) -> None:
        """The same, for any column."""
        item = self.item(scope, key)
        if item is None:
            raise LookupError(f"there is no record of {key!r} in {scope!r} to change")
        for name, value in columns.items():
            item.pop(name, None)
            if value is not None:
                item[name] = encode(value)
        self.client.put_item(TableName=self.table, Item=item)

    def remove(self, scope: str, key: str) -> None:
        if self.item(scope, key) is None:
            raise LookupError(f"there is no record of {key!r} in {scope!r} to remove")
        self.client.delete_item(TableName=self.table, Key={"pk": {"S": pk_of(scope, key)}})


class SyncDynamoSubject(DynamoSubject):
    """The sync driver under test."""

    def close(self) -> None:
        self.drivers.sync.close()
        self.client.close()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return run(self.drivers.sync, factory)

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        barrier = threading.Barrier(len(factories), timeout=60)

        def one(factory: Callable[[], Program[T]]) -> T:
            barrier.wait()
            return run(self.drivers.sync, factory)

        with ThreadPoolExecutor(len(factories)) as threads:
            return list(threads.map(one, factories))


class AsyncDynamoSubject(DynamoSubject):
    """The async driver under test, run through one event loop."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.run(self.drivers.aio.close())
        self._runner.close()
        self.client.close()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return self._runner.run(run_async(self.drivers.aio, factory))

    def run_together(self, factories: Sequence[Callable[[], Program[T]]]) -> list[T]:
        async def together() -> list[T]:
            return list(await asyncio.gather(*(run_async(self.drivers.aio, one) for one in factories)))

        return self._runner.run(together())
