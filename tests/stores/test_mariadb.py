"""What is MySQL's and MariaDB's own: no RETURNING, collations, affected rows, locks, implicit commits."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from pymysql.constants import CLIENT  # type: ignore[import-untyped]

from lab.processes import Turn, race, wait_until
from lab.servers.mariadb import NamedServer, ask, connected, is_mariadb, numbers
from samekey import Idempotency, ietf
from samekey.core.decide import Decision, Execute, Outstanding
from samekey.core.record import Lease
from samekey.core.states import Mode
from samekey.drivers.mysql.driver import PyMySQLDriver
from samekey.drivers.mysql.lent import OurConnection
from samekey.drivers.mysql.url import literal, packets, setup
from samekey.drivers.run import run, run_in
from samekey.drivers.url import drivers_for
from samekey.engine.handler.rules import rules_from
from samekey.engine.operation import Running
from samekey.errors import (
    ConfigurationError,
    SchemaMismatch,
    StoreBusy,
)
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import check, migrate
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import SyncSubject, new_claim, retry_of, run_all
from samekey.testing.crash import Points, WatchedDriver, enumerate_crashes
from tests.chosen import whole
from tests.stores.conftest import migrated
from tests.stores.crash_scenarios import PAID, exchange_of, prepare
from tests.stores.schemas import describe

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


# ------------------------------------------------------------------ who won is never a number of rows


def test_the_suite_passes_where_affected_rows_count_what_was_found(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FOUND_ROWS, which Django and SQLAlchemy set, makes an UPDATE that changes nothing look like one."""
    plain = OurConnection.__init__

    def with_found_rows(self: Any, **options: Any) -> None:
        options["client_flag"] |= CLIENT.FOUND_ROWS
        plain(self, **options)

    monkeypatch.setattr(OurConnection, "__init__", with_found_rows)
    driver = PyMySQLDriver(url)
    with driver._operations.take() as connection:
        assert connection.client_flag & CLIENT.FOUND_ROWS
    assert len(run_all(SyncSubject(driver, KEYS, QUERIES))) > 50
    driver.close()


def race_for_keys(turn: Turn, url: str, scope: str) -> str:
    drivers = drivers_for(url)
    claim = new_claim(scope=scope, key=f"round {turn.round}")
    try:
        decision = run(drivers.sync, lambda: KEYS.claim(claim, ietf()))
        return type(decision).__name__
    finally:
        drivers.sync.close()


def test_ten_processes_race_for_one_key(url: str, label: str) -> None:
    for told in race(race_for_keys, 10, url, label, rounds=10, timeout=180):
        assert sorted(told) == ["Execute", *["Outstanding"] * 9]


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "latin1_swedish_ci"])
def test_keys_that_a_collation_calls_equal_are_three(mariadb_server: NamedServer, collation: str) -> None:
    url = mariadb_server.create_database(f"collate {collation}")
    drivers = migrated(url)
    with connected(url) as connection, connection.cursor() as cursor:
        cursor.execute("create table plain (name varchar(9) primary key)")
        cursor.execute("insert into plain values ('ABC')")
        cursor.execute("select count(*) from plain where name = 'abc ' or name = 'ABC '")
        assert cursor.fetchone() == (1,), "this database takes them for one"
    claims = [new_claim(scope="one", key=key) for key in ("ABC", "abc", "ABC ")]
    for claim in claims:
        assert isinstance(run(drivers.sync, partial(KEYS.claim, claim, ietf())), Execute)
    for claim in claims:
        again = run(drivers.sync, partial(KEYS.claim, retry_of(claim), ietf()))
        assert isinstance(again, Outstanding)
    drivers.sync.close()
    mariadb_server.drop_database(url)


# ------------------------------------------------------------------ locks


