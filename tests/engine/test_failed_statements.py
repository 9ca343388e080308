"""A handler that goes on after a statement failed: PostgreSQL keeps nothing of it, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest

from samekey import Idempotency, current_operation
from samekey.errors import FailedTransaction


@pytest.fixture
def idempotency(postgres_url: str) -> Iterator[Idempotency]:
    made = Idempotency(postgres_url)
    made.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("create table effects (n int)")
    yield made
    made.close()


def effects(idempotency: Idempotency) -> int:
    with psycopg.connect(idempotency.engine.url) as connection:
        found = connection.execute("select count(*) from effects").fetchone()
    assert found is not None
    return int(found[0])


def test_a_swallowed_error_is_the_handlers_and_not_the_stores(idempotency: Idempotency) -> None:
    swallow = True

    def run() -> int:
        connection = current_operation().connection
        connection.execute("insert into effects values (1)")
        try:
            connection.execute("select 1 / 0") if swallow else None
        except psycopg.errors.DivisionByZero:
            pass
        return 1

    with pytest.raises(FailedTransaction, match="savepoint"):
        idempotency.once(tenant="t", key="k", run=run, mode="atomic")
    assert effects(idempotency) == 0
    swallow = False
    assert idempotency.once(tenant="t", key="k", run=run, mode="atomic") == 1
    assert effects(idempotency) == 1


def test_a_swallowed_error_is_the_handlers_and_not_the_stores_in_async_code(idempotency: Idempotency) -> None:
    swallow = True

    async def run() -> int:
        connection = current_operation().connection
        await connection.execute("insert into effects values (1)")
        try:
            await connection.execute("select 1 / 0") if swallow else None
        except asyncpg.DivisionByZeroError:
            pass
        return 1

    async def story() -> None:
        nonlocal swallow
        with pytest.raises(FailedTransaction, match="savepoint"):
            await idempotency.once_async(tenant="t", key="k", run=run, mode="atomic")
        assert effects(idempotency) == 0
        swallow = False
        assert await idempotency.once_async(tenant="t", key="k", run=run, mode="atomic") == 1
        assert effects(idempotency) == 1
        await idempotency.aclose()

    asyncio.run(story())
