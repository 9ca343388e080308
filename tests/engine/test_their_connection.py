"""Atomic work on a connection of the application's: it ends with the call, and a lost one holds no key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, StoreUnavailable, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.testing.cancellation import Cancellation, enumerate_cancellations

INSERT = "insert into payments values ($1)"
TURNS = 50
"""Of the event loop: more than anybody needs to leave."""


class Bank:
    """An application with a pool of its own."""

    def __init__(self, url: str, pool: asyncpg.Pool[Any]) -> None:
        self.url = url
        self.pool = pool
        self.idempotency = Idempotency(url)
        self.idempotency.migrate()
        self.ask("create table payments (key text)")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(sql.encode())
            return found.fetchall() if found.description else []

    def rows(self, key: str) -> int:
        return int(self.ask(f"select count(*) from payments where key = '{key}'")[0][0])

    async def pay(self, key: str, connection: Any, then: Callable[[], Awaitable[object]]) -> Any:
        async def run() -> str:
            await current_operation().connection.execute(INSERT, key)
            await then()
            return "paid"

        return await self.idempotency.once_async(
            tenant="t", key=key, run=run, mode="atomic", connection=lambda _: connection
        )

    async def lose(self, connection: Any, how: str) -> None:
        if how == "given back":
            await self.pool.release(connection)
        elif how == "closed":
            await connection.close()
        elif how == "hung up":
            connection.terminate()
        else:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            self.ask(f"select pg_terminate_backend({connection.get_server_pid()})")
            await asyncio.wait_for(lost.wait(), 20)


@asynccontextmanager
async def bank_at(url: str) -> AsyncIterator[Bank]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        bank = Bank(url, pool)
        try:
            yield bank
        finally:
            await bank.idempotency.aclose()


async def nothing() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["given back", "closed", "hung up", "ended by the server"])
def test_a_connection_that_is_lost_under_the_handler_holds_no_key(postgres_url: str, how: str) -> None:
    async def story() -> None:
        async with bank_at(postgres_url) as bank:
            async with bank.pool.acquire() as lost:
                with pytest.raises(StoreUnavailable):
                    await bank.pay("k", lost, lambda: bank.lose(lost, how))
            assert bank.rows("k") == 0
            async with bank.pool.acquire() as connection:
                for _ in range(2):
                    assert await bank.pay("k", connection, nothing) == "paid"
            assert bank.rows("k") == 1

    asyncio.run(story())


def test_a_connection_that_has_another_user_by_now_is_not_touched(postgres_url: str) -> None:
    """The handler gives it back, and somebody else has it, and a transaction on it, when the work ends."""

    async def story() -> None:
        async with bank_at(postgres_url) as bank:
            connection = await bank.pool.acquire()
            others: list[Any] = []

            async def hand_over() -> None:
                await bank.pool.release(connection)
                others.append(await bank.pool.acquire())
                others.append(others[0].transaction())
                await others[1].start()
                await others[0].execute(INSERT, "other")

            with pytest.raises(StoreUnavailable):
                await bank.pay("k", connection, hand_over)
            assert others[0].is_in_transaction()
            await others[1].commit()
            await bank.pool.release(others[0])
            assert (bank.rows("k"), bank.rows("other")) == (0, 1)

    asyncio.run(story())


def test_a_cancelled_call_gives_the_connection_back_only_when_it_is_done_with_it(postgres_url: str) -> None:
    """At every point at which it waits."""

    async def story() -> None:
        async with bank_at(postgres_url) as bank:
            left: list[str] = []

            async def operation(cancellation: Cancellation) -> Any:
                cancellation.aim(None)
                connection = await bank.pool.acquire()
                task = asyncio.ensure_future(bank.pay(cancellation.label, connection, nothing))
                cancellation.aim(task.cancel)
                try:
                    return await task
                finally:
                    cancellation.aim(None)
                    if connection._con is not None and connection.is_in_transaction():
                        left.append(f"in a transaction, at {cancellation.number}, {cancellation.moment}")
                    try:
                        await bank.pool.release(connection)
                    except Exception as error:
                        left.append(f"{error}, at {cancellation.number}, {cancellation.moment}")

            points = 0
            async for cancelled in enumerate_cancellations(operation):
                points += 1
                async with bank.pool.acquire() as connection:
                    assert await bank.pay(cancelled.label, connection, nothing) == "paid", cancelled
                assert bank.rows(cancelled.label) == 1
            assert points > 6
            assert not left, "\n".join(left)

    asyncio.run(story())


def test_a_cancelled_request_ends_after_its_handler(postgres_url: str) -> None:
    """A middleware around samekey's lends the connection, and takes it back when the request ends."""

    async def story() -> None:
        async with bank_at(postgres_url) as bank:
            told: list[str] = []
            entered, go_on = asyncio.Event(), asyncio.Event()

            async def pay(request: Request) -> JSONResponse:
                connection = current_operation().connection
                entered.set()
                await go_on.wait()
                await connection.execute(INSERT, "k")
                told.append("done")
                return JSONResponse({}, 201)

            guarded = bank.idempotency.atomic(connection=lambda scope: scope["state"]["connection"])(pay)
            inner = IdempotencyMiddleware(
                Starlette(routes=[Route("/payments", guarded, methods=["POST"])]),
                idempotency=bank.idempotency,
                tenant=lambda _: "t",
            )

            async def app(scope: Any, receive: Any, send: Any) -> None:
                async with bank.pool.acquire() as connection:
                    scope.setdefault("state", {})["connection"] = connection
                    try:
                        await inner(scope, receive, send)
                    finally:
                        told.append("given back")

            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://bank") as client:

                def send() -> asyncio.Task[httpx.Response]:
                    return asyncio.ensure_future(client.post("/payments", headers={"Idempotency-Key": "k"}))

                first = send()
                await asyncio.wait_for(entered.wait(), 20)
                for _ in range(2):
                    first.cancel()
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await first
                assert told == ["done", "given back"]
                again = await send()
                assert (again.status_code, again.headers.get("Idempotent-Replayed")) == (201, "true")
            assert bank.rows("k") == 1

    asyncio.run(story())
