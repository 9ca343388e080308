"""What a handler is lent on SQLite: it ends with the operation, and nothing of it gets in anybody's way."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lab.processes import wait_until
from samekey import ConfigurationError, Idempotency, current_operation
from samekey.core.states import Mode
from samekey.drivers.sqlite.driver import SQLiteDriver, SQLiteSession
from samekey.drivers.sqlite.driver_async import AsyncSQLiteDriver
from samekey.drivers.sqlite.lent import USED
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import CommitRefused, OperationOver
from samekey.stores.sql import queries
from tests.stores.crash_scenarios import PAID, effects, exchange_of, execute, prepare, state_of

INSERT = "insert into t values (1)"


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "x.db")
    with closing(sqlite3.connect(found)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (a)")
    return found


@pytest.fixture
def driver(path: str) -> Iterator[SQLiteDriver]:
    made = SQLiteDriver(path)
    yield made
    made.close()


@pytest.fixture
def url(sqlite_url: str) -> str:
    prepare(sqlite_url)
    return sqlite_url


def rows(path: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("select count(*) from t").fetchone()[0]
        return count


def threads() -> set[threading.Thread]:
    """Without the one that wakes for handlers that hang: it stays."""
    return {thread for thread in threading.enumerate() if thread.name != "samekey alarm"}


ENDS: list[Callable[[SQLiteSession], None]] = [SQLiteSession.commit, SQLiteSession.rollback]

LATE_USES: dict[str, Callable[[Any, Any], Any]] = {
    "a statement": lambda connection, _: connection.execute(INSERT),
    "many": lambda connection, _: connection.executemany("insert into t values (?)", [(1,)]),
    "a script": lambda connection, _: connection.executescript(INSERT),
    "a new cursor": lambda connection, _: connection.cursor(),
    "a cursor's statement": lambda _, cursor: cursor.execute(INSERT),
    "a cursor's rows": lambda _, cursor: cursor.fetchone(),
    "a cursor's next row": lambda _, cursor: next(cursor),
    "a commit": lambda connection, _: connection.commit(),
    "a close": lambda connection, _: connection.close(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", LATE_USES)
def test_a_late_use_is_refused(
    driver: SQLiteDriver, path: str, end: Callable[[SQLiteSession], None], name: str
) -> None:
    session = driver.open()
    connection = session.connection
    cursor = connection.cursor()
    cursor.execute("select 1 union select 2")
    end(session)
    with pytest.raises(OperationOver, match="is over"):
        LATE_USES[name](connection, cursor)
    assert rows(path) == 0


def raw(connection: Any) -> None:
    """Past everything that our own classes could ask."""
    sqlite3.Cursor(connection).execute(INSERT)


@pytest.mark.parametrize("write", [lambda connection: connection.execute(INSERT), raw])
@pytest.mark.parametrize("end", ENDS)
def test_a_left_over_thread_writes_nothing_between_the_end_and_the_close(
    driver: SQLiteDriver,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[SQLiteSession], None],
    write: Callable[[Any], None],
) -> None:
    session = driver.open()
    connection = session.connection
    refused: list[BaseException] = []

    def left_over() -> None:
        try:
            write(connection)
        except (OperationOver, sqlite3.DatabaseError) as error:
            refused.append(error)

    close = driver.let_go

    def close_late(held: Any) -> None:
        thread = threading.Thread(target=left_over)
        thread.start()
        thread.join(30)
        close(held)

    monkeypatch.setattr(driver, "let_go", close_late)
    end(session)
    assert len(refused) == 1
    assert rows(path) == 0


def test_the_end_waits_for_a_thread_in_the_middle_of_a_statement(driver: SQLiteDriver, path: str) -> None:
    session = driver.open()
    connection = session.connection
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        inside.set()
        assert go_on.wait(30)
        return 1

    connection.create_function("slow", 0, slow)
    thread = threading.Thread(target=lambda: connection.execute("insert into t values (slow())"))
    thread.start()
    assert inside.wait(30)
    threading.Timer(0.05, go_on.set).start()
    session.commit()
    thread.join(30)
    assert rows(path) == 1, "it was begun inside the transaction and committed with it"


def test_a_statement_that_never_ends_is_cut_short_and_nothing_is_committed(path: str) -> None:
    driver = SQLiteDriver(path, busy_seconds=0.1)
    session = driver.open()
    connection = session.connection
    connection.execute(INSERT)
    endless = "with recursive n (x) as (select 1 union all select x + 1 from n) select count(*) from n"
    began = threading.Event()
    connection.set_progress_handler(began.set, 1000)  # None lets it go on
    failed: list[BaseException] = []

    def left_over() -> None:
        try:
            connection.execute(endless)
        except sqlite3.OperationalError as error:
            failed.append(error)

    thread = threading.Thread(target=left_over)
    thread.start()
    assert began.wait(30)
    with pytest.raises(Exception, match="nothing was committed"):
        session.commit()
    thread.join(30)
    assert [str(error) for error in failed] == ["interrupted"]
    session.rollback()
    with closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("begin immediate")  # nobody holds the write lock
    assert rows(path) == 0
    driver.close()


REFUSED: dict[str, Callable[[Any], Any]] = {
    "close": lambda connection: connection.close(),
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "a block": lambda connection: connection.__enter__(),
    "another authorizer": lambda connection: connection.set_authorizer(None),
    "begin": lambda connection: connection.execute("begin"),
    "commit as text": lambda connection: connection.execute(" /* now */ commit"),
    "end as text": lambda connection: connection.execute("END"),
    "rollback as text": lambda connection: connection.cursor().execute("rollback"),
    "a script": lambda connection: connection.executescript("select 1; commit"),
    "a blob to write": lambda connection: connection.blobopen("t", "a", 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_lent_connection_does_not_end_its_transaction(driver: SQLiteDriver, path: str, name: str) -> None:
    session = driver.open()
    session.connection.execute("insert into t values (zeroblob(3))")
    with pytest.raises(CommitRefused):
        REFUSED[name](session.connection)
    assert rows(path) == 0
    session.commit()
    assert rows(path) == 1


def test_a_transaction_mode_of_the_connection_is_refused_too(driver: SQLiteDriver, path: str) -> None:
    session = driver.open()
    session.connection.execute(INSERT)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        session.connection.isolation_level = None  # it would commit
    session.rollback()
    assert rows(path) == 0


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_handler_whose_connection_is_closed_behind_our_back_keeps_no_claim(url: str, style: str) -> None:
    idempotency = Idempotency(url)
    rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, {})

    def break_it(connection: Any) -> None:
        connection.execute("insert into effects values ('k')")
        sqlite3.Connection.close(connection)

    async def story() -> Any:
        running = await idempotency.engine.begin_async(exchange_of("k"), rules)
        assert isinstance(running, Running)
        await running.session.lend(break_it)
        return (await idempotency.engine.finish_async(running, Handled(PAID))).answer

    if style == "async":
        answer = asyncio.run(story())
    else:
        running = idempotency.engine.begin(exchange_of("k"), rules)
        assert isinstance(running, Running)
        break_it(running.operation.connection)
        answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 503
    assert state_of(url, "k") is None and effects(url, "k") == 0
    asyncio.run(idempotency.aclose())


def test_what_a_handler_set_meets_nobody(driver: SQLiteDriver) -> None:
    session = driver.open()
    session.connection.row_factory = sqlite3.Row
    session.connection.text_factory = bytes
    session.connection.create_function("hex", 1, lambda _: "0")
    session.connection.execute("create temp table mine (a)")
    session.connection.execute("pragma foreign_keys = on")
    session.commit()
    again = driver.open()
    assert again.connection.row_factory is None and again.connection.text_factory is str
    assert again.connection.execute("pragma foreign_keys").fetchone() == (0,)
    assert again.connection.execute("select hex('a')").fetchone() == ("61",)
    assert again.connection.execute("select count(*) from sqlite_temp_master").fetchone() == (0,)
    again.rollback()


# ------------------------------------------------------------------ async


def test_a_use_after_the_end_does_not_take_the_turn(path: str) -> None:
    async def story() -> None:
        driver = AsyncSQLiteDriver(SQLiteDriver(path, busy_seconds=1))
        for end in ("commit", "rollback"):
            session = await driver.open()
            connection = session.connection
            await connection.execute(INSERT)
            await getattr(session, end)()
            for use in (connection.execute(INSERT), connection.executemany(INSERT, [()])):
                with pytest.raises(OperationOver):
                    await use
            never_begun = await driver.open()
            await getattr(never_begun, end)()
            with pytest.raises(OperationOver):
                await never_begun.connection.execute(INSERT)
            another = await driver.open()
            await another.connection.execute("insert into t values (2)")
            await another.commit()
        await driver.close()
        driver.driver.close()

    asyncio.run(story())
    assert rows(path) == 3


def test_what_waits_for_its_turn_when_its_operation_ends_does_not_get_it(path: str) -> None:
    async def story() -> None:
        driver = AsyncSQLiteDriver(SQLiteDriver(path, busy_seconds=20))
        first, second = await driver.open(), await driver.open()
        await first.connection.execute(INSERT)
        left_over = asyncio.ensure_future(second.connection.execute(INSERT))
        cancelled = asyncio.ensure_future((await driver.open()).connection.execute(INSERT))
        await asyncio.sleep(0)
        cancelled.cancel()
        await second.rollback()
        await first.commit()
        with pytest.raises(OperationOver):
            await left_over
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        third = await driver.open()
        async with asyncio.timeout(10):
            await third.connection.execute(INSERT)
        await third.commit()
        await driver.close()
        driver.driver.close()

    asyncio.run(story())
    assert rows(path) == 2


def test_the_rest_of_a_gather_writes_nothing_after_the_end(path: str) -> None:
    async def story() -> None:
        driver = AsyncSQLiteDriver(SQLiteDriver(path))
        session = await driver.open()
        rest = [asyncio.ensure_future(session.connection.execute(INSERT)) for _ in range(5)]
        await asyncio.sleep(0)
        await session.rollback()
        results = await asyncio.gather(*rest, return_exceptions=True)
        assert any(isinstance(result, OperationOver) for result in results)
        await driver.close()
        driver.driver.close()

    asyncio.run(story())
    assert rows(path) == 0


def test_replays_do_not_wait_behind_writers(url: str) -> None:
    """Forty new keys wait for the write lock, and it is not given free until the replay is there."""

    async def story() -> None:
        idempotency = Idempotency(url, timeout=60)
        for mode in (Mode.LEASED, Mode.ATOMIC):
            rules, key = rules_from(idempotency.engine.policy, mode, {}), f"done-{mode}"
            running = await idempotency.engine.begin_async(exchange_of(key), rules)
            assert isinstance(running, Running)
            if mode is Mode.ATOMIC:
                await running.operation.connection.execute("insert into effects values ('done')")
            await idempotency.engine.finish_async(running, Handled(PAID))
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
                other.execute("begin immediate")
                new = [
                    asyncio.ensure_future(idempotency.engine.begin_async(exchange_of(f"{mode}-{n}"), rules))
                    for n in range(40)
                ]
                await asyncio.sleep(0.2)  # for most of them to be at the lock; more would prove no more
                async with asyncio.timeout(20):
                    replay = await idempotency.engine.begin_async(exchange_of(key), rules)
                assert not isinstance(replay, Running) and replay is not None and replay.status == 201
                other.execute("commit")
            for begun in await asyncio.gather(*new):
                assert isinstance(begun, Running)
                await idempotency.engine.finish_async(begun, Handled(None, ValueError()))
        await idempotency.aclose()

    asyncio.run(story())


def test_a_forked_child_leaves_the_memory_database_alone() -> None:
    """It ends as a process does, with everything that runs at its exit."""
    program = """
