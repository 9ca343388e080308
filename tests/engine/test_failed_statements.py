"""A handler that goes on after a statement failed: PostgreSQL keeps nothing of it, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

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


TABLES = (
    "create table parents (n int primary key)",
    "create table children (n int references parents (n) deferrable initially deferred)",
)


@pytest.mark.parametrize("store", ["psycopg", "asyncpg"])
def test_what_is_refused_at_commit_is_the_handlers_and_not_the_stores(postgres_url: str, store: str) -> None:
    """A deferred constraint, as foreign keys in a circle need it: no retry will help."""
    idempotency = Idempotency(postgres_url)
    idempotency.migrate()
    with psycopg.connect(postgres_url) as connection:
        for text in TABLES:
            connection.execute(text)
    wrong = True

    def texts() -> list[str]:
        return ["insert into children values (1)", *([] if wrong else ["insert into parents values (1)"])]

    def run() -> int:
        connection = current_operation().connection
        for text in texts():
            connection.execute(text)
        return 1

    async def run_async() -> int:
        connection = current_operation().connection
        for text in texts():
            await connection.execute(text)
        return 1

    def once() -> Any:
        options: Any = {"tenant": "t", "key": "k", "mode": "atomic"}
        if store != "asyncpg":
            return idempotency.once(run=run, **options)
        with asyncio.Runner() as runner:
            try:
                return runner.run(idempotency.once_async(run=run_async, **options))
            finally:
                runner.run(idempotency.aclose())

    with pytest.raises(FailedTransaction, match="refused COMMIT because of what the handler wrote"):
        once()
    wrong = False
    assert once() == 1
    idempotency.close()