def test_a_holder_that_rolls_back_under_waiters_leaves_one_winner(url: str, label: str) -> None:
    """InnoDB lets all of them go on at once and breaks the deadlock among them (1213)."""
    claims = [new_claim(scope="waiters", key=label) for _ in range(6)]
    driver = PyMySQLDriver(url)

    def claim_it(number: int) -> Decision | None:
        try:
            return run(driver, lambda: KEYS.claim(claims[number], ietf()))
        except StoreBusy:
            return None  # waited longer than it may: told to come again, and nothing was run

    with connected(url, autocommit=False) as holder, ThreadPoolExecutor(6) as threads:
        holder.cursor().execute(
            "insert into samekey_keys (scope, `key`, id, tenant, endpoint, fingerprint, fingerprint_version,"
            " state, mode, attempt, attempts, created_at, last_run_at, expires_at,"
            " ttl_ms, ttl_from, after_expiry)"
            f" values ('waiters', '{label}', '{label}', '', '', '', '', 'completed', 'leased', '', 0, 0, 0,"
            " 0, 1, 'completion', 'new')"
        )
        waiting_for_locks = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
        waiting = [threads.submit(claim_it, number) for number in range(6)]
        wait_until(
            lambda: all(one.done() for one in waiting) or ask(url, waiting_for_locks)[0][0] > 0,
            interval=0.15,  # what it shows is made anew only after a tenth of a second without a reader
        )
        holder.rollback()
        told = [one.result() for one in waiting]
    won = [decision for decision in told if isinstance(decision, Execute)]
    assert len(won) <= 1
    assert all(decision is None or isinstance(decision, Execute | Outstanding) for decision in told)
    last = run(driver, lambda: KEYS.claim(new_claim(scope="waiters", key=label), ietf()))
    assert isinstance(last, Outstanding if won else Execute)
    driver.close()


def test_a_locked_record_does_not_keep_the_others_from_being_renewed(driver: PyMySQLDriver) -> None:
    claims = [new_claim(lease_ms=1000) for _ in range(3)]
    for claim in claims:
        run(driver, partial(KEYS.claim, claim, ietf()))
    leases = [Lease(claim.scope, claim.key, claim.attempt, 60_000) for claim in claims]
    session = driver.open()
    run_in(session, KEYS.complete(leases[0], PAID))
    assert run(driver, lambda: KEYS.renew(leases)) == {claim.attempt for claim in claims[1:]}
    assert run(driver, lambda: KEYS.renew(leases[:1])) == set(), "nothing could be renewed"
    assert run(driver, lambda: KEYS.held(leases)) == {claim.attempt for claim in claims}, "nothing is lost"
    session.commit()
    assert run(driver, lambda: KEYS.renew(leases)) == {claim.attempt for claim in claims[1:]}
    assert run(driver, lambda: KEYS.held(leases)) == {claim.attempt for claim in claims[1:]}


# ------------------------------------------------------------------ migrations


def test_a_migration_that_was_cut_short_begins_again(mariadb_server: NamedServer, url: str) -> None:
    """DDL commits by itself: after a crash at any point the next migrator makes the same schema."""
    made: dict[str, str] = {}

    def scenario(points: Points) -> None:
        made[points.label] = mariadb_server.create_database()
        driver = WatchedDriver(drivers_for(made[points.label]).sync, points)
        try:
            run(driver, lambda: migrate(QUERIES))
        finally:
            driver.close()

    mariadb_server.create_database()
    whole = None
    for crash in enumerate_crashes(scenario):
        there = drivers_for(made[crash.label])
        run(there.sync, lambda: migrate(QUERIES))
        run(there.sync, lambda: check(QUERIES))
        there.sync.close()
        whole = whole or describe(made[crash.label])
        assert describe(made[crash.label]) == whole, crash
        mariadb_server.drop_database(made[crash.label])
    assert whole is not None and len(whole["triggers"]) == 6


# ------------------------------------------------------------------ rights, versions, plans, round trips


@pytest.fixture
def stranger(mariadb_server: NamedServer, mariadb_url: str) -> Iterator[str]:
    """The URL of an empty database for a user who may only read in it."""
    name = f"stranger_{secrets.token_hex(4)}"
    database = urlsplit(mariadb_url).path.lstrip("/")
    mariadb_server.execute(f"create user {name} identified by 'p@ss/word'")
    mariadb_server.execute(f"grant select on {database}.* to {name}")
    parts = urlsplit(mariadb_url)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{name}:p%40ss%2Fword@{host}"))
    mariadb_server.execute(f"drop user {name}")


