"""SQLite itself rolls back a handler's transaction: nothing that the handler does after that stands."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from samekey import Idempotency, current_operation
from samekey.errors import TransactionGone, UnfinishedWork
from tests.chosen import some

TABLES = """
    create table ledger (n int);
    create table names (name text unique on conflict rollback);
    insert into names values ('bob');
    create table guarded (n int);
    create trigger guard before insert on guarded begin select raise(rollback, 'no'); end;
"""
LEDGER = "insert into ledger values (1)"


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "x.db")
    with closing(sqlite3.connect(found)) as connection:
        connection.executescript(TABLES)
    return found


def entries(path: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("select count(*) from ledger").fetchone()[0]
        return found


def through_a_cursor_of_its_own(connection: sqlite3.Connection) -> None:
    sqlite3.Cursor(connection).execute("insert into names values ('bob')")


def interrupted(connection: sqlite3.Connection) -> None:
    connection.create_function("stop", 0, connection.interrupt)
    connection.execute(
        "insert into ledger with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) "
        "select case when i = 10 then stop() else i end from n"
    )


ROLLBACKS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "the table's clause": lambda connection: connection.execute("insert into names values ('bob')"),
    "the statement's clause": lambda connection: connection.execute(
        "insert or rollback into names values ('bob')"
    ),
    "a trigger": lambda connection: connection.execute("insert into guarded values (1)"),
    "many": lambda connection: connection.executemany("insert into names values (?)", [("al",), ("bob",)]),
    "a cursor of its own": through_a_cursor_of_its_own,
    "an interrupted write": interrupted,
}

NEXT: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "a statement": lambda connection: connection.execute(LEDGER),
    "a cursor of its own": lambda connection: sqlite3.Cursor(connection).execute(LEDGER),
    "a cursor of another class": lambda connection: connection.cursor(sqlite3.Cursor).execute(LEDGER),
    "nothing": lambda connection: None,
}


@pytest.mark.parametrize(
    ("how", "then", "raises", "swallows"),
    some(
        product(ROLLBACKS, NEXT, (False, True), (False, True)),
        lambda how, then, raises, swallows: then == "a statement" or (how, raises) == ("a trigger", True),
    ),
)
def test_what_a_handler_does_after_a_rollback_of_sqlites_own_does_not_stand(
    path: str, how: str, then: str, raises: bool, swallows: bool
) -> None:
    idem = Idempotency(f"sqlite:///{path}")
    ran = []

    def pay() -> None:
        ran.append(1)
        connection = current_operation().connection
        connection.execute(LEDGER)
        sqlite3.Cursor(connection).execute(LEDGER)
        with pytest.raises(sqlite3.Error):
            ROLLBACKS[how](connection)
        with suppress(*(TransactionGone, sqlite3.DatabaseError) if swallows else (KeyError,)):
            NEXT[then](connection)
        if raises:
            raise ValueError("later")

    expected = (TransactionGone, ValueError, sqlite3.DatabaseError)
    for attempt in range(3):
        with pytest.raises(expected):
            idem.once(tenant="t", key="k", run=pay, mode="atomic")
        assert len(ran) == attempt + 1  # nothing stands, so each is free to run
        assert entries(path) == 0
    idem.close()


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_the_same_in_async_code(path: str, raises: bool) -> None:
    async def pay() -> None:
        connection = current_operation().connection
        with pytest.raises(sqlite3.IntegrityError):
            await connection.execute("insert into names values ('bob')")
        with pytest.raises(TransactionGone, match="rolled back"):
            await connection.execute(LEDGER)
        if raises:
            raise ValueError("later")

    async def main() -> None:
        idem = Idempotency(f"sqlite:///{path}")
        for _ in range(3):
            with pytest.raises(ValueError if raises else TransactionGone):
                await idem.once_async(tenant="t", key="k", run=pay, mode="atomic")
        await idem.aclose()

    asyncio.run(main())
    assert entries(path) == 0


def test_a_statement_that_failed_without_a_rollback_ends_nothing(path: str) -> None:
    idem = Idempotency(f"sqlite:///{path}")

    def pay() -> str:
        connection = current_operation().connection
        connection.execute(LEDGER)
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("insert or abort into names values ('bob')")
        connection.execute(LEDGER)
        return "paid"

    assert idem.once(tenant="t", key="k", run=pay, mode="atomic") == "paid"
    assert entries(path) == 2
    idem.close()


def test_rows_that_a_raw_cursor_left_unfetched_are_the_handlers_mistake_and_not_the_stores(
    sqlite_url: str,
) -> None:
    idempotency = Idempotency(sqlite_url)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as side:
        side.execute("create table effects (n int)")
        kept: list[sqlite3.Cursor] = []

        def run(*, fetch: bool) -> int:
            connection = current_operation().connection
            connection.execute("insert into effects values (0)")
            cursor = sqlite3.Cursor(connection)
            cursor.execute("insert into effects values (1), (2) returning n")
            kept.append(cursor)
            return len(cursor.fetchall()) if fetch else 0

        for _ in range(2):
            with pytest.raises(UnfinishedWork):
                idempotency.once(tenant="t", key="k", run=lambda: run(fetch=False), mode="atomic")
        assert side.execute("select count(*) from effects").fetchone() == (0,)
        assert idempotency.once(tenant="t", key="k", run=lambda: run(fetch=True), mode="atomic") == 2
        assert side.execute("select count(*) from effects").fetchone() == (3,)
    idempotency.close()
