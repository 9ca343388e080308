"""The effect is a row in another database of the user's, and its COMMIT is not acknowledged: the errors of
the drivers, and of the libraries above them, prove nothing. What the database itself refuses does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy

from lab.proxy import FaultProxy, cut_after
from lab.servers.postgres import NamedServer
from samekey.core.arrival import may_have_happened

INSERT = "insert into ledger values (1)"


@pytest.fixture(scope="module")
def ledger(postgres_server: NamedServer) -> Iterator[str]:
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table ledger (id integer)")
        connection.execute("create table once (id integer primary key)")
        connection.execute("insert into once values (1)")
    yield url
    postgres_server.drop_database(url)


def by_psycopg(url: str, before_commit: Callable[[], object]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(INSERT)
        before_commit()


def by_sqlalchemy(url: str, before_commit: Callable[[], object]) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(INSERT)
            before_commit()
    finally:
        engine.dispose()


@pytest.mark.parametrize("book", [by_psycopg, by_sqlalchemy])
def test_a_commit_that_is_not_acknowledged_may_have_happened(
    book: Callable[[str, Callable[[], object]], None], ledger: str
) -> None:
    with psycopg.connect(ledger, autocommit=True) as connection, FaultProxy.before(ledger) as proxy:
        connection.execute("truncate ledger")
        with pytest.raises(Exception) as caught:  # noqa: PT011
            book(proxy.url_for(ledger), lambda: proxy.on_commit(cut_after))
        assert connection.execute("select count(*) from ledger").fetchone() == (1,)
    assert may_have_happened(caught.value)


def refused_by_the_database(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("insert into once values (1)")


def cancelled_by_the_database(url: str) -> None:
    with psycopg.connect(url, options="-c statement_timeout=10") as connection:
        connection.execute("select pg_sleep(60)")


def nobody_listens(_url: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        psycopg.connect(host="127.0.0.1", port=bound.getsockname()[1], dbname="x", user="x")


def nobody_listens_to_mysql(_url: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        pymysql.connect(host="127.0.0.1", port=bound.getsockname()[1], user="x")


def nobody_listens_to_sqlalchemy(_url: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        sqlalchemy.create_engine(f"postgresql+psycopg://x@127.0.0.1:{bound.getsockname()[1]}/x").connect()


@pytest.mark.parametrize(
    "fail",
    [
        refused_by_the_database,
        cancelled_by_the_database,
        nobody_listens,
        nobody_listens_to_mysql,
        nobody_listens_to_sqlalchemy,
    ],
)
def test_what_the_database_refuses_or_never_heard_of_did_not_happen(
    fail: Callable[[str], None], ledger: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail(ledger)
    assert not may_have_happened(caught.value)


@pytest.mark.parametrize(
    ("number", "happened"), [(2013, True), (2006, True), (1053, True), (1205, False), (1213, False)]
)
def test_mysql_tells_by_its_number(number: int, happened: bool) -> None:
    assert may_have_happened(pymysql.err.OperationalError(number, "said")) is happened
