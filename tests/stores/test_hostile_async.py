"""asyncpg connections as users really have them (see ``test_hostile.py``)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from samekey.core.record import Answer
from samekey.errors import ConfigurationError, OpenTransaction, WrongIsolation
from tests.stores.crash_scenarios import effects
from tests.stores.hostile import SETTINGS, atomic_async


@pytest.fixture
def url(hostile_url: str) -> str:
    return hostile_url


class LoudRecord(asyncpg.Record):  # type: ignore[misc]
    def __getitem__(self, name: Any) -> Any:
        raise AssertionError("our statements must not use the user's record class")


def check_cycle_async(url: str, connect: Callable[[], Awaitable[Any]]) -> None:
    label = secrets.token_hex(8)

    async def cycle() -> None:
        for replayed in (False, True):
            connection = await connect()
            answer = await atomic_async(url, connection, label)
            assert answer is not None and (answer.status, answer.body) == (201, b"paid"), answer
            assert ((b"Idempotent-Replayed", b"true") in answer.headers) == replayed
            assert not connection.is_in_transaction()
            await connection.close()

    asyncio.run(cycle())
    assert effects(url, label) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_an_async_session(url: str, name: str) -> None:
    settings = SETTINGS[name]
    if "client_encoding" in settings:
        pytest.skip("asyncpg speaks UTF-8 only")
    check_cycle_async(url, lambda: asyncpg.connect(url, server_settings=settings))


def test_a_record_class_of_the_users_own(url: str) -> None:
    check_cycle_async(url, lambda: asyncpg.connect(url, record_class=LoudRecord))


def test_no_statement_cache(url: str) -> None:
    check_cycle_async(url, lambda: asyncpg.connect(url, statement_cache_size=0))


def test_a_connection_of_the_users_pool(url: str) -> None:
    label = secrets.token_hex(8)

    async def cycle() -> None:
        async with asyncpg.create_pool(url, min_size=0, max_size=1) as pool:
            for _ in range(2):
                async with pool.acquire() as connection:
                    answer = await atomic_async(url, connection, label)
                    assert answer is not None and answer.status == 201

    asyncio.run(cycle())
    assert effects(url, label) == 1


async def connect_with_codec(url: str, kind: str) -> Any:
    connection = await asyncpg.connect(url)
    await connection.set_type_codec(
        kind,
        schema="pg_catalog",
        encoder=lambda value: "1234",
        decoder=lambda value: Decimal(-1),
        format="text",
    )
    return connection


@pytest.mark.parametrize("kind", ["json", "jsonb", "numeric", "timestamptz", "uuid"])
def test_codecs_of_types_that_we_do_not_use(url: str, kind: str) -> None:
    check_cycle_async(url, lambda: connect_with_codec(url, kind))


@pytest.mark.parametrize("kind", ["text", "int8", "bytea"])
def test_codecs_of_types_that_we_do_use_are_refused_before_anything_runs(url: str, kind: str) -> None:
    """asyncpg cannot leave them out for one statement; a key that is written as another must never be."""
    label = secrets.token_hex(8)

    async def refused() -> None:
        connection = await connect_with_codec(url, kind)
        with pytest.raises(ConfigurationError, match="codec"):
            await atomic_async(url, connection, label)
        assert not connection.is_in_transaction()
        await connection.close()

    asyncio.run(refused())
    assert effects(url, label) == 0


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_isolation_level_is_refused_async(url: str, level: str) -> None:
    label = secrets.token_hex(8)

    async def refused() -> None:
        connection = await asyncpg.connect(url, server_settings={"default_transaction_isolation": level})
        with pytest.raises(WrongIsolation):
            await atomic_async(url, connection, label)
        assert not connection.is_in_transaction()
        await connection.close()

    asyncio.run(refused())
    assert effects(url, label) == 0


def test_an_async_connection_inside_a_transaction_is_refused(url: str) -> None:
    async def refused() -> None:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            with pytest.raises(OpenTransaction):
                await atomic_async(url, connection, secrets.token_hex(8))
        await connection.close()

    asyncio.run(refused())


def test_a_closed_async_connection_is_not_an_error_of_ours(url: str) -> None:
    label = secrets.token_hex(8)

    async def unavailable() -> Answer | None:
        connection = await asyncpg.connect(url)
        await connection.close()
        return await atomic_async(url, connection, label)

    answer = asyncio.run(unavailable())
    assert answer is not None and answer.status == 503
    assert effects(url, label) == 0