import os, sys
from samekey import Idempotency
from samekey.core.states import Mode

idempotency = Idempotency("sqlite:///:memory:")
idempotency.check()
for close in (True, False):
    child = os.fork()
    if child == 0:
        if close:
            idempotency.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.exists(idempotency.engine.drivers.sync.path), close
print(os.path.dirname(idempotency.engine.drivers.sync.path))
idempotency.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.is_absolute() and not folder.exists()  # it goes with its process


@pytest.mark.parametrize("moment", range(12))
def test_an_operation_that_is_cancelled_leaves_nothing_behind(url: str, moment: int) -> None:
    """Cancelled after so many steps of the event loop, while another one has the turn."""

    async def story() -> None:
        idempotency = Idempotency(url)
        rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, {})

        async def operation(key: str) -> None:
            running = await idempotency.engine.begin_async(exchange_of(key), rules)
            assert isinstance(running, Running)
            try:
                await running.operation.connection.execute(f"insert into effects values ('{key}')")
            except BaseException as error:
                await idempotency.engine.finish_async(running, Handled(None, error))
                raise
            await idempotency.engine.finish_async(running, Handled(PAID))

        blocker = await idempotency.engine.drivers.aio.open()
        await blocker.connection.execute("insert into effects values ('blocker')")
        task = asyncio.ensure_future(operation("cancelled"))
        for _ in range(moment):
            await asyncio.sleep(0.002 if moment > 6 else 0)
        task.cancel()
        await asyncio.sleep(0)
        await blocker.rollback()
        await asyncio.gather(task, return_exceptions=True)
        for key in ("next", "after-next"):
            async with asyncio.timeout(20):
                await operation(key)
        await idempotency.aclose()

    before = threads()
    asyncio.run(story())
    wait_until(lambda: threads() <= before)  # those of other tests may end meanwhile
    assert effects(url, "next") == effects(url, "after-next") == 1
    stored = {row[0] for row in execute(url, "select key from samekey_keys where state = 'completed'")}
    assert effects(url, "cancelled") == (1 if "cancelled" in stored else 0)
    assert effects(url, "blocker") == 0


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_handler_that_runs_too_long_does_not_keep_the_write_lock(url: str, style: str) -> None:
    """Once its longest run is over, others can write, and it commits nothing more."""
    idempotency = Idempotency(url)
    options = {"lease": 1, "max_run": 2}
    rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, options)
    path = url.removeprefix("sqlite:///")

    def lock_is_free() -> bool:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            return True

    async def story() -> Any:
        running = await idempotency.engine.begin_async(exchange_of("slow"), rules)
        assert isinstance(running, Running)
        connection = running.operation.connection
        await connection.execute("insert into effects values ('slow')")
        await asyncio.to_thread(wait_until, lock_is_free)
        with pytest.raises(OperationOver):
            await connection.execute("insert into effects values ('slow')")
        following = await idempotency.engine.drivers.aio.open()
        await following.connection.execute("insert into effects values ('following')")
        await following.commit()
        return (await idempotency.engine.finish_async(running, Handled(PAID))).answer

    if style == "async":
        answer = asyncio.run(story())
    else:
        running = idempotency.engine.begin(exchange_of("slow"), rules)
        assert isinstance(running, Running)
        running.operation.connection.execute("insert into effects values ('slow')")
        wait_until(lock_is_free)
        with pytest.raises(OperationOver):
            running.operation.connection.execute("insert into effects values ('slow')")
        execute(url, "insert into effects values ('following')")
        answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 503
    assert effects(url, "slow") == 0 and effects(url, "following") == 1
    asyncio.run(idempotency.aclose())