def test_a_user_with_the_least_rights_can_work(
    mariadb_server: NamedServer, mariadb_url: str, stranger: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"denied.*Grant this user") as refused:
        migrated(stranger)
    assert not isinstance(refused.value, SchemaMismatch)
    migrated(mariadb_url).sync.close()
    drivers, claim = drivers_for(stranger), new_claim()
    with pytest.raises(ConfigurationError, match=r"denied.*Grant this user"):
        run(drivers.sync, lambda: check(QUERIES))  # not only when the first payment comes
    with pytest.raises(ConfigurationError, match=r"denied.*Grant this user"):
        run(drivers.sync, lambda: KEYS.claim(claim, ietf()))
    name, database = urlsplit(stranger).username, urlsplit(stranger).path.lstrip("/")
    mariadb_server.execute(f"grant select, insert, update, delete on {database}.* to {name}")
    drivers.sync.close()  # a session keeps the rights that it began with
    run(drivers.sync, lambda: check(QUERIES))
    assert isinstance(run(drivers.sync, lambda: KEYS.claim(claim, ietf())), Execute)
    drivers.sync.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "wrong"}, "Check user and password"),
        ({"path": "/nowhere"}, "nowhere"),
        ({"port": 1}, "Is the server running there"),
    ],
)
def test_a_wrong_url_fails_with_a_sentence(stranger: str, change: dict[str, Any], said: str) -> None:
    parts = urlsplit(stranger)
    password, port = change.get("password", parts.password), change.get("port", parts.port)
    netloc = f"{parts.username}:{password}@{parts.hostname}:{port}"
    idempotency = Idempotency(urlunsplit(parts._replace(netloc=netloc, path=change.get("path", parts.path))))
    with pytest.raises(Exception, match=said):
        idempotency.check()
    idempotency.close()


@pytest.mark.parametrize("version", ["5.7.44-log", "8.0.28", "5.5.5-10.5.23-MariaDB", "10.4.1-MariaDB", "?"])
def test_an_old_server_is_refused_by_its_version(version: str) -> None:
    with pytest.raises(ConfigurationError, match=r"too old.*8\.0\.29 or MariaDB 10\.6"):
        setup(version, short=True)


def test_a_new_server_is_set_up_in_its_words() -> None:
    for version, variable in {
        "8.0.29": "transaction_isolation",
        "8.4.0": "transaction_isolation",
        "5.5.5-10.11.19-MariaDB-0+deb12u1": "tx_isolation",
        "11.4.2-MariaDB": "transaction_isolation",
    }.items():
        assert f"session {variable} = 'READ-COMMITTED'" in setup(version, short=True)


VALUES = ["'; drop table t; --", "\\", "\x00", "é😀", "%s", "", b"\x00\xff'", -1, None]


@pytest.mark.parametrize("value", VALUES)
def test_no_value_becomes_sql(url: str, value: Any) -> None:
    text = literal(value)
    assert text.isascii() and (text == "null" or text.lstrip("-").isdigit() or text.startswith("x'"))
    with connected(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"select {text}")
        (found,) = cursor.fetchone()
    assert found == (value.encode() if isinstance(value, str) else value)


def test_a_statement_is_sent_in_as_few_packets_as_the_connection_allows() -> None:
    claim = new_claim()
    lease = Lease(claim.scope, claim.key, claim.attempt, 1000)
    complete = next(KEYS.complete(lease, PAID))
    release = next(KEYS.release(lease))

    def sent(statement: Any, *, joined: bool, alone: bool) -> int:
        exchange = packets(statement, joined=joined, alone=alone)
        next(exchange)
        count = 1
        try:
            while True:
                exchange.send([["id"]])
                count += 1
        except StopIteration:
            return count

    assert sent(complete, joined=True, alone=True) == 1
    assert sent(complete, joined=False, alone=False) == 2
    assert sent(release, joined=True, alone=True) == 2
    assert sent(release, joined=False, alone=False) == 2


