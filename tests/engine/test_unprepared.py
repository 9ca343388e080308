"""Without prepared statements, as a pooler in transaction mode may ask for, everything works the same."""

from __future__ import annotations

import asyncio

import psycopg

from samekey import Idempotency, current_operation
from samekey.drivers.run import run
from samekey.stores.sql.migrations import migrate


def test_nothing_is_prepared_and_all_is_done(postgres_url: str) -> None:
    idempotency = Idempotency(postgres_url, prepared_statements=False)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("create table prepared (how_many bigint)")
    count = "insert into prepared select count(*) from pg_prepared_statements"

    def pay() -> int:
        current_operation().connection.execute(count)
        return 1

    async def pay_async() -> int:
        await current_operation().connection.execute(count)
        return 1

    for number in range(8):  # a driver prepares what it has seen a few times
        assert idempotency.once(tenant="t", key=f"s{number}", run=pay, mode="atomic") == 1

    async def story() -> None:
        for number in range(8):
            key = f"a{number}"
            assert await idempotency.once_async(tenant="t", key=key, run=pay_async, mode="atomic") == 1
        await idempotency.aclose()

    asyncio.run(story())
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute("select how_many, count(*) from prepared group by 1").fetchall()
    assert rows == [(0, 16)]