LEFT: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "a deadline": lambda connection: connection.set_progress_handler(lambda: 1, 1),
    "read only": lambda connection: connection.execute("pragma query_only = on"),
    "nothing": lambda connection: None,
}


@pytest.mark.parametrize("what", LEFT)
def test_what_a_handler_leaves_on_its_connection_does_not_reach_the_record(url: str, what: str) -> None:
    idempotency = Idempotency(url)

    def pay() -> str:
        connection = current_operation().connection
        connection.execute("insert into effects values (?)", (f"left-{what}",))
        LEFT[what](connection)
        return "paid"

    assert [idempotency.once(tenant="t", key=what, run=pay, mode="atomic") for _ in range(2)] == ["paid"] * 2
    assert effects(url, f"left-{what}") == 1
    idempotency.close()


def test_a_function_that_our_statements_use_cannot_be_replaced(url: str) -> None:
    """As tests freeze a clock: the record would be born at that time."""
    idempotency = Idempotency(url)

    def pay() -> str:
        connection = current_operation().connection
        connection.execute("insert into effects values ('frozen')")
        for name in ("julianday", "JulianDay"):
            with pytest.raises(ConfigurationError, match="another name"):
                connection.create_function(name, -1, lambda *given: 0)
        with pytest.raises(ConfigurationError, match="another name"):
            connection.create_aggregate("max", 1, object)
        connection.create_function("fee", 1, lambda cents: cents // 10)
        return str(connection.execute("select fee(100)").fetchone()[0])

    assert idempotency.once(tenant="t", key="frozen", run=pay, mode="atomic") == "10"
    idempotency.close()


def test_every_function_of_our_statements_is_known() -> None:
    folder = Path(queries.__file__).parent / "sqlite"
    texts = " ".join(one.read_text() for one in folder.rglob("*.sql"))
    known = sqlite3.connect(":memory:").execute("select distinct name from pragma_function_list").fetchall()
    called = set(re.findall(r"\b([a-z_]+) ?\(", texts)) & {name for (name,) in known}
    assert called - {"raise"} <= USED


def test_a_store_in_memory_lives_on_after_a_close() -> None:
    """As with two test clients, one after the other: each begins and ends the application."""
    idempotency = Idempotency("sqlite:///:memory:")
    idempotency.migrate()
    for _ in range(2):
        assert idempotency.once(tenant="t", key="k", run=lambda: 1) == 1
        asyncio.run(idempotency.aclose())
    idempotency.close()
