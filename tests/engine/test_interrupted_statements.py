"""A handler whose statement is interrupted, by its own deadline say, and goes on: nothing of it stands.

On SQLite and MySQL async code's statements run in threads, and nobody can call back what a thread has begun.
PostgreSQL is asked to cancel it, and may have carried it out before it hears of that.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from lab.processes import wait_until
from lab.servers import mariadb
from lab.servers.mariadb import NamedServer
from samekey import Idempotency, current_operation
from samekey.drivers.sqlite.driver import SQLiteSession
from samekey.errors import FailedTransaction, StoreUnavailable
from tests.chosen import whole

DEBIT = "update accounts set cents = cents - 10 where id = 1"


@dataclass(frozen=True)
class Bank:
    """One account with a hundred cents, and somebody else who may have it locked."""

    idempotency: Idempotency
    ask: Callable[[str], Any]
    locked: Callable[[], Any]
    """A context in which whoever debits has to wait."""
    waits: Callable[[], object]
    """Returns once a debit waits."""

    def cents(self) -> int:
        return int(self.ask("select cents from accounts")[0][0])


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=whole)])
def bank(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    make = _sqlite(tmp_path, monkeypatch) if request.param == "sqlite" else _mariadb(request)
    with make as made:
        made.idempotency.migrate()
        made.ask("create table accounts (id int primary key, cents int)")
        made.ask("insert into accounts values (1, 100)")
        yield made


@contextmanager
def _sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    import sqlite3
    import threading

    path = tmp_path / "x.db"
    idempotency = Idempotency(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    begins, real = threading.Event(), SQLiteSession._begin

    def begin(session: SQLiteSession) -> Any:
        begins.set()
        return real(session)

    monkeypatch.setattr(SQLiteSession, "_begin", begin)

    @contextmanager
    def locked() -> Iterator[None]:
        other.execute("begin immediate")
        begins.clear()
        yield
        other.execute("commit")

    def waits() -> None:
        assert begins.wait(30)

    yield Bank(idempotency, lambda sql: other.execute(sql).fetchall(), locked, waits)
    other.close()
    idempotency.close()


@contextmanager
def _mariadb(request: pytest.FixtureRequest) -> Iterator[Bank]:
    server: NamedServer = request.getfixturevalue("mariadb_server")
    url = server.create_database()
    idempotency = Idempotency(url, timeout=4)
    database = urlsplit(url).path[1:]
    looked = (
        "select 1 from information_schema.innodb_trx t join information_schema.processlist p "
        f"on p.id = t.trx_mysql_thread_id where p.db = '{database}' and t.trx_state = 'LOCK WAIT'"
    )

    @contextmanager
    def locked() -> Iterator[None]:
        with mariadb.connected(url, autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("select * from accounts where id = 1 for update")
            yield
            other.rollback()

    yield Bank(
        idempotency,
        lambda sql: mariadb.ask(url, sql),
        locked,
        lambda: wait_until(lambda: bool(mariadb.ask(url, looked)), interval=0.3),
    )
    idempotency.close()


async def interrupted(bank: Bank, connection: Any) -> None:
    """A debit that is cancelled while it waits for a lock, which comes free after that."""
    with bank.locked():
        debiting = asyncio.ensure_future(connection.execute(DEBIT))
        await asyncio.to_thread(bank.waits)
        debiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await debiting


@pytest.mark.parametrize("goes_on", ["tries again", "tries again and swallows", "answers"])
def test_nothing_stands_of_a_handler_that_goes_on(bank: Bank, goes_on: str) -> None:
    hurried = True

    async def debit() -> int:
        connection = current_operation().connection
        if hurried:
            await interrupted(bank, connection)
            if goes_on == "answers":
                return 0
        try:
            await connection.execute(DEBIT)
        except FailedTransaction:
            if goes_on == "tries again":
                raise
        return 10

    async def story() -> None:
        nonlocal hurried
        with pytest.raises(FailedTransaction, match="interrupted"):
            await bank.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic")
        assert bank.cents() == 100
        hurried = False
        assert await bank.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic") == 10
        await bank.idempotency.aclose()

    asyncio.run(story())
    assert bank.cents() == 90, "the same key may be tried again, and is debited once"


def test_a_statement_that_had_not_begun_costs_nothing(bank: Bank) -> None:
    """It waits in the event loop for another one of the same handler's."""

    async def debit() -> int:
        connection = current_operation().connection
        with bank.locked():
            first = asyncio.ensure_future(connection.execute(DEBIT))
            await asyncio.to_thread(bank.waits)
            second = asyncio.ensure_future(connection.execute(DEBIT))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        await first
        return 10

    async def story() -> None:
        assert await bank.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic") == 10
        await bank.idempotency.aclose()

    asyncio.run(story())
    assert bank.cents() == 90


