"""Atomic work on MariaDB: duplicates that never wait, transactions that end by themselves, lost commits."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pymysql  # type: ignore[import-untyped]
import pytest

from lab.processes import wait_until
from lab.servers.mariadb import MariaDBServer, NamedServer, ask, connected
from samekey import Idempotency, current_operation
from samekey.core.record import Answer, Lease
from samekey.core.states import Mode
from samekey.drivers.mysql.driver import PyMySQLDriver
from samekey.drivers.mysql.lent import OurConnection
from samekey.drivers.mysql.text import ends_transaction
from samekey.drivers.mysql.url import isolation_variable
from samekey.drivers.run import run_in
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import (
    CommitRefused,
    CommitUncertain,
    EscapedTransaction,
)
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from tests.chosen import whole
from tests.stores.crash_scenarios import PAID, effects, exchange_of, execute, prepare, state_of

pytestmark = whole


QUERIES = queries_for("mysql")
KEYS = SqlKeys(QUERIES)
DAY = 86_400_000


@pytest.fixture(scope="module")
def url(mariadb_server: NamedServer) -> str:
    """A prepared database; each test keeps to keys of its own."""
    made = mariadb_server.create_database()
    prepare(made)
    return made


@pytest.fixture
def driver(url: str) -> Iterator[PyMySQLDriver]:
    made = PyMySQLDriver(url)
    yield made
    made.close()


@pytest.fixture
def label() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    made = Idempotency(url)
    yield made
    made.close()


def begin(idempotency: Idempotency, label: str, mode: Mode = Mode.ATOMIC, **options: Any) -> Any:
    return idempotency.engine.begin(exchange_of(label), rules_from(idempotency.engine.policy, mode, options))


def begun(idempotency: Idempotency, label: str, **options: Any) -> Running:
    running = begin(idempotency, label, **options)
    assert isinstance(running, Running), running
    return running


def insert(label: str) -> str:
    return f"insert into effects values ('{label}')"


# ------------------------------------------------------------------ the transaction that proves itself


@pytest.mark.parametrize(
    "statement",
    [
        "commit",
        "ROLLBACK",
        " /* now */ Commit",
        "begin",
        "start transaction",
        "set autocommit = 0",
        "create table t (x int)",
        "truncate effects",
        "lock tables effects write",
        "alter table effects add y int",
    ],
)
def test_our_connection_refuses_to_end_its_transaction(
    url: str, idempotency: Idempotency, label: str, statement: str
) -> None:
    running = begun(idempotency, label)
    connection = running.operation.connection
    connection.execute(insert(label))
    with pytest.raises(CommitRefused, match="samekey commits this transaction"):
        connection.execute(statement)
    for method in (connection.commit, connection.rollback, connection.begin):
        with pytest.raises(CommitRefused):
            method()
    answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 201
    assert effects(url, label) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "select 1",
        "savepoint a",
        "rollback to a",
        "rollback work to savepoint a",
        "create temporary table t (x int)",
        "insert into t values ('commit')",
        "update begin_log set x = 1",
        "drop temporary table t",
    ],
)
def test_what_does_not_end_a_transaction_is_let_through(statement: str) -> None:
    assert not ends_transaction(statement)
    assert not ends_transaction(statement.encode())


@pytest.mark.parametrize("ending", ["commit", "rollback", "create table if not exists made (x int)"])
@pytest.mark.parametrize("then", ["nothing", "begin"])
def test_a_handler_that_ends_its_own_transaction_is_found_out(
    url: str, idempotency: Idempotency, label: str, ending: str, then: str
) -> None:
    with connected(url) as own:
        running = begun(idempotency, label, connection=lambda _context: own)
        for statement in (insert(label), ending, *([then] if then == "begin" else [])):
            own.cursor().execute(statement)
        finished = idempotency.engine.finish(running, Handled(PAID))
    assert isinstance(finished.error, EscapedTransaction)
    assert finished.answer is not None and b"outcome_unknown" in finished.answer.body
    assert state_of(url, label) == "unknown"
    again = begin(idempotency, label)
    assert (again.status, b"outcome_unknown" in again.body) == (409, True)


class Cut:
    """A session whose COMMIT is sent, and whose acknowledgement never comes."""

    def __init__(self, session: Any, commit: Callable[[], None]) -> None:
        self._session = session
        self._commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def commit(self) -> None:
        self._commit()
        raise CommitUncertain("The acknowledgement of COMMIT was lost.")


def test_a_lost_acknowledgement_of_what_was_committed(url: str, idempotency: Idempotency, label: str) -> None:
    running = begun(idempotency, label)
    running.operation.connection.execute(insert(label))
    running.session = Cut(running.session, running.session.commit)
    answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and (answer.status, effects(url, label)) == (201, 1)


def test_a_lost_acknowledgement_of_what_was_rolled_back(
    url: str, idempotency: Idempotency, label: str
) -> None:
    running = begun(idempotency, label)
    running.operation.connection.execute(insert(label))
    running.session = Cut(running.session, running.session.rollback)
    answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and (answer.status, effects(url, label)) == (503, 0)
    assert b"nothing was done" in answer.body
    assert isinstance(begin(idempotency, label), Running), "a retry may run at once"


def test_a_commit_that_is_still_on_its_way_is_waited_for(
    url: str, idempotency: Idempotency, label: str
) -> None:
    """The record is locked until it has landed, so nobody takes its absence for a rollback."""
    running = begun(idempotency, label)
    running.operation.connection.execute(insert(label))
    session = running.session
    asked = threading.Event()
    release = idempotency.engine.keys.release

    def noticed(lease: Lease) -> Any:
        asked.set()
        return release(lease)

    def later() -> None:
        asked.wait(30)
        session.commit()

    landing = threading.Thread(target=later)
    running.session = Cut(session, landing.start)
    idempotency.engine.keys.release = noticed  # type: ignore[method-assign,assignment]
    answer = idempotency.engine.finish(running, Handled(PAID)).answer
    landing.join()
    assert answer is not None and (answer.status, effects(url, label)) == (201, 1)


def test_the_server_killed_under_an_open_transaction_then_read_only() -> None:
    with MariaDBServer.start() as server:
        url = server.create_database()
        prepare(url)
        idempotency = Idempotency(url)
        running = begun(idempotency, "key")
        running.operation.connection.execute(insert("key"))
        server.kill()
        answer = idempotency.engine.finish(running, Handled(PAID)).answer
        assert answer is not None and answer.status == 503
        server.start_again()
        ask(url, "update samekey_keys set locked_until = 1 where state = 'in_progress'")
        idempotency.close()
        idempotency = Idempotency(url)
        retried = begun(idempotency, "key")
        retried.operation.connection.execute(insert("key"))
        answer = idempotency.engine.finish(retried, Handled(PAID)).answer
        assert answer is not None and answer.status == 201
        assert effects(url, "key") == 1
        idempotency.close()
        become_read_only(server, url)


def become_read_only(server: MariaDBServer, url: str) -> None:
    """As after a switch-over: the connections that are open lead to the old primary."""
    database = urlsplit(url).path.lstrip("/")
    server.execute("create user app")
    server.execute(f"grant select, insert, update, delete on {database}.* to app")
    host = urlsplit(url).netloc.rpartition("@")[2]
    idempotency = Idempotency(urlunsplit(urlsplit(url)._replace(netloc=f"app@{host}")))
    running = begun(idempotency, "read-only")
    running.operation.connection.execute(insert("read-only"))
    server.execute("set global read_only = 1")
    answer = idempotency.engine.finish(running, Handled(PAID)).answer
    assert answer is not None and answer.status == 503
    assert begin(idempotency, "read-only-2").status == 503
    assert idempotency.engine.drivers.sync._operations._idle == [], "nobody shall get such a connection"  # type: ignore[attr-defined]
    server.execute("set global read_only = 0")
    assert effects(url, "read-only") == 0
    assert isinstance(begin(idempotency, "read-only-3"), Running)
    idempotency.close()


def test_what_a_handler_set_does_not_meet_the_next(url: str) -> None:
    idempotency = Idempotency(url, pool_size=1)
    for _ in range(2):
        label = secrets.token_hex(8)
        running = begun(idempotency, label)
        connection = running.operation.connection
        rows = connection.execute(
            "select @mine, @@sql_mode like '%%ANSI_QUOTES%%', "
            f"@@{isolation_variable(connection.server_version)}, @@autocommit, "
            "get_lock('handler', 0)"
        ).fetchall()
        assert rows == ((None, 0, "READ-COMMITTED", 1, 1),)
        connection.execute("set @mine = 1, sql_mode = 'ANSI_QUOTES', time_zone = '+09:00'")
        connection.execute("create temporary table left_over (x int)")
        connection.execute(insert(label))
        answer = idempotency.engine.finish(running, Handled(PAID)).answer
        assert answer is not None and answer.status == 201
    idempotency.close()


# ------------------------------------------------------------------ beside others


def test_a_duplicate_never_waits_for_the_first_not_even_at_its_commit(
    url: str, idempotency: Idempotency, label: str
) -> None:
    """Whoever waited for it would wait in vain here, and be told 503 in the end."""
    running = begun(idempotency, label)
    running.operation.connection.execute(insert(label))
    assert begin(idempotency, label).status == 409
    lease = running.lease
    assert lease is not None
    # As finish() does it, stopped between the last statement and COMMIT: now the record is locked.
    run_in(running.session, KEYS.complete(lease, PAID))
    assert begin(idempotency, label).status == 409
    running.session.commit()
    replay = begin(idempotency, label)
    assert (replay.status, replay.body) == (201, b"paid")
    assert effects(url, label) == 1


def test_a_deadlock_of_the_handlers_is_503_and_frees_the_key(
    url: str, idempotency: Idempotency, label: str
) -> None:
    ask(url, "create table if not exists accounts (id int primary key, cents int) engine = InnoDB")
    ask(url, "replace into accounts values (1, 0), (2, 0)")
    running = begun(idempotency, label)
    connection = running.operation.connection
    connection.execute(insert(label))
    connection.execute("update accounts set cents = 1 where id = 1")
    with connected(url, autocommit=False) as other, ThreadPoolExecutor(1) as threads:
        cursor = other.cursor()
        # The other has written more, so it is the handler that InnoDB gives up.
        for number in range(3, 40):
            cursor.execute("insert into accounts values (%s, 0)", (number,))
        cursor.execute("update accounts set cents = 2 where id = 2")
        blocked = threads.submit(cursor.execute, f"update accounts set cents = 2 where id = 1 /* {label} */")
        waiting = f"trx_state = 'LOCK WAIT' and trx_query like '%{label}%'"
        look = f"select 1 from information_schema.innodb_trx where {waiting}"
        # That table is a copy, made anew only after nobody has read it for a tenth of a second.
        wait_until(lambda: ask(url, look), interval=0.3)
        with pytest.raises(Exception, match="Deadlock"):
            connection.execute("update accounts set cents = 1 where id = 2")
        blocked.result()
        other.rollback()
    # The application made a 500 of it, so nobody tells us of the error but the connection itself.
    finished = idempotency.engine.finish(running, Handled(Answer(500)))
    assert finished.error is None and state_of(url, label) is None
    assert effects(url, label) == 0
    retried = begun(idempotency, label)
    retried.operation.connection.execute(insert(label))
    answer = idempotency.engine.finish(retried, Handled(PAID)).answer
    assert answer is not None and answer.status == 201
    assert effects(url, label) == 1


SETTINGS = [
    "set timestamp = 1",
    "select set_clock()",
    "set sql_select_limit = 0",
    "set character_set_results = utf16",
    "set collation_connection = utf16_bin",
    "set names latin1",
    "/*M! set max_statement_time = 0.0001 *//*!80000 set max_execution_time = 1 */",
]


@pytest.mark.parametrize(
    ("setting", "own"), [*((one, False) for one in SETTINGS), *((one, True) for one in SETTINGS[:3])]
)
def test_what_a_handler_sets_does_not_reach_the_record(
    url: str, idempotency: Idempotency, label: str, setting: str, own: bool
) -> None:
    execute(url, "drop function if exists set_clock")
    execute(
        url,
        "create function set_clock() returns int no sql begin set session timestamp = 1; return 1; end",
    )
    with connected(url, autocommit=False) as users:
        options: dict[str, Any] = {"connection": lambda _: users} if own else {}

        def pay() -> str:
            connection: Any = users if own else current_operation().connection
            cursor = connection.cursor()
            cursor.execute(insert(label))
            cursor.execute(setting)
            return "paid €"

        assert idempotency.once(tenant="t", key=label, run=pay, mode="atomic", **options) == "paid €"
    assert idempotency.once(tenant="t", key=label, run=pay, mode="atomic") == "paid €"
    assert effects(url, label) == 1


def test_a_server_that_keeps_its_clock_from_everybody() -> None:
    """There is nothing to put back then, and nobody may."""
    server = MariaDBServer.start(settings={"secure-timestamp": "YES"})
    try:
        url = server.create_database()
        prepare(url)
        idempotency = Idempotency(url)

        def pay() -> str:
            connection = current_operation().connection
            with pytest.raises(pymysql.err.MySQLError):
                connection.execute("set timestamp = 1")
            connection.execute(insert("kept"))
            connection.execute("set sql_select_limit = 0")
            return "paid"

        for _ in range(2):
            assert idempotency.once(tenant="t", key="k", run=pay, mode="atomic") == "paid"
        assert effects(url, "kept") == 1
        idempotency.close()
    finally:
        server.stop()


def test_round_trips_are_what_the_page_says(url: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For warm connections; the handler's own statements are not counted."""
    idempotency = Idempotency(url)
    sent: list[Any] = []
    plain = OurConnection._execute_command

    def counted(self: Any, command: int, text: Any) -> None:
        if "effects" not in str(text):
            sent.append(text)
        plain(self, command, text)

    def run_once(mode: Mode, key: str) -> int:
        sent.clear()
        running = begun(idempotency, key, mode=mode)
        if mode is Mode.ATOMIC:
            running.operation.connection.execute(insert(key))
        idempotency.engine.finish(running, Handled(PAID))
        return len(sent)

    for mode in (Mode.LEASED, Mode.ATOMIC):  # connections are made, the schema is checked
        run_once(mode, f"{label}-warm-{mode}")
    monkeypatch.setattr(OurConnection, "_execute_command", counted)
    found = {}
    for mode in (Mode.LEASED, Mode.ATOMIC):
        found[str(mode)] = run_once(mode, f"{label}-{mode}")
        sent.clear()
        assert begin(idempotency, f"{label}-{mode}", mode=mode).status == 201
        found["replay"] = len(sent)
    idempotency.close()
    page = Path(__file__).parents[2] / "docs" / "stores" / "mysql.md"
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page.read_text(), re.MULTILINE)
    assert found == {name: int(count) for name, count in rows}
