"""Operations that write through sessions, cancelled wherever they wait: one effect at most, nothing left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from samekey import Idempotency, ietf
from samekey.sqlalchemy import AsyncSession
from samekey.testing.cancellation import Cancellation, enumerate_cancellations
from tests.cancellation.world import LEASE, PATIENCE, Shop
from tests.chosen import whole
from tests.sqlalchemy.stacks import url_for

INSERT = text("insert into effects values (:label, 't')")


class SessionShop(Shop):
    """Its effects are written by sessions: one statement that is committed, and one that is rolled back."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.first = self.idempotency
        self.database = create_async_engine(url_for(url, is_async=True), pool_size=1, max_overflow=0)
        self.idempotency = Idempotency(
            self.database, policy=ietf(lease=LEASE, max_run=2 * LEASE), pool_size=1, timeout=PATIENCE / 2
        )
        self.sessions = async_sessionmaker(self.database, class_=AsyncSession)

    async def write(self, label: str, connection: Any = None) -> None:
        async with self.sessions() as session:
            await session.execute(INSERT, {"label": label})
            await session.commit()
            await session.execute(INSERT, {"label": label})
            await session.rollback()

    async def aclose(self) -> None:
        await super().aclose()
        await self.first.aclose()
        await self.database.dispose()


async def cancelled_everywhere(url: str) -> int:
    async with aclosing(SessionShop(url)) as shop:

        async def operation(cancellation: Cancellation) -> Any:
            return await shop.once(cancellation.label, "atomic")

        await shop.once("the first", "atomic")
        points = 0
        async for cancelled in enumerate_cancellations(operation):
            points += 1
            await shop.check(cancelled, "atomic", partial(shop.once, cancelled.label, "atomic"))
            assert shop.database.pool.checkedout() == 0, cancelled  # type: ignore[attr-defined]
        return points


@whole
@pytest.mark.parametrize("store", ["postgres", "sqlite", "mariadb"])
def test_an_operation_with_a_session_is_cancelled_wherever_it_waits(
    store: str, request: pytest.FixtureRequest
) -> None:
    assert asyncio.run(cancelled_everywhere(request.getfixturevalue(f"{store}_url"))) > 10