@whole
@pytest.mark.parametrize("bank", ["mariadb"], indirect=True)
@pytest.mark.parametrize("goes_on", [True, False])
def test_the_end_does_not_wait_for_what_was_interrupted(bank: Bank, goes_on: bool) -> None:
    hurried = True

    async def debit() -> int:
        connection = current_operation().connection
        if not hurried:
            await connection.execute(DEBIT)
            return 10
        debiting = asyncio.ensure_future(connection.execute(DEBIT))
        await asyncio.to_thread(bank.waits)
        debiting.cancel()
        await asyncio.wait({debiting})
        if not goes_on:
            raise TimeoutError
        return 0

    async def story() -> None:
        nonlocal hurried
        with bank.locked(), pytest.raises((StoreUnavailable, TimeoutError)):
            # Locked for as long as the operation has not ended.
            await bank.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic")
        assert bank.cents() == 100
        hurried = False
        assert await bank.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic") == 10
        await bank.idempotency.aclose()

    asyncio.run(asyncio.wait_for(story(), 45))
    assert bank.cents() == 90


# PostgreSQL


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Bank]:
    """Whoever debits is answered late: the cancel request comes when it is done."""
    idempotency = Idempotency(postgres_url)
    idempotency.migrate()
    with psycopg.connect(postgres_url, autocommit=True) as other:

        def ask(sql: str) -> Any:
            found = other.execute(sql)
            return found.fetchall() if found.description else []

        ask("create table accounts (id int primary key, cents int)")
        ask("insert into accounts values (1, 100)")
        yield Bank(idempotency, ask, lambda: None, lambda: None)
    other.close()
    idempotency.close()


async def carried_out_and_cancelled(connection: Any) -> None:
    """A debit that the server has carried out when its caller is cancelled, before the reply was read."""
    debiting = asyncio.ensure_future(connection.execute(DEBIT))
    await asyncio.sleep(0)  # it is sent
    real = connection._target
    line = real._transport.get_extra_info("socket").fileno()
    assert select.select([line], [], [], 30)[0], "the reply is there, and nobody has read it"
    debiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await debiting


@pytest.mark.parametrize("goes_on", ["tries again", "answers"])
def test_on_postgres_nothing_stands_of_a_handler_that_goes_on(postgres: Bank, goes_on: str) -> None:
    async def debit() -> int:
        connection = current_operation().connection
        await connection.execute("select 1 from accounts")
        await carried_out_and_cancelled(connection)
        if goes_on == "tries again":
            await connection.execute(DEBIT)
        return 10

    async def story() -> None:
        with pytest.raises(FailedTransaction, match="interrupted"):
            await postgres.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic")
        await postgres.idempotency.aclose()

    asyncio.run(story())
    assert postgres.cents() == 100


@pytest.mark.parametrize("deep", [1, 2])
def test_a_savepoint_that_is_rolled_back_takes_the_doubt_with_it(postgres: Bank, deep: int) -> None:
    async def debit() -> int:
        connection = current_operation().connection
        with pytest.raises(TimeoutError):
            await nested(connection, deep)
        await connection.execute(DEBIT)
        return 10

    async def nested(connection: Any, deep: int) -> None:
        async with connection.transaction():
            if deep > 1:
                await nested(connection, deep - 1)
            await connection.execute("select 1 from accounts")
            await carried_out_and_cancelled(connection)
            raise TimeoutError

    async def story() -> None:
        assert await postgres.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic") == 10
        await postgres.idempotency.aclose()

    asyncio.run(story())
    assert postgres.cents() == 90


def test_a_savepoint_that_began_after_the_interruption_takes_nothing_with_it(postgres: Bank) -> None:
    async def debit() -> int:
        connection = current_operation().connection
        async with connection.transaction():
            await connection.execute("select 1 from accounts")
        await carried_out_and_cancelled(connection)
        with pytest.raises(FailedTransaction):
            async with connection.transaction():
                raise AssertionError("nothing is sent")
        return 10

    async def story() -> None:
        with pytest.raises(FailedTransaction, match="interrupted"):
            await postgres.idempotency.once_async(tenant="t", key="k", run=debit, mode="atomic")
        await postgres.idempotency.aclose()

    asyncio.run(story())
    assert postgres.cents() == 100
