"""MariaDB itself ends a handler's transaction: nothing that the handler does after that is sent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest
import wrapt
from pymysql.cursors import SSCursor  # type: ignore[import-untyped]

from lab.processes import wait_until
from lab.servers.mariadb import NamedServer, ask, connected, is_mariadb
from samekey import Idempotency, current_operation
from samekey.drivers.mysql.driver import PyMySQLDriver
from samekey.drivers.mysql.text import is_plain, may_hide_an_end
from samekey.drivers.mysql.watched import NOTES
from samekey.errors import EscapedTransaction, OperationOver, OutcomeUnknown, SamekeyError, TransactionGone
from tests.chosen import whole
from tests.stores.crash_scenarios import effects, execute, prepare

pytestmark = whole


INSERT = "insert into effects values (%s)"


@pytest.fixture(scope="module")
def url(mariadb_server: NamedServer) -> str:
    made = mariadb_server.create_database()
    prepare(made)
    for text in (
        "create table accounts (id int primary key, cents int) engine = InnoDB",
        "insert into accounts values (1, 0), (2, 0)",
        "create procedure pay(in label varchar(20)) begin insert into effects values (label); select 1; end",
        "create function paid(label varchar(20)) returns int modifies sql data "
        "begin insert into effects values (label); return 1; end",
        "create procedure pay_and_commit(in label varchar(20)) "
        "begin insert into effects values (label); commit; end",
        "create procedure pay_commit_and_begin(in label varchar(20)) "
        "begin insert into effects values (label); commit; start transaction; end",
        "create procedure pay_commit_and_fail(in label varchar(20)) begin "
        "insert into effects values (label); commit; "
        "signal sqlstate '40001' set mysql_errno = 1213, message_text = 'Deadlock'; end",
    ):
        execute(made, text)
    return made


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    made = Idempotency(url)
    yield made
    made.close()


@pytest.fixture
def label() -> str:
    return secrets.token_hex(8)


def deadlock(url: str, run: Callable[[str], Any]) -> None:
    """Has the server give up the transaction in which ``run`` carries out a text."""
    mark = secrets.token_hex(8)
    with connected(url, autocommit=False) as other, ThreadPoolExecutor(1) as threads:
        cursor = other.cursor()
        # The other has written more, so it is the handler that InnoDB gives up.
        for number in range(3, 40):
            cursor.execute("insert into accounts values (%s, 0)", (number,))
        cursor.execute("update accounts set cents = 2 where id = 2")
        run("update accounts set cents = 1 where id = 1")
        blocked = threads.submit(cursor.execute, f"update accounts set cents = 2 where id = 1 /* {mark} */")
        waiting = f"trx_state = 'LOCK WAIT' and trx_query like '%{mark}%'"
        look = f"select 1 from information_schema.innodb_trx where {waiting}"
        # That table is a copy, made anew only after nobody has read it for a tenth of a second.
        wait_until(lambda: ask(url, look), interval=0.3)
        with pytest.raises(pymysql.err.OperationalError, match="Deadlock"):
            run("update accounts set cents = 1 where id = 2")
        blocked.result()
        other.rollback()


def again(connection: Any, label: str) -> None:
    raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")


NEXT: dict[str, Callable[[Any, str], Any]] = {
    "an insert": lambda connection, label: connection.execute(INSERT, (label,)),
    "an insert with rows": lambda connection, label: connection.execute(f"{INSERT} returning 1", (label,)),
    "a procedure": lambda connection, label: connection.cursor().callproc("pay", (label,)),
    "a function": lambda connection, label: connection.execute("select paid(%s)", (label,)),
    "rows one by one": lambda connection, label: connection.cursor(SSCursor).execute(
        f"{INSERT} returning 1", (label,)
    ),
    "a deadlock of another's": again,
    "nothing": lambda connection, label: None,
}


@pytest.mark.parametrize("ending", ["returns", "raises", "lets it through"])
@pytest.mark.parametrize("then", NEXT)
def test_nothing_that_follows_a_deadlock_stands_and_the_key_is_free(
    url: str, idempotency: Idempotency, label: str, then: str, ending: str
) -> None:
    ran = []

    def pay() -> str:
        ran.append(1)
        connection = current_operation().connection
        connection.execute(INSERT, (label,))
        if len(ran) == 2:
            return "paid"
        deadlock(url, connection.execute)
        ignored = () if ending == "lets it through" else (TransactionGone, pymysql.err.OperationalError)
        with suppress(*ignored):
            NEXT[then](connection, label)
        if ending == "raises":
            raise ValueError("later")
        return "lost"

    with pytest.raises((SamekeyError, ValueError, pymysql.err.OperationalError)) as found:
        idempotency.once(tenant="t", key=label, run=pay, mode="atomic")
    assert not isinstance(found.value, EscapedTransaction)
    assert effects(url, label) == 0
    assert idempotency.once(tenant="t", key=label, run=pay, mode="atomic") == "paid"
    assert effects(url, label) == 1


def test_the_same_in_async_code(url: str, label: str) -> None:
    async def pay() -> None:
        connection = current_operation().connection
        loop = asyncio.get_running_loop()

        def run(text: str) -> Any:
            return asyncio.run_coroutine_threadsafe(connection.execute(text), loop).result(60)

        await asyncio.to_thread(deadlock, url, run)
        with pytest.raises(TransactionGone, match="rolled back"):
            await connection.execute(INSERT, (label,))
        raise ValueError("later")

    async def main() -> None:
        idempotency = Idempotency(url)
        with pytest.raises(ValueError, match="later"):
            await idempotency.once_async(tenant="t", key=label, run=pay, mode="atomic")
        await idempotency.aclose()

    asyncio.run(main())
    assert effects(url, label) == 0


ENDS: dict[str, Callable[[Any], Any]] = {
    "lets it through": lambda own: None,
    "rolls back, as mappers do": lambda own: own.rollback(),
    "in a text": lambda own: own.cursor().execute("ROLLBACK;"),
    "closes": lambda own: own.close(),
}


@pytest.mark.parametrize("ending", ENDS)
def test_a_deadlock_on_the_users_own_connection_frees_the_key(
    url: str, idempotency: Idempotency, label: str, ending: str
) -> None:
    def pay(own: Any) -> str:
        own.cursor().execute(INSERT, (label,))
        if not ran:
            ran.append(1)
            try:
                deadlock(url, own.cursor().execute)
            finally:
                ENDS[ending](own)
            raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")
        return "paid"

    def once() -> str:
        with connected(url, autocommit=False) as own:
            kind = type(own)
            try:
                made: str = idempotency.once(
                    tenant="t", key=label, run=lambda: pay(own), mode="atomic", connection=lambda _: own
                )
                return made
            finally:
                assert type(own) is kind and not set(NOTES) & set(vars(own))

    ran: list[int] = []
    with pytest.raises((pymysql.err.OperationalError, SamekeyError)):
        once()
    assert effects(url, label) == 0
    assert once() == "paid"
    assert effects(url, label) == 1


def test_a_tracer_around_the_users_own_connection(url: str, idempotency: Idempotency, label: str) -> None:
    """As ddtrace has it: a proxy, which says that it is a connection."""
    with connected(url, autocommit=False) as own:
        traced = wrapt.ObjectProxy(own)

        def pay() -> str:
            traced.cursor().execute(INSERT, (label,))
            return "paid"

        for _ in range(2):
            once = idempotency.once(
                tenant="t", key=label, run=pay, mode="atomic", connection=lambda _: traced
            )
            assert once == "paid"
    assert effects(url, label) == 1


AFTER: dict[str, Callable[[Any, str], Any]] = {
    "an insert": lambda own, label: own.cursor().execute(INSERT, (label,)),
    "another transaction": lambda own, label: (own.begin(), own.cursor().execute(INSERT, (label,))),
    "a commit of another": lambda own, label: (
        own.begin(),
        own.cursor().execute(INSERT, (label,)),
        own.commit(),
    ),
}


@pytest.mark.parametrize("then", AFTER)
def test_what_a_handler_does_on_its_own_connection_after_a_deadlock_may_stand(
    url: str, idempotency: Idempotency, label: str, then: str
) -> None:
    with connected(url, autocommit=True) as own:

        def pay() -> None:
            deadlock(url, own.cursor().execute)
            AFTER[then](own, label)
            raise ValueError("later")

        with pytest.raises((ValueError, SamekeyError)):
            idempotency.once(tenant="t", key=label, run=pay, mode="atomic", connection=lambda _: own)
    with pytest.raises(OutcomeUnknown):
        idempotency.once(tenant="t", key=label, run=lambda: "again", mode="atomic")


COMMITS: dict[str, Callable[[Any, str], Any]] = {
    "commits and closes": lambda own, url: (own.commit(), own.close()),
    "commits and is cut off": lambda own, url: (own.commit(), execute(url, f"kill {own.thread_id()}")),
    "in a procedure, and closes": lambda own, url: (
        own.cursor().execute("call pay_commit_and_begin('x')"),
        own.close(),
    ),
    "commits, then a deadlock": lambda own, url: ended_and_deadlocked(own, url, "commit"),
    "creates what is there, then a deadlock": lambda own, url: ended_and_deadlocked(
        own, url, "create table accounts (id int)"
    ),
}


def ended_and_deadlocked(own: Any, url: str, text: str) -> None:
    with suppress(pymysql.err.MySQLError):
        own.cursor().execute(text)
    own.begin()
    deadlock(url, own.cursor().execute)


@pytest.mark.parametrize("how", COMMITS)
def test_a_commit_on_the_users_own_connection_never_frees_the_key(
    url: str, idempotency: Idempotency, label: str, how: str
) -> None:
    def pay() -> None:
        own.cursor().execute(INSERT, (label,))
        COMMITS[how](own, url)
        raise ValueError("later")

    with connected(url, autocommit=False) as own, pytest.raises((ValueError, SamekeyError)):
        idempotency.once(tenant="t", key=label, run=pay, mode="atomic", connection=lambda _: own)
    assert effects(url, label) == 1
    with pytest.raises(OutcomeUnknown):
        idempotency.once(tenant="t", key=label, run=lambda: "again", mode="atomic")


HIDDEN: dict[str, Callable[[Any, str], Any]] = {
    "a procedure": lambda connection, label: connection.execute("call pay_and_commit(%s)", (label,)),
    "a procedure that begins anew": lambda connection, label: connection.execute(
        "call pay_commit_and_begin(%s)", (label,)
    ),
    "a procedure that fails as if it had been rolled back": lambda connection, label: connection.execute(
        "call pay_commit_and_fail(%s)", (label,)
    ),
    "a text in a text": lambda connection, label: connection.execute("execute immediate 'commit'"),
    "for one statement": lambda connection, label: connection.execute(
        "set statement max_statement_time = 9 for commit"
    ),
}


@pytest.mark.parametrize("dies", [False, True], ids=["", "and the connection is lost"])
@pytest.mark.parametrize("how", HIDDEN)
def test_a_commit_that_no_text_shows_is_found_at_once_and_never_frees_the_key(
    url: str, idempotency: Idempotency, label: str, how: str, dies: bool
) -> None:
    if how in ("a text in a text", "for one statement") and not is_mariadb(url):
        pytest.skip("MySQL has no such statement")
    ran = []

    def pay() -> None:
        ran.append(1)
        connection = current_operation().connection
        connection.execute(INSERT, (label,))
        thread = connection.thread_id()
        with suppress(pymysql.err.OperationalError):
            HIDDEN[how](connection, label)
        if how != "a procedure that begins anew":
            with pytest.raises(OperationOver):
                connection.execute(INSERT, (label,))
        if dies:
            execute(url, f"kill {thread}")
        raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")

    with pytest.raises(pymysql.err.OperationalError):
        idempotency.once(tenant="t", key=label, run=pay, mode="atomic")
    stands = effects(url, label)
    with pytest.raises(OutcomeUnknown):
        idempotency.once(tenant="t", key=label, run=pay, mode="atomic")
    assert len(ran) == 1 and effects(url, label) == stands


def test_an_error_that_leaves_the_transaction_alone_ends_nothing(url: str, label: str) -> None:
    driver = PyMySQLDriver(url, pool_size=1)
    session = driver.open()
    session.connection.execute(INSERT, (label,))
    for text in ("select * from nowhere", "insert into accounts values (1, 1)", "this is no sql"):
        with pytest.raises(pymysql.err.MySQLError):
            session.connection.execute(text)
    session.connection.execute(INSERT, (label,))
    session.commit()
    assert effects(url, label) == 2
    driver.close()


@pytest.mark.parametrize(
    ("text", "plain", "hides"),
    [
        ("select 1", True, False),
        (" /* x */ (select 1)", True, False),
        ("insert into t values ('/*')", True, False),
        ("rollback to a", True, False),
        ("set time_zone = '+00:00'", False, False),
        ("set role alice", False, False),
        ("use other", False, False),
        ("create temporary table t (x int)", False, False),
        ("set statement max_statement_time = 1 for commit", False, True),
        ("call p()", False, True),
        ("execute x", False, True),
        ("begin not atomic commit; end", False, True),
        ("/*!99999999 select */ call p()", False, True),
        ("--\x01 select\ncall p()", False, True),
    ],
)
def test_what_a_text_may_leave_behind_or_hide(text: str, plain: bool, hides: bool) -> None:
    assert (is_plain(text), may_hide_an_end(text)) == (plain, hides)
    assert (is_plain(text.encode()), may_hide_an_end(text.encode())) == (plain, hides)
