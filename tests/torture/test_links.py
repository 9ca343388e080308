"""The faults on the way to MySQL: what the client hears, and what the server has done."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql  # type: ignore[import-untyped]
import pytest

from lab.processes import wait_until
from lab.proxy import cut_after, cut_and_delay, cut_before
from lab.servers.mariadb import NamedServer, ask, connected
from lab.torture.service.faults import WRITES
from lab.torture.service.links import MySQLProxy

LOST = (pymysql.err.Error, OSError, EOFError)


@pytest.fixture(scope="module")
def session_url(mariadb_server: NamedServer) -> Iterator[str]:
    url = mariadb_server.create_database()
    ask(url, "create table seen (n int)")
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def url(session_url: str) -> str:
    ask(session_url, "delete from seen")
    return session_url


@pytest.fixture
def proxy(url: str) -> Iterator[MySQLProxy]:
    with MySQLProxy.before(url) as running:
        yield running


def rows(url: str) -> int:
    return int(ask(url, "select count(*) from seen")[0][0])


def insert(proxy: MySQLProxy, url: str) -> None:
    with connected(proxy.url_for(url), autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("insert into seen values (1)")
        connection.commit()


def test_everything_passes(proxy: MySQLProxy, url: str) -> None:
    insert(proxy, url)
    assert rows(url) == 1


def test_a_commit_is_lost(proxy: MySQLProxy, url: str) -> None:
    rule = proxy.on_commit(cut_before)
    with pytest.raises(LOST):
        insert(proxy, url)
    assert rule.count == 1 and rows(url) == 0
    insert(proxy, url)
    assert rows(url) == 1


def test_its_acknowledgement_is_lost(proxy: MySQLProxy, url: str) -> None:
    rule = proxy.on_commit(cut_after)
    with pytest.raises(LOST):
        insert(proxy, url)
    assert rule.done.wait(60) and rows(url) == 1


def test_it_comes_late(proxy: MySQLProxy, url: str) -> None:
    rule = proxy.on_commit(cut_and_delay())
    with pytest.raises(LOST):
        insert(proxy, url)
    assert rows(url) == 0
    rule.release()
    assert rule.done.wait(60)
    wait_until(lambda: rows(url) == 1, timeout=60)


def test_the_reply_to_statements_that_travel_together_is_lost(proxy: MySQLProxy, url: str) -> None:
    flag = pymysql.constants.CLIENT.MULTI_STATEMENTS
    rule = proxy.on_statement(WRITES, cut_after)
    with connected(proxy.url_for(url), client_flag=flag) as connection:
        text = "start transaction;\ninsert into seen values (1);\ncommit"
        with pytest.raises(LOST):
            connection.query(text)
    assert rule.count == 1
