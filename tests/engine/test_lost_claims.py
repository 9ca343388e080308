"""A claim that landed while its reply was lost is given back: nothing ran under it, so nothing is unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy, cut_after
from samekey import Idempotency, StoreUnavailable
from samekey.core.claim import call_part, scope_of
from samekey.drivers.run import ATTEMPTS, run
from samekey.errors import (
    ConnectionLost,
    ReadOnlyStore,
    StoreBusy,
    StoreError,
    StoreUnreachable,
    TransactionConflict,
)
from samekey.stores.sql.migrations import migrate

RESERVE = r"[\s\S]*insert into [\s\S]*on conflict \(scope, key\) do nothing[\s\S]*"


def test_a_claim_whose_reply_was_lost_does_not_keep_its_key(postgres_url: str) -> None:
    direct = Idempotency(postgres_url)
    run(direct.engine.drivers.sync, lambda: migrate(direct.engine.queries))
    scope = scope_of(call_part("t"))

    def is_free() -> bool:
        return run(direct.engine.drivers.sync, lambda: direct.engine.keys.read(scope, "k")) is None

    with FaultProxy.before(postgres_url) as proxy:
        idempotency = Idempotency(proxy.url_for(postgres_url))
        idempotency.check()
        rule = proxy.on_statement(RESERVE, cut_after, times=ATTEMPTS)
        with pytest.raises(StoreUnavailable):
            idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"))
        assert rule.count == ATTEMPTS, "every try lost its reply"
        # Long before its lease of a minute: the keeper takes it back as soon as the store answers.
        wait_until(is_free, timeout=30)
        assert idempotency.once(tenant="t", key="k", run=lambda: "now") == "now"
        idempotency.close()
    direct.close()


class Switchover:
    """A driver that carries out the claim and loses its reply; whatever is tried after that is refused."""

    def __init__(self, driver: Any, error: StoreError) -> None:
        self._driver = driver
        self._error = error
        self._lost = False

    def execute(self, statement: Any) -> Any:
        if self._lost:
            raise self._error
        rows = self._driver.execute(statement)
        if statement.name == "reserve":
            self._lost = True
            raise ConnectionLost("the reply was lost")
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class AsyncSwitchover(Switchover):
    async def execute(self, statement: Any) -> Any:
        return super().execute(statement)


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize(
    "error",
    [
        StoreBusy("no connection is free"),
        ReadOnlyStore("the server is read-only"),
        StoreUnreachable("refused"),
        TransactionConflict("a deadlock"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_later_try_meets_says_nothing_about_the_lost_one(
    tmp_path: Path, style: str, error: StoreError
) -> None:
    idempotency = Idempotency(f"sqlite:///{tmp_path}/x.db")
    idempotency.migrate()
    drivers = idempotency.engine.drivers
    idempotency.check()
    idempotency.engine.drivers = replace(
        drivers, sync=Switchover(drivers.sync, error), aio=AsyncSwitchover(drivers.sync, error)
    )

    def call() -> Any:
        if style == "sync":
            return idempotency.once(tenant="t", key="k", run=lambda: "now", name="call")
        return asyncio.run(idempotency.once_async(tenant="t", key="k", run=lambda: "now", name="call"))

    with pytest.raises(StoreUnavailable):
        call()
    idempotency.engine.drivers = drivers

    def is_free() -> bool:
        return run(drivers.sync, lambda: idempotency.engine.keys.read(scope_of(call_part("t")), "k")) is None

    wait_until(is_free, timeout=30)
    assert call() == "now"
    idempotency.close()
