"""What a handler is lent on MariaDB: it ends with the operation, and nothing of it meets the next."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest
from pymysql.connections import Connection as PlainConnection  # type: ignore[import-untyped]
from pymysql.cursors import Cursor, DictCursor, SSCursor  # type: ignore[import-untyped]

from lab.processes import wait_until
from lab.servers.mariadb import NamedServer, connected, is_mariadb, numbers
from samekey import Idempotency
from samekey.core.states import Mode
from samekey.drivers.mysql.driver import PyMySQLDriver, PyMySQLSession
from samekey.drivers.mysql.driver_async import AsyncPyMySQLDriver
from samekey.drivers.mysql.text import ends_transaction, is_plain
from samekey.drivers.mysql.url import isolation_variable
from samekey.drivers.threaded_session import AsyncConnection
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import CommitRefused, OperationOver, StoreUnavailable
from tests.chosen import whole
from tests.stores.crash_scenarios import PAID, effects, exchange_of, execute, prepare, state_of

pytestmark = whole


INSERT = "insert into effects values (%s)"


@pytest.fixture(scope="module")
def url(mariadb_server: NamedServer) -> str:
    """A prepared database; each test keeps to labels of its own."""
    made = mariadb_server.create_database()
    prepare(made)
    execute(made, "create table accounts (id int primary key, cents int)")
    execute(made, "insert into accounts values (1, 0)")
    return made


@pytest.fixture
def label() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def driver(url: str) -> Iterator[PyMySQLDriver]:
    """One connection for handlers, so that the next one gets the same."""
    made = PyMySQLDriver(url, pool_size=1, timeout=2)
    yield made
    assert free_places(made) == (1, 1)
    made.close()


def free_places(driver: PyMySQLDriver) -> tuple[int, int]:
    return tuple(pool._places._value for pool in (driver._statements, driver._operations))  # type: ignore


def threads() -> set[threading.Thread]:
    """Without the one that wakes for handlers that hang: it stays."""
    return {thread for thread in threading.enumerate() if thread.name != "samekey alarm"}


ENDS: list[Callable[[PyMySQLSession], None]] = [PyMySQLSession.commit, PyMySQLSession.rollback]

LATE_USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a statement": lambda connection, cursor, rows: connection.execute(INSERT, ("late",)),
    "a query": lambda connection, cursor, rows: connection.query("insert into effects values ('late')"),
    "a new cursor's": lambda connection, cursor, rows: connection.cursor().execute(INSERT, ("late",)),
    "an old cursor's": lambda connection, cursor, rows: cursor.execute(INSERT, ("late",)),
    "many": lambda connection, cursor, rows: cursor.executemany(INSERT, [("late",)]),
    "rows one by one": lambda connection, cursor, rows: rows.fetchall(),
    "another result": lambda connection, cursor, rows: connection.next_result(),
    "another database": lambda connection, cursor, rows: connection.select_db("mysql"),
    "ping": lambda connection, cursor, rows: connection.ping(reconnect=False),
    "warnings": lambda connection, cursor, rows: connection.show_warnings(),
    "a character set": lambda connection, cursor, rows: connection.set_character_set("latin1"),
    "connect": lambda connection, cursor, rows: connection.connect(),
    "begin": lambda connection, cursor, rows: connection.begin(),
    "commit": lambda connection, cursor, rows: connection.commit(),
    "rollback": lambda connection, cursor, rows: connection.rollback(),
    "close": lambda connection, cursor, rows: connection.close(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_late_use_reaches_nobody(
    driver: PyMySQLDriver, url: str, label: str, end: Callable[[PyMySQLSession], None]
) -> None:
    """The next one has the same session of the server meanwhile."""
    session = driver.open()
    connection = session.connection
    cursor, rows = connection.cursor(), connection.cursor(SSCursor)
    cursor.execute("select 1")
    rows.execute("select 1 union select 2 union select 3")
    assert rows.fetchone() == (1,)
    end(session)
    following = driver.open()
    following.connection.execute(INSERT, (label,))
    for name, use in LATE_USES.items():
        with pytest.raises(OperationOver):
            pytest.fail(f"{name}: {use(connection, cursor, rows)}")
    with pytest.raises(OperationOver):
        session.connection  # noqa: B018
    following.commit()
    assert effects(url, label) == 1 and effects(url, "late") == 0


@pytest.mark.parametrize("end", ENDS)
def test_a_left_over_thread_writes_nothing_after_the_end(
    driver: PyMySQLDriver,
    url: str,
    label: str,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[PyMySQLSession], None],
) -> None:
    """Not even before the connection is given back."""
    session = driver.open()
    connection = session.connection
    refused: list[BaseException] = []

    def left_over() -> None:
        try:
            connection.execute(INSERT, (label,))
        except OperationOver as error:
            refused.append(error)

    give_back = driver._operations.give_back

    def give_back_late(held: Any) -> None:
        thread = threading.Thread(target=left_over)
        thread.start()
        thread.join(30)
        give_back(held)

    monkeypatch.setattr(driver._operations, "give_back", give_back_late)
    end(session)
    assert len(refused) == 1 and effects(url, label) == 0


@pytest.fixture
def blocked(url: str) -> Iterator[Any]:
    """Somebody else, who has the row of the account."""
    with connected(url, autocommit=False) as other, other.cursor() as cursor:
        cursor.execute("select * from accounts where id = 1 for update")
        yield other


def waits(url: str, label: str) -> None:
    """Until the server has a statement with this label that waits for the row."""
    waiting = f"trx_state = 'LOCK WAIT' and trx_query like '%{label}%'"
    look = f"select 1 from information_schema.innodb_trx where {waiting}"
    wait_until(lambda: bool(execute(url, look)), interval=0.3)


def update(label: str) -> str:
    return f"update accounts set cents = cents + 1 where id = 1 /* {label} */"


def test_the_end_waits_for_a_thread_in_the_middle_of_a_statement(url: str, label: str, blocked: Any) -> None:
    driver = PyMySQLDriver(url, timeout=30)
    session = driver.open()
    session.connection.execute(INSERT, (label,))
    cents = execute(url, "select cents from accounts")[0][0]
    thread = threading.Thread(target=session.connection.execute, args=(update(label),))
    thread.start()
    waits(url, label)
    threading.Timer(0.1, blocked.rollback).start()
    session.commit()
    thread.join(30)
    assert effects(url, label) == 1
    assert execute(url, "select cents from accounts")[0][0] == cents + 1, "begun inside, committed with it"
    assert free_places(driver) == (10, 10)
    driver.close()


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_statement_that_does_not_end_is_cut_off_and_nothing_is_committed(
    url: str, label: str, blocked: Any, how: str
) -> None:
    driver = PyMySQLDriver(url, pool_size=1, timeout=1)
    session = driver.open()
    connection = session.connection
    connection.execute(INSERT, (label,))
    failed: list[BaseException] = []

    def left_over() -> None:
        try:
            connection.execute(update(label))
        except pymysql.err.OperationalError as error:
            failed.append(error)

    thread = threading.Thread(target=left_over)
    thread.start()
    waits(url, label)
    if how == "commit":
        with pytest.raises(StoreUnavailable, match="nothing was committed"):
            session.commit()
    session.rollback()
    thread.join(30)
    assert len(failed) == 1
    assert free_places(driver) == (1, 1)
    blocked.rollback()
    following = driver.open()
    following.connection.execute(INSERT, (f"{label}-2",))
    following.commit()
    assert effects(url, label) == 0 and effects(url, f"{label}-2") == 1
    driver.close()


REFUSED: dict[str, Callable[[Any], Any]] = {
    "close": lambda connection: connection.close(),
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "begin": lambda connection: connection.begin(),
    "autocommit": lambda connection: connection.autocommit(True),
    "connect": lambda connection: connection.connect(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_lent_connection_does_not_end_its_transaction(
    driver: PyMySQLDriver, url: str, label: str, name: str
) -> None:
    session = driver.open()
    session.connection.execute(INSERT, (label,))
    with pytest.raises(CommitRefused):
        REFUSED[name](session.connection)
    with session.connection as connection:  # a block of PyMySQL's closes; it must not here
        connection.execute("select 1")
    assert effects(url, label) == 0
    session.commit()
    assert effects(url, label) == 1


ENDING = [
    "COMMIT",
    "commit work",
    " \t\n;rollback",
    "rollback and chain",
    "begin",
    "BEGIN WORK",
    "start transaction read only",
    "/* a */ /* b */ commit",
    "-- a line\ncommit",
    "# a line\ncommit",
    "/*! commit */",
    "/*!50000 commit */",
    "/*M!100100 commit */",
    "set autocommit=1",
    "SET @@autocommit = 1",
    "set @@session.autocommit := 0",
    "set session autocommit = 1",
    "set @a = 'it''s', `autocommit` = 1",
    "set names utf8mb4, @x = 1, @y = 2, @z = 3, autocommit = 1",
    "set password = 'x'",
    "create table t (x int)",
    "create or replace table t (x int)",
    "create index i on t (x)",
    "alter table t add y int",
    "drop table t",
    "truncate t",
    "truncate table t",
    "rename table a to b",
    "lock tables t write",
    "lock table t read",
    "unlock tables",
    "analyze table t",
    "optimize table t",
    "check table t",
    "flush tables",
    "grant select on *.* to x",
    "revoke select on *.* from x",
    "xa start 'x'",
    b"commit",
]
HARMLESS = [
    "",
    ";",
    "select 1",
    "insert into t values ('commit')",
    "insert into commits values (1)",
    "rollback to here",
    "rollback to savepoint here",
    "rollback work to savepoint here",
    "savepoint here",
    "release savepoint here",
    "begin not atomic select 1; end",
    "create temporary table t (x int)",
    "create or replace temporary table t (x int)",
    "drop temporary table t",
    "set @a = 'autocommit'",
    "set sql_mode = ''",
    "start",
    "analyze select 1",
    "load data infile 'x' into table t",
    "with x as (select 1) select * from x",
    "/* commit */ select 1",
    "-- commit\nselect 1",
    b"select '\xff'",
]


@pytest.mark.parametrize("text", ENDING)
def test_text_that_ends_a_transaction_is_known(text: str | bytes) -> None:
    assert ends_transaction(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_text_that_does_not_is_let_through(text: str | bytes) -> None:
    assert not ends_transaction(text)


@pytest.mark.parametrize(
    "piece", ["/**/", "/*", "/* ", " ", "'", "''", "'\\", "--", "-- \n", "#", "/*!", "`", "(", "a", "set "]
)
@pytest.mark.parametrize("before", ["", "set ", "/*", "insert into t values ('"])
def test_no_text_takes_more_than_its_length(before: str, piece: str) -> None:
    text = before + piece * 30_000 + "x"
    ends_transaction(text)
    is_plain(text)


def test_what_a_handler_set_meets_nobody(driver: PyMySQLDriver, url: str) -> None:
    session = driver.open()
    connection = session.connection
    for text in (
        "set @mine = 1",
        "set session sql_mode = 'ANSI'",
        "set session time_zone = '-11:00'",
        "set session innodb_lock_wait_timeout = 7",
        "set session transaction isolation level serializable",
        "set names latin1",
        "create temporary table mine (x int)",
        "do get_lock('mine', 0)",
    ):
        connection.execute(text)
    connection.cursorclass = DictCursor
    connection.decoders.clear()
    connection.encoders.clear()
    connection.set_character_set("latin1")
    unread = connection.cursor(SSCursor)
    unread.execute(f"select seq from {numbers(1000)}")
    session.commit()

    following = driver.open()
    connection = following.connection
    found = connection.execute(
        "select @mine, @@sql_mode like '%ANSI%', @@time_zone, @@innodb_lock_wait_timeout, "
        f"@@{isolation_variable(connection.server_version)}, @@character_set_client, is_free_lock('mine')"
    ).fetchone()
    assert found == (None, 0, "SYSTEM", 50, "READ-COMMITTED", "utf8mb4", 1)
    assert connection.cursorclass is Cursor and connection.encoding == "utf8"
    with pytest.raises(pymysql.err.ProgrammingError, match=r"mine' doesn't exist"):
        connection.execute("select * from mine")
    following.rollback()


def test_plain_statements_leave_a_connection_that_is_reset_and_kept(driver: PyMySQLDriver) -> None:
    session = driver.open()
    thread = session.connection.execute("select connection_id()").fetchone()
    session.connection.execute("do get_lock('mine', 0), @mine := 1")
    session.connection.execute("with x as (select 1) select * from x")
    session.commit()
    following = driver.open()
    found = following.connection.execute("select connection_id(), @mine, is_free_lock('mine')").fetchone()
    assert found == (*thread, None, 1)
    following.rollback()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "text",
    [
        "set role {}",
        "/*M! set @x = 1, */ /*!80000 set */ role {}",
        "call take_role()",
        "/*!50000 set role {} */",
    ],
)
def test_a_role_meets_nobody(
    driver: PyMySQLDriver, url: str, label: str, end: Callable[[PyMySQLSession], None], text: str
) -> None:
    """No reset takes it back."""
    execute(url, f"create role r{label}")
    execute(url, f"grant r{label} to current_user()")
    execute(url, "drop procedure if exists take_role")
    execute(url, f"create procedure take_role() set role r{label}")
    session = driver.open()
    session.connection.execute(text.format(f"r{label}"))
    assert f"r{label}" in session.connection.execute("select current_role()").fetchone()[0]
    end(session)
    following = driver.open()
    assert following.connection.execute("select current_role()").fetchone()[0] in (None, "NONE")
    following.rollback()
    execute(url, f"drop role r{label}")


@pytest.mark.parametrize(
    "move",
    [
        lambda connection: connection.execute("use mysql"),
        lambda connection: connection.select_db("mysql"),
        lambda connection: connection.execute("execute immediate 'set @x = 1'"),
    ],
)
def test_another_database_meets_nobody(driver: PyMySQLDriver, move: Callable[[Any], Any], url: str) -> None:
    session = driver.open()
    with nullcontext() if is_mariadb(url) else suppress(pymysql.err.ProgrammingError):
        move(session.connection)  # MySQL has no EXECUTE IMMEDIATE
    session.rollback()
    following = driver.open()
    assert following.connection.execute("select database()").fetchone() == (driver.database,)
    following.rollback()


def test_a_converter_that_fails_half_way_spoils_no_later_answer(
    driver: PyMySQLDriver, url: str, label: str
) -> None:
    session = driver.open()
    connection = session.connection
    connection.execute(INSERT, (label,))

    def fail(_: Any) -> Any:
        raise ValueError("half-way")

    connection.decoders = dict.fromkeys(connection.decoders, fail)
    with pytest.raises(ValueError, match="half-way"):
        connection.execute(f"select seq from {numbers(100)}")
    with pytest.raises(Exception, match="lost"):
        session.commit()
    session.rollback()
    assert effects(url, label) == 0
    following = driver.open()
    assert following.connection.execute("select 7").fetchone() == (7,)
    following.rollback()


# ------------------------------------------------------------------ whole operations


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_handler_whose_connection_is_closed_behind_our_back_keeps_no_claim(
    url: str, label: str, style: str
) -> None:
    idempotency = Idempotency(url)
    rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, {})

    def break_it(connection: Any) -> None:
        connection.execute(INSERT, (label,))
        PlainConnection.close(connection)

    async def story() -> Any:
        running = await idempotency.engine.begin_async(exchange_of(label), rules)
        assert isinstance(running, Running)
        await running.session.lend(break_it)
        return (await idempotency.engine.finish_async(running, Handled(PAID))).answer

    if style == "async":
        answer = asyncio.run(story())
    else:
        running = idempotency.engine.begin(exchange_of(label), rules)
        assert isinstance(running, Running)
        break_it(running.operation.connection)
        answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 503
    assert state_of(url, label) is None and effects(url, label) == 0
    asyncio.run(idempotency.aclose())


def test_async_code_gets_rows_and_counts(url: str, label: str) -> None:
    async def story() -> None:
        driver = AsyncPyMySQLDriver(PyMySQLDriver(url))
        session = await driver.open()
        connection = session.connection
        assert isinstance(connection, AsyncConnection)
        await connection.execute("create temporary table t (id int auto_increment primary key, a text)")
        made = await connection.execute("insert into t (a) values (%s)", ("100 %",))
        assert (made.lastrowid, made.rowcount, made.rows) == (1, 1, [])
        many = await connection.executemany("insert into t (a) values (%s)", [("b",), ("c",)])
        assert many.rowcount == 2
        found = await connection.execute("select id, a from t where a like '%' order by id")
        assert found.fetchall() == [(1, "100 %"), (2, "b"), (3, "c")] and found.fetchone() == (1, "100 %")
        for refused in (connection.commit(), connection.rollback(), connection.begin(), connection.close()):
            with pytest.raises(CommitRefused):
                await refused
        for text in ("commit", "truncate effects"):
            with pytest.raises(CommitRefused):
                await connection.execute(text)
        await session.commit()
        with pytest.raises(OperationOver):
            await connection.execute("select 1")
        await driver.close()
        driver.driver.close()

    before = threads()
    asyncio.run(story())
    wait_until(lambda: threads() <= before)  # those of other tests may end meanwhile


def test_the_rest_of_a_gather_writes_nothing_after_the_end(url: str, label: str) -> None:
    async def story() -> None:
        driver = AsyncPyMySQLDriver(PyMySQLDriver(url, pool_size=1))
        session = await driver.open()
        rest = [asyncio.ensure_future(session.connection.execute(INSERT, (label,))) for _ in range(5)]
        await asyncio.sleep(0)
        await session.rollback()
        results = await asyncio.gather(*rest, return_exceptions=True)
        assert isinstance(results[-1], OperationOver)
        following = await driver.open()
        with pytest.raises(OperationOver):
            await session.connection.execute(INSERT, (label,))
        await following.commit()
        await driver.close()
        assert free_places(driver.driver) == (1, 1)
        driver.driver.close()

    asyncio.run(story())
    assert effects(url, label) == 0


def test_a_cancelled_statement_holds_up_nobody(url: str, label: str, blocked: Any) -> None:
    """It waits for a row, its operation is rolled back, and its place is there for the next."""

    async def story() -> None:
        driver = AsyncPyMySQLDriver(PyMySQLDriver(url, pool_size=1, timeout=1))
        session = await driver.open()
        task = asyncio.ensure_future(session.connection.execute(update(label)))
        await asyncio.to_thread(waits, url, label)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await session.rollback()
        following = await driver.open()
        await following.connection.execute(INSERT, (label,))
        await following.commit()
        await driver.close()
        assert free_places(driver.driver) == (1, 1)
        driver.driver.close()

    asyncio.run(story())
    assert effects(url, label) == 1


@pytest.mark.parametrize("moment", range(0, 40, 2))
def test_an_operation_that_is_cancelled_leaves_nothing_behind(url: str, label: str, moment: int) -> None:
    """Cancelled after so many steps of the event loop; a crowd of three on two connections."""

    async def story() -> None:
        idempotency = Idempotency(url, pool_size=2)
        rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, {})

        async def operation(key: str) -> None:
            running = await idempotency.engine.begin_async(exchange_of(key), rules)
            assert isinstance(running, Running)
            try:
                await running.operation.connection.execute(INSERT, (key,))
            except BaseException as error:
                await idempotency.engine.finish_async(running, Handled(None, error))
                raise
            await idempotency.engine.finish_async(running, Handled(PAID))

        await operation(f"{label}-warm")
        crowd = [asyncio.ensure_future(operation(f"{label}-{number}")) for number in range(3)]
        for _ in range(moment):
            await asyncio.sleep(0.001)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        async with asyncio.timeout(30):
            await asyncio.gather(*(operation(f"{label}-next-{number}") for number in range(2)))
        driver = idempotency.engine.drivers.aio
        assert isinstance(driver, AsyncPyMySQLDriver)
        await idempotency.aclose()
        assert free_places(driver.driver) == (2, 2)

    before = threads()
    asyncio.run(story())
    wait_until(lambda: threads() <= before)  # those of other tests may end meanwhile
    for number in range(3):
        done = state_of(url, f"{label}-{number}") == "completed"
        assert effects(url, f"{label}-{number}") == (1 if done else 0)
    assert effects(url, f"{label}-next-0") == effects(url, f"{label}-next-1") == 1


def test_an_opening_that_is_cancelled_gives_its_place_back(url: str) -> None:
    async def story() -> None:
        driver = AsyncPyMySQLDriver(PyMySQLDriver(url, pool_size=1, timeout=20))
        first = await driver.open()
        second = asyncio.ensure_future(driver.open())
        await asyncio.sleep(0.05)  # it waits in its thread for a connection, or has not begun: both will do
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await first.rollback()
        third = await driver.open()
        await third.rollback()
        await driver.close()
        assert free_places(driver.driver) == (1, 1)
        driver.driver.close()

    asyncio.run(story())


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_handler_that_runs_too_long_does_not_keep_its_place(url: str, label: str, style: str) -> None:
    """Once its longest run is over, the next one has its connection, and it commits nothing more."""
    idempotency = Idempotency(url, pool_size=1)
    rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, {"lease": 1, "max_run": 2})
    driver = idempotency.engine.drivers.sync
    assert isinstance(driver, PyMySQLDriver)

    async def story() -> Any:
        running = await idempotency.engine.begin_async(exchange_of(label), rules)
        assert isinstance(running, Running)
        connection = running.operation.connection
        await connection.execute(INSERT, (label,))
        await asyncio.to_thread(wait_until, lambda: free_places(driver) == (1, 1))
        with pytest.raises(OperationOver):
            await connection.execute(INSERT, (label,))
        return (await idempotency.engine.finish_async(running, Handled(PAID))).answer

    if style == "async":
        answer = asyncio.run(story())
    else:
        running = idempotency.engine.begin(exchange_of(label), rules)
        assert isinstance(running, Running)
        running.operation.connection.execute(INSERT, (label,))
        wait_until(lambda: free_places(driver) == (1, 1))
        with pytest.raises(OperationOver):
            running.operation.connection.execute(INSERT, (label,))
        answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 503
    assert effects(url, label) == 0 and free_places(driver) == (1, 1)
    asyncio.run(idempotency.aclose())
