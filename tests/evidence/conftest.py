"""A node of a service on every store, and what an onlooker does around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from samekey import Evidence, Idempotency, Resolution
from samekey.core.program import Program
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate
from tests.chosen import stores
from tests.dynamodb.conftest import dynamodb_server, dynamodb_url
from tests.redis.conftest import redis_server, redis_url

__all__ = ["Node", "dynamodb_server", "dynamodb_url", "redis_server", "redis_url"]

T = TypeVar("T")

SQL = ("sqlite", "postgres", "mariadb")
KEY_STORES = ("redis", "dynamodb")
HOUR = 3_600_000


class Node:
    """A service's own Idempotency, with a provider that tells it things and a clock that can be moved."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.idempotency = Idempotency(url, pool_size=8)
        store = self.idempotency.engine.store
        if self.idempotency.engine.drivers.dialect in ("sqlite", "postgres", "mysql"):
            run(self.idempotency.engine.drivers.sync, lambda: migrate(self.idempotency.engine.queries))
        self.keys = self.idempotency.engine.keys
        self.finding = store.finding
        self.resolver = self.idempotency.engine.resolver
        self.upkeep = store.tending

    def close(self) -> None:
        self.idempotency.close()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        return run(self.idempotency.engine.drivers.sync, factory)

    def record(self, key: str) -> Record:
        (found,) = [one for one in self.run(lambda: self.finding.find(limit=1000)) if one.key == key]
        return found

    def clock(self) -> int:
        return self.run(self.finding.overview).now

    def end_leases(self) -> None:
        """As if the longest lease had run out."""
        later = self.clock() + HOUR
        while self.run(lambda: self.upkeep.sweep(batch=100, now=later)):
            pass

    def tell(self, evidence: Evidence, event_id: str = "e1", **named: Any) -> Resolution:
        given = {"source": "cards", "tenant": None, "occurred_at": datetime.now(UTC), **named}
        return self.idempotency.resolve(evidence, event_id=event_id, verify=lambda: True, **given)

    @property
    def is_sql(self) -> bool:
        return self.idempotency.engine.drivers.dialect in ("sqlite", "postgres", "mysql")

    def shown(self, key: str) -> list[str]:
        """What becomes of the events that an operator is shown."""
        tables, record = self.idempotency.engine.store.tables, self.record(key)
        return [one.state for one in self.run(lambda: tables.effects.shown(record.id))]

    def state(self, key: str) -> State:
        return self.record(key).state


def _node(request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.close()


@pytest.fixture(params=stores(*SQL, *KEY_STORES, first=1))
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """On every store."""
    yield from _node(request)


@pytest.fixture(params=stores(*SQL))
def sql_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """On every store that has tables."""
    yield from _node(request)


@pytest.fixture(params=stores(*KEY_STORES, first=1))
def key_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """On the stores that keep keys and nothing else."""
    yield from _node(request)


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Node]:
    made = Node(sqlite_url)
    yield made
    made.close()
