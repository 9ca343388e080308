"""An answer that could not be remembered is not sent: a retry would get another one.

A refusal of atomic work is rolled back and then remembered on its own. In between the key may be taken by
somebody else, and the store may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from samekey import Idempotency
from samekey.core.program import Row, Statement
from samekey.drivers.protocol import Driver, Session
from samekey.drivers.run import run
from samekey.drivers.url import Drivers
from samekey.errors import StoreUnavailable
from samekey.stores.sql.migrations import migrate
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware
from tests.edges.callers import Request, call_wsgi

REMEMBERS = ("atomic_outcome", "complete")
"""The statement that remembers a refusal, by store."""


class Interrupted:
    """A driver that lets something happen right before a refusal is remembered."""

    def __init__(self, driver: Driver, happens: Callable[[], None]) -> None:
        self._driver = driver
        self._happens: Callable[[], None] | None = happens

    def execute(self, statement: Statement) -> Sequence[Row]:
        if statement.name in REMEMBERS and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return self._driver.execute(statement)

    def open(self, connection: Any = None) -> Session:
        return self._driver.open(connection)

    def close(self) -> None:
        self._driver.close()


class Shop:
    """An application whose one handler refuses or sells, as it is told."""

    def __init__(self, url: str) -> None:
        self.idempotency = Idempotency(url)
        run(self.idempotency.engine.drivers.sync, lambda: migrate(self.idempotency.engine.queries))
        self.statuses: list[str] = []

        @self.idempotency.atomic(on_4xx="rollback", lease=1)
        def sell(environ: Any, start_response: Any) -> list[bytes]:
            start_response(self.statuses.pop(0), [("Content-Type", "text/plain")])
            return [b"said"]

        self._app = IdempotencyMiddleware(
            sell, idempotency=self.idempotency, tenant=single_tenant(), undecorated="pass"
        )

    def post(self, body: bytes = b"one") -> Any:
        return call_wsgi(self._app, Request(headers=((b"Idempotency-Key", b"k"),), body=body))

    def interrupt(self, happens: Callable[[], None]) -> None:
        drivers = self.idempotency.engine.drivers
        self.idempotency.engine.drivers = Drivers(
            drivers.dialect, Interrupted(drivers.sync, happens), drivers.aio
        )


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def shop(request: pytest.FixtureRequest) -> Shop:
    return Shop(request.getfixturevalue(request.param))


def gone() -> None:
    raise StoreUnavailable("gone for a moment")


def test_a_refusal_that_could_not_be_remembered_is_not_sent(shop: Shop) -> None:
    shop.interrupt(gone)
    shop.statuses = ["409 Conflict"]
    got = shop.post()
    assert (got.status, got.code) == (503, "store_unavailable")
    shop.idempotency.close()


def test_what_somebody_else_recorded_meanwhile_is_the_answer(shop: Shop) -> None:
    """Another request with the key comes through while it is free; the first must not contradict it."""
    other = Shop(shop.idempotency.engine.url)

    def sells() -> None:
        if shop.idempotency.engine.drivers.dialect == "sqlite":
            # There the claim stands until its lease is over.
            execute = shop.idempotency.engine.drivers.sync.execute
            query = shop.idempotency.engine.queries.build(
                "raw", "update {keys} set locked_until = 0 returning 1"
            )
            assert execute(query())
        other.statuses = ["409 Conflict"]
        assert other.post().status == 409

    shop.interrupt(sells)
    shop.statuses = ["422 Unprocessable Content"]
    got = shop.post()
    assert (got.status, got.header("idempotent-replayed")) == (409, "true")
    assert shop.post().status == 409
    shop.idempotency.close()
    other.idempotency.close()
