"""MySQL connections as users really have them: our statements must not care how they are set up.

Each is tried with one whole atomic operation on the user's own connection, and its replay.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pymysql.constants import CLIENT  # type: ignore[import-untyped]
from pymysql.cursors import DictCursor, SSCursor  # type: ignore[import-untyped]

from lab.servers.mariadb import NamedServer, connected, is_mariadb
from samekey import Idempotency
from samekey.core.record import Answer
from samekey.drivers.run import run_in
from samekey.drivers.url import drivers_for
from samekey.engine.modes.mode import Handled
from samekey.engine.operation import Running
from samekey.errors import ConfigurationError, ConnectionLost, OpenTransaction
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import queries_for
from tests.chosen import whole
from tests.stores.crash_scenarios import PAID, effects, exchange_of, prepare
from tests.stores.hostile import claim_rules

pytestmark = whole


KEYS = SqlKeys(queries_for("mysql"))


def reversed_text(data: Any) -> Any:
    return data[::-1]


OPTIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "autocommit": {"autocommit": True},
    "no autocommit": {"autocommit": False},
    "rows are dictionaries": {"cursorclass": DictCursor},
    "rows are not fetched": {"cursorclass": SSCursor},
    "affected rows are found rows": {"client_flag": CLIENT.FOUND_ROWS},
    "several statements at once": {"client_flag": CLIENT.MULTI_STATEMENTS},
    "another character set": {"charset": "latin1"},
    "a multi-byte character set": {"charset": "gbk"},
    "no unicode": {"use_unicode": False},
    "converters of its own": {"conv": {253: reversed_text, 8: lambda _: "a number", 252: reversed_text}},
}

SETTINGS = {
    "ANSI": "set sql_mode = 'ANSI'",
    "no backslash escapes": "set sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "traditional": "set sql_mode = 'TRADITIONAL'",
    "nothing strict": "set sql_mode = ''",
    "pipes, ansi quotes, no zero": "set sql_mode = 'PIPES_AS_CONCAT,ANSI_QUOTES,NO_ZERO_DATE,IGNORE_SPACE'",
    "assignments all at once": "set sql_mode = 'SIMULTANEOUS_ASSIGNMENT'",
    "empty is null": "set sql_mode = 'EMPTY_STRING_IS_NULL'",
    "another time zone": "set time_zone = '-11:30'",
    "repeatable read": "set session transaction isolation level repeatable read",
    "serializable": "set session transaction isolation level serializable",
    "read uncommitted": "set session transaction isolation level read uncommitted",
    "another collation": "set names utf8mb4 collate utf8mb4_unicode_ci",
    "short lock waits": "set innodb_lock_wait_timeout = 0",
    "no autocommit by a statement": "set autocommit = 0",
    "safe updates": "set sql_safe_updates = 1",
}


@pytest.fixture(scope="module")
def url(mariadb_server: NamedServer) -> str:
    made = mariadb_server.create_database()
    prepare(made)
    return made


@pytest.fixture
def idempotency(url: str) -> Iterator[Idempotency]:
    made = Idempotency(url)
    yield made
    made.close()


def atomic(idempotency: Idempotency, connection: Any, label: str) -> Answer | None:
    begun = idempotency.engine.begin(exchange_of(label), claim_rules(idempotency, connection))
    if not isinstance(begun, Running):
        return begun
    cursor = begun.operation.connection.cursor()
    cursor.execute(f"insert into effects values ('{label}')")
    cursor.close()
    return idempotency.engine.finish(begun, Handled(PAID)).answer


def check_cycle(
    idempotency: Idempotency, url: str, connect: Callable[[], AbstractContextManager[Any]]
) -> None:
    label = secrets.token_hex(8)
    with connect() as connection:
        before = (connection.cursorclass, connection.decoders, connection.get_autocommit())
        answer = atomic(idempotency, connection, label)
        assert answer is not None and answer.status == 201, answer
        assert (connection.cursorclass, connection.decoders, connection.get_autocommit()) == before
        second = atomic(idempotency, connection, f"{label}-2")
        assert second is not None and second.status == 201, "the connection is as good as before"
    assert effects(url, label) == 1
    with connect() as connection:
        replay = atomic(idempotency, connection, label)
        assert replay is not None and (replay.status, replay.body) == (201, b"paid")
        assert (b"Idempotent-Replayed", b"true") in replay.headers
        # And the programs themselves, which read what atomic work wrote.
        session = drivers_for(url).sync.open(connection)
        record = run_in(session, KEYS.read("7:=tenant", label))
        session.commit()
        assert record is not None and record.answer == PAID
    assert effects(url, label) == 1


@pytest.mark.parametrize("name", OPTIONS)
def test_connections_of_any_kind(idempotency: Idempotency, url: str, name: str) -> None:
    check_cycle(idempotency, url, lambda: connected(url, **OPTIONS[name]))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_session(idempotency: Idempotency, url: str, name: str) -> None:
    if name in ("assignments all at once", "empty is null") and not is_mariadb(url):
        pytest.skip("MySQL has no such mode")
    check_cycle(idempotency, url, lambda: connected(url, init_command=SETTINGS[name], autocommit=None))


async def atomic_async(idempotency: Idempotency, connection: Any, label: str) -> Answer | None:
    begun = await idempotency.engine.begin_async(exchange_of(label), claim_rules(idempotency, connection))
    if not isinstance(begun, Running):
        return begun
    await begun.operation.connection.execute("insert into effects values (%s)", (label,))
    return (await idempotency.engine.finish_async(begun, Handled(PAID))).answer


@pytest.mark.parametrize("name", OPTIONS)
def test_async_code_runs_connections_of_any_kind_in_threads(url: str, name: str) -> None:
    label = secrets.token_hex(8)

    async def cycle() -> None:
        idempotency = Idempotency(url)
        with connected(url, **OPTIONS[name]) as connection:
            for key in (label, f"{label}-2"):  # the connection is as good as before
                answer = await atomic_async(idempotency, connection, key)
                assert answer is not None and answer.status == 201, answer
            replay = await atomic_async(idempotency, connection, label)
            assert replay is not None and (replay.status, replay.body) == (201, b"paid")
        await idempotency.aclose()

    asyncio.run(cycle())
    assert effects(url, label) == 1


def test_what_is_no_connection_of_pymysql_is_refused(idempotency: Idempotency) -> None:
    with pytest.raises(ConfigurationError, match="a connection of PyMySQL's"):
        atomic(idempotency, object(), secrets.token_hex(8))


def test_an_open_transaction_is_refused_and_the_key_stays_free(idempotency: Idempotency, url: str) -> None:
    label = secrets.token_hex(8)
    with connected(url, autocommit=False) as connection:
        connection.cursor().execute("insert into effects values ('before')")
        with pytest.raises(OpenTransaction):
            atomic(idempotency, connection, label)
        connection.rollback()
        answer = atomic(idempotency, connection, label)
        assert answer is not None and answer.status == 201


def test_a_connection_to_another_database_is_refused(
    idempotency: Idempotency, mariadb_server: NamedServer, url: str
) -> None:
    other, label = mariadb_server.create_database(), secrets.token_hex(8)
    with connected(other) as connection, pytest.raises(ConfigurationError, match="tables are in"):
        atomic(idempotency, connection, label)
    with connected(url) as connection:
        answer = atomic(idempotency, connection, label)
        assert answer is not None and answer.status == 201
    mariadb_server.drop_database(other)


def test_a_closed_connection_is_refused(idempotency: Idempotency, url: str) -> None:
    label = secrets.token_hex(8)
    with connected(url) as connection:
        connection.close()
        with pytest.raises(ConnectionLost):
            drivers_for(url).sync.open(connection)
        answer = atomic(idempotency, connection, label)
        assert answer is not None and answer.status == 503
    with connected(url) as connection:
        answer = atomic(idempotency, connection, label)
        assert answer is not None and answer.status == 201
