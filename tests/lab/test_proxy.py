"""The fault proxy, with the two drivers that it must fool: each fault, seen from both ends."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import asyncpg
import psycopg
import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy, _Session, cut_after, cut_and_delay, cut_before

LOST = (psycopg.OperationalError, OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)


@pytest.fixture
def url(postgres_session_url: str) -> str:
    with psycopg.connect(postgres_session_url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS seen")
        connection.execute("CREATE TABLE seen (n int)")
    return postgres_session_url


@pytest.fixture
def proxy(url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(url) as running:
        yield running


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM seen").fetchone()
    assert found is not None
    return int(found[0])


def insert_with_psycopg(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO seen VALUES (%s)", [1])
        connection.commit()


def insert_with_psycopg_pipeline(url: str) -> None:
    """All in one go, and COMMIT as an extended query."""
    with psycopg.connect(url) as connection, connection.pipeline():
        connection.execute("INSERT INTO seen VALUES (%s)", [1])
        connection.commit()


def insert_with_asyncpg(url: str) -> None:
    async def insert() -> None:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute("INSERT INTO seen VALUES ($1)", 1)
        finally:
            connection.terminate()

    asyncio.run(insert())


def insert_with_asyncpg_prepared(url: str) -> None:
    """COMMIT as a prepared statement."""

    async def insert() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("BEGIN")
            await connection.execute("INSERT INTO seen VALUES ($1)", 1)
            commit = await connection.prepare(" commit ;\n")
            await commit.fetch()
        finally:
            connection.terminate()

    asyncio.run(insert())


Insert = Callable[[str], None]


@pytest.fixture(
    params=[
        insert_with_psycopg,
        insert_with_psycopg_pipeline,
        insert_with_asyncpg,
        insert_with_asyncpg_prepared,
    ]
)
def insert(request: pytest.FixtureRequest) -> Insert:
    chosen: Insert = request.param
    return chosen


def test_without_faults_it_is_not_noticed(insert: Insert, proxy: FaultProxy, url: str) -> None:
    insert(proxy.url_for(url))
    assert rows(url) == 1
    assert proxy.accepted == 1
    wait_until(lambda: proxy.connections == 0)


def test_cut_before_commit(insert: Insert, proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_before)
    with pytest.raises(LOST):
        insert(proxy.url_for(url))
    assert rule.fired.is_set()
    assert rule.done.wait(10)
    assert rule.count == 1
    assert rows(url) == 0
    insert(proxy.url_for(url))  # one shot: the second passes
    assert rows(url) == 1
    assert rule.count == 1


def test_cut_after_commit(insert: Insert, proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_after)
    with pytest.raises(LOST):
        insert(proxy.url_for(url))
    assert rule.fired.is_set()
    assert rows(url) == 1  # at once: the client was cut only after the server had answered
    assert rule.done.wait(10)


def test_commit_lands_late(insert: Insert, proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_and_delay())
    with pytest.raises(LOST):
        insert(proxy.url_for(url))
    assert rule.fired.is_set()
    assert rows(url) == 0
    assert not rule.done.is_set()
    rule.release()
    assert rule.done.wait(10)
    assert rows(url) == 1


def test_commit_lands_after_a_time(proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_and_delay(1.0))
    with pytest.raises(LOST):
        insert_with_asyncpg(proxy.url_for(url))
    assert not rule.done.is_set()
    assert rows(url) == 0
    assert rule.done.wait(10)
    assert rows(url) == 1


def test_a_rule_for_several_times(proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_before, times=2)
    for _ in range(2):
        with pytest.raises(LOST):
            insert_with_psycopg(proxy.url_for(url))
    insert_with_psycopg(proxy.url_for(url))
    assert (rule.count, rows(url)) == (2, 1)


def test_a_rule_for_ever_until_cleared(proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_before, times=None)
    for _ in range(3):
        with pytest.raises(LOST):
            insert_with_psycopg(proxy.url_for(url))
    proxy.clear()
    insert_with_psycopg(proxy.url_for(url))
    assert (rule.count, rows(url)) == (3, 1)


def test_a_rule_for_another_statement(proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_statement(r"insert into seen .*", cut_after)
    with pytest.raises(LOST):
        insert_with_asyncpg(proxy.url_for(url))
    assert rule.done.wait(10)
    assert rows(url) == 0


def test_rollback_and_lookalikes_pass(proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_commit(cut_before)
    with psycopg.connect(proxy.url_for(url), autocommit=True) as connection:
        connection.execute("SELECT 'COMMIT'")
        connection.execute("BEGIN")
        connection.execute("ROLLBACK")
    assert not rule.fired.is_set()


def test_a_server_that_dies_before_its_answer(proxy: FaultProxy, url: str) -> None:
    rule = proxy.on_statement(r"SELECT pg_terminate_backend\(pg_backend_pid\(\)\)", cut_after)
    with psycopg.connect(proxy.url_for(url)) as connection, pytest.raises(LOST):
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert rule.done.wait(10)


def test_cut_all(proxy: FaultProxy, url: str) -> None:
    async def with_asyncpg() -> None:
        connection = await asyncpg.connect(proxy.url_for(url))
        proxy.cut_all()
        with pytest.raises(LOST):
            await connection.execute("SELECT 1")
        connection.terminate()

    with psycopg.connect(proxy.url_for(url)) as connection:
        asyncio.run(with_asyncpg())
        with pytest.raises(LOST):
            connection.execute("SELECT 1")
    assert proxy.connections == 0
    insert_with_psycopg(proxy.url_for(url))


def test_the_server_sees_the_cut_too(proxy: FaultProxy, url: str) -> None:
    with psycopg.connect(proxy.url_for(url)) as connection:
        pid = connection.info.backend_pid
        proxy.cut_all()
        with psycopg.connect(url, autocommit=True) as other:
            query = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: other.execute(query, [pid]).fetchone() == (True,))


def test_refuse_and_accept(proxy: FaultProxy, url: str) -> None:
    with psycopg.connect(proxy.url_for(url), autocommit=True) as connection:
        proxy.refuse()
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(proxy.url_for(url))
        with pytest.raises(ConnectionRefusedError):
            insert_with_asyncpg(proxy.url_for(url))
        connection.execute("SELECT 1")  # those that are open stay
        proxy.accept()
        proxy.accept()
        insert_with_asyncpg(proxy.url_for(url))


def test_stall_and_flow(proxy: FaultProxy, url: str) -> None:
    with psycopg.connect(proxy.url_for(url), autocommit=True) as connection:
        proxy.stall()
        answered = threading.Event()

        def ask() -> None:
            connection.execute("INSERT INTO seen VALUES (1)")
            answered.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert not answered.wait(0.2)
        assert rows(url) == 0
        proxy.flow()
        asking.join(10)
        assert answered.is_set()
        assert rows(url) == 1


def test_new_connections_stall_as_well(proxy: FaultProxy, url: str) -> None:
    async def connect() -> None:
        proxy.stall()
        connecting = asyncio.ensure_future(asyncpg.connect(proxy.url_for(url)))
        done, _ = await asyncio.wait([connecting], timeout=0.2)
        assert not done
        proxy.flow()
        connection = await asyncio.wait_for(connecting, 10)
        await connection.close()

    asyncio.run(connect())


def test_large_answers_and_questions_pass(proxy: FaultProxy, url: str) -> None:
    large = "x" * 5_000_000
    with psycopg.connect(proxy.url_for(url)) as connection:
        assert connection.execute("SELECT %s::text", [large]).fetchone() == (large,)


def test_a_target_that_is_gone_resets_the_client() -> None:
    with (
        FaultProxy("127.0.0.1", 1) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as s,
    ):
        with pytest.raises(ConnectionResetError):
            s.recv(1)
        proxy.close()
        proxy.close()


def test_other_protocols_pass() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        FaultProxy("127.0.0.1", listener.getsockname()[1]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
        listener.accept()[0] as server,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert server.recv(100) == b"GET / HTTP/1.1\r\n\r\n"
        client.shutdown(socket.SHUT_WR)
        assert server.recv(100) == b""
        server.sendall(b"y" * 1_000_000)
        server.shutdown(socket.SHUT_WR)
        received = 0
        while part := client.recv(65_536):
            received += len(part)
        assert received == 1_000_000


def test_statements_are_seen_however_the_bytes_are_cut() -> None:
    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!i", len(body) + 4) + body

    stream = b"".join(
        [
            struct.pack("!ii", 12, 3 << 16) + b"u\0\0\0",
            message(b"Q", b"BEGIN\0"),
            message(b"P", b"s1\0commit\0\0\0"),
            message(b"B", b"p1\0s1\0\0\0\0\0\0\0"),
            message(b"E", b"p1\0\0\0\0\0"),
            message(b"S", b""),
        ]
    )
    for size in (1, 2, 7, len(stream)):
        session = _Session()
        session.from_server(b"")
        pieces = [
            piece
            for start in range(0, len(stream), size)
            for piece in session.from_client(stream[start : start + size])
        ]
        assert b"".join(data for data, _ in pieces) == stream
        assert [sql for _, sql in pieces if sql is not None] == ["BEGIN", "commit"]
        assert session.answers_due == 3


def test_url_for_keeps_everything_else() -> None:
    with FaultProxy("127.0.0.1", 5432) as proxy:
        url = proxy.url_for("postgresql://me:p%40ss@db.internal:5432/name?sslmode=disable")
        assert url == f"postgresql://me:p%40ss@127.0.0.1:{proxy.port}/name?sslmode=disable"
        assert proxy.url_for("redis://host") == f"redis://127.0.0.1:{proxy.port}"


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with FaultProxy("127.0.0.1", 1):
        (made,) = [one for one in threading.enumerate() if one not in before and one.name == "fault-proxy"]
    assert not made.is_alive()