NUMBERS = ("now", "batch", "suspects", "patience_ms", "until", "ahead", "timeout_ms", "ttl_ms")
PLANS: dict[str, str] = {
    "find": "primary",
    "complete": "primary",
    "sweep": "samekey_keys_lease",
    "reap": "samekey_keys_expiry",
    "bury_answers": "samekey_keys_burial",
    "take_unknown": "samekey_keys_reconcile",
    "find_abandoned": "samekey_keys_state",
    "find_by_id": "samekey_keys_id",
    "find_by_downstream": "samekey_keys_downstream",
    "find_by_provider_id": "samekey_effects_provider",
    "take_jobs": "samekey_jobs_due",
    "look_ahead": "samekey_jobs_due",
    "next_kind": "samekey_jobs_due",
    "entered_jobs": "samekey_jobs_operation",
}


@pytest.fixture(scope="module")
def full(mariadb_server: NamedServer) -> Iterator[str]:
    """Many finished records and few that anybody looks for."""
    url = mariadb_server.create_database()
    migrated(url).sync.close()
    ask(
        url,
        "insert into samekey_keys (scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state,"
        " mode, attempt, attempts, locked_until, downstream, provider_id, reconcile_after, created_at,"
        " last_run_at, expires_at, ttl_ms, ttl_from, after_expiry)"
        " select 'scope', seq, seq, '', '', '', '1',"
        " case seq mod 100 when 0 then 'unknown' when 1 then 'in_progress' else 'completed' end, 'leased',"
        " seq, 1, if(seq mod 100 = 1, seq, null), seq, seq, if(seq mod 100 = 0, seq, null), seq, seq,"
        f" 9999999999999 - seq, 1, 'completion', 'new' from {numbers(5000)}",
    )
    ask(
        url,
        "insert into samekey_jobs (id, operation_id, scope, key, tenant, name, payload, answers, state,"
        " attempts, due_at, created_at) select seq, '', '', '', '', '', '', 0,"
        f" if(seq mod 100 = 0, 'live', 'done'), 0, seq, seq from {numbers(5000)}",
    )
    yield url
    mariadb_server.drop_database(url)


@pytest.mark.parametrize("name", PLANS)
def test_statements_keep_to_their_index(full: str, name: str) -> None:
    values: dict[str, Any] = dict.fromkeys(QUERIES[name].rendered["format"][1], "x")
    values |= {number: 1 for number in NUMBERS if number in values}
    values["mark"] = b""
    exchange = packets(QUERIES[name](**values), joined=False, alone=False)
    with connected(full) as connection, connection.cursor() as cursor:
        cursor.execute(f"explain format = traditional {next(exchange)}")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    used = {str(row["key"]).lower() for row in rows if str(row["table"]) not in ("<derived2>", "None")}
    assert PLANS[name] in used or all(row["table"] is None for row in rows), rows
    assert not [row for row in rows if row["type"] == "ALL" and str(row["table"]).startswith("samekey")], rows


def test_a_burial_reads_a_batch_and_no_more_among_many_that_are_to_be_deleted(full: str) -> None:
    """Thousands are due to be deleted, hundreds to be buried, and ten are asked for."""
    statement = QUERIES["bury_answers"](batch=10, keep_ms=1, mark=b"", now=10_000)
    with connected(full) as connection, connection.cursor() as cursor:
        cursor.execute("start transaction")
        cursor.execute(
            "update samekey_keys set expires_at = cast(id as unsigned),"
            " after_expiry = if(id mod 10 = 5, elt(1 + id div 10 mod 2, 'ask', 'gone'), 'new')"
        )
        cursor.execute("flush status")
        cursor.execute(next(packets(statement, joined=False, alone=False)))
        assert len(cursor.fetchall()) == 10
        cursor.execute("show session status like 'handler_read%'")
        read = sum(int(count) for _, count in cursor.fetchall())
        connection.rollback()
    # MySQL, whose statistics are of before the change, sorts the five hundred that are to be buried.
    most = 16 * 10 if is_mariadb(full) else 600
    assert read <= most, "by the index, each row once more, and a look at its jobs, phases and words"
