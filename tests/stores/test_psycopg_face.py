"""What a sync handler is lent on PostgreSQL: it works as a connection does, until its operation ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql, waiting
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb, set_json_loads

from samekey.errors import CommitRefused, OperationOver, StoreError, UnfinishedWork
from tests.stores.postgres_sessions import Watched, new_key, psycopg_driver

INSERT = "insert into lent_effects (key) values (%s)"


@pytest.fixture
def watched(migrated_postgres: str) -> Watched:
    return Watched(migrated_postgres)


def run(watched: Watched, story: Callable[[Any], None], **options: Any) -> None:
    """A story with a driver, which leaves no session behind."""
    with psycopg_driver(watched.url, **options) as driver:
        story(driver)
    watched.wait_for_sessions(0)


def test_everything_that_a_handler_does_with_a_connection(watched: Watched) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        connection, key = session.connection, new_key()
        assert connection is session.connection and isinstance(connection, psycopg.Connection)
        assert connection.execute(INSERT, [key]).rowcount == 1
        with connection.cursor() as cursor:
            cursor.executemany(INSERT, [[key], [key]])
            cursor.execute("select count(*) from lent_effects where key = %s", [key])
            assert cursor.fetchone() == (3,)
            assert [row[0] for row in cursor.stream("select generate_series(1, 3)")] == [1, 2, 3]
        with connection.cursor(row_factory=dict_row) as named:
            assert named.execute("select 1 as one").fetchall() == [{"one": 1}]
        with connection.cursor("server_side") as server:
            server.execute("select generate_series(1, 3)")
            assert server.fetchmany(2) == [(1,), (2,)]
        client = psycopg.ClientCursor(connection)
        assert client.execute("select %s", ["it's"]).fetchone() == ("it's",)
        composed = sql.SQL("select count(*) from {} where key = {}").format(
            sql.Identifier("lent_effects"), sql.Literal(key)
        )
        assert connection.execute(composed).fetchone() == (3,)
        # savepoints
        with connection.transaction():
            connection.execute(INSERT, [key])
        try:
            with connection.transaction():
                connection.execute(INSERT, [key])
                _ = 1 / 0
        except ZeroDivisionError:
            pass
        with connection.transaction(force_rollback=True):
            connection.execute(INSERT, [key])
        connection.execute("savepoint mine")
        connection.execute("rollback to mine; release mine")
        # copies and pipelines
        with connection.cursor().copy("copy lent_effects from stdin") as copy:
            copy.write_row([key])
        with connection.pipeline():
            connection.execute(INSERT, [key])
            connection.execute(INSERT, [key])
        assert connection.execute("select %s::jsonb", [Jsonb([1])]).fetchone() == ([1],)
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        assert not connection.closed and not connection.broken
        session.commit()
        assert watched.effects(key) == 7
        assert connection.closed

    run(watched, story)


@pytest.mark.parametrize("end", ["commit", "rollback", "give_up"])
def test_what_was_lent_is_cut_when_the_operation_ends(watched: Watched, end: str) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        connection = session.connection
        cursor = connection.cursor()
        server = connection.cursor("server_side")
        server.execute("select generate_series(1, 300)")
        getattr(session, end)()
        following = driver.open()  # it has the same session of the server, unless it was closed
        uses: list[Callable[[], Any]] = [
            lambda: connection.execute("select 1"),
            lambda: connection.cursor().execute("select 1"),
            lambda: cursor.execute("select 1"),
            lambda: cursor.executemany("select %s", [[1]]),
            lambda: list(cursor.stream("select 1")),
            lambda: cursor.copy("copy lent_effects from stdin").__enter__(),
            lambda: psycopg.Cursor(connection).execute("select 1"),
            server.fetchone,
            lambda: connection.transaction().__enter__(),
            lambda: next(connection.notifies(timeout=0)),
            connection.cancel,
            connection.cancel_safe,
        ]
        for use in uses:
            with pytest.raises(OperationOver, match="operation is over"):
                use()
        assert following.connection.execute("select 1").fetchone() == (1,)
        following.rollback()
        server.close()  # nothing is sent, so it is no error

    run(watched, story)


TEXTS: list[Any] = [
    *("commit", "END", "/* x */ rollback", "abort", "begin", "select 1; commit and chain"),
    *("prepare transaction 'x'", b"commit", sql.SQL("commit"), sql.SQL("{}").format(sql.SQL("rollback"))),
]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_text_that_would_end_the_transaction_is_not_sent(watched: Watched, text: Any) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        connection, key = session.connection, new_key()
        connection.execute(INSERT, [key])
        connection.cursor_factory = psycopg.ClientCursor
        server = connection.cursor("server_side")
        ways: list[Callable[[], Any]] = [
            lambda: connection.execute(text),
            lambda: connection.cursor().execute(text),
            lambda: connection.cursor().executemany(text, [[]]),
            lambda: list(connection.cursor().stream(text)),
            lambda: connection.cursor().copy(text).__enter__(),
            lambda: server.execute(text),
        ]
        for way in ways:
            with pytest.raises(CommitRefused, match="samekey commits this transaction"):
                way()
        assert watched.effects(key) == 0
        server.close()
        session.commit()
        assert watched.effects(key) == 1

    run(watched, story)


def test_a_lent_connection_cannot_be_committed_or_closed(watched: Watched) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        connection, key = session.connection, new_key()
        connection.execute(INSERT, [key])
        for name in ("commit", "rollback", "close", "tpc_prepare", "tpc_commit", "tpc_rollback", "__enter__"):
            with pytest.raises(CommitRefused):
                getattr(connection, name)()
        with pytest.raises(CommitRefused):
            connection.tpc_begin("x")
        session.commit()
        assert watched.effects(key) == 1

    run(watched, story)


HEARD: list[Any] = []


def adapters(connection: Any) -> None:
    set_json_loads(lambda data: ["mine", data], connection)


def factories(connection: Any) -> None:
    connection.row_factory = dict_row
    connection.cursor_factory = psycopg.ClientCursor
    connection.prepare_threshold = 0
    connection.prepared_max = 1


def notices(connection: Any) -> None:
    connection.add_notice_handler(HEARD.append)


def notifications(connection: Any) -> None:
    connection.add_notify_handler(HEARD.append)
    connection.execute("listen lent_channel")


def prepared(connection: Any) -> None:
    connection.execute("prepare mine as select 'secret'")


def prepared_within(connection: Any) -> None:
    connection.execute("do $$ begin execute 'prepare mine as select 1'; end $$")


def settings(connection: Any) -> None:
    connection.execute("set application_name to 'mine'; set timezone to 'Pacific/Chatham'")
    connection.execute("select set_config('my.tenant', 'secret', false)")


def temporary_table(connection: Any) -> None:
    connection.execute("create temporary table mine on commit preserve rows as select 'secret'")


def held_cursor(connection: Any) -> None:
    connection.execute("declare mine cursor with hold for select 'secret'")


def advisory_lock(connection: Any) -> None:
    connection.execute("select pg_advisory_lock(4711)")


def sequence(connection: Any) -> None:
    connection.execute("create sequence if not exists lent_sequence")
    connection.execute("select nextval('lent_sequence')")


@pytest.mark.parametrize(
    "leave",
    [
        *(adapters, factories, notices, notifications, prepared, prepared_within),
        *(settings, temporary_table, held_cursor, advisory_lock, sequence),
    ],
)
def test_the_next_holder_meets_nothing_of_the_last(watched: Watched, leave: Any) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        leave(session.connection)
        session.connection.execute(INSERT, [new_key()])
        session.commit()
        HEARD.clear()
        session = driver.open()
        connection = session.connection
        assert connection.execute("select '[1]'::jsonb").fetchone() == ([1],)
        assert (connection.prepare_threshold, connection.prepared_max) == (5, 100)
        connection.execute("do $$ begin raise warning 'loud'; end $$")
        connection.execute("notify lent_channel")
        tell = """
            select current_setting('application_name'), current_setting('timezone'),
                coalesce(current_setting('my.tenant', true), ''),
                (select count(*) from pg_prepared_statements where from_sql),
                (select count(*) from pg_class where relname = 'mine'),
                (select count(*) from pg_cursors where is_holdable),
                (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
                (select count(*) from pg_listening_channels())
        """
        name, zone, *rest = connection.execute(tell).fetchone()
        assert name == watched.name and zone != "Pacific/Chatham"
        assert rest == ["", 0, 0, 0, 0, 0]
        session.commit()
        session = driver.open()
        assert list(session.connection.notifies(timeout=0)) == []
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            session.connection.execute("select lastval()")
        session.rollback()
        assert not HEARD

    run(watched, story, pool_size=1)


def wait_for_sleep(watched: Watched) -> None:
    gone = threading.Event()
    for _ in range(2000):
        if any("pg_sleep" in row[2] and row[1] == "active" for row in watched.sessions()):
            return
        gone.wait(0.01)
    raise AssertionError("the statement did not begin")


@pytest.mark.parametrize("end", ["commit", "rollback", "cut"])
def test_a_statement_under_way_at_the_end_is_rolled_back(watched: Watched, end: str) -> None:
    """As of a thread that nobody joined."""

    def story(driver: Any) -> None:
        session = driver.open()
        connection, key = session.connection, new_key()
        connection.execute(INSERT, [key])

        def linger() -> None:
            connection.execute("select pg_sleep(3)")
            connection.execute(INSERT, [key])

        with ThreadPoolExecutor(1) as pool:
            left = pool.submit(linger)
            wait_for_sleep(watched)
            if end == "rollback":
                session.rollback()
            else:
                with pytest.raises(UnfinishedWork, match="everything was rolled back"):
                    getattr(session, end)()
            with pytest.raises((psycopg.Error, OperationOver)):
                left.result()
        with pytest.raises(OperationOver):
            connection.execute(INSERT, [key])
        session.rollback()
        following = driver.open()  # there is one place, and it is free again
        following.rollback()
        watched.wait_for_sessions(1)
        assert watched.effects(key) == 0

    run(watched, story, pool_size=1)


OPEN_ENDS: dict[str, Callable[[Any], Any]] = {
    "stream": lambda connection: _begun(connection.cursor().stream("select generate_series(1, 100000)")),
    "copy": lambda connection: _entered(connection.cursor().copy("copy lent_effects from stdin")),
    "pipeline": lambda connection: _entered(connection.pipeline()),
}


def _begun(rows: Any) -> Any:
    next(rows)
    return rows


def _entered(block: Any) -> Any:
    block.__enter__()
    return block


@pytest.mark.parametrize("name", OPEN_ENDS)
def test_a_stream_a_copy_or_a_pipeline_left_open_is_rolled_back(watched: Watched, name: str) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        connection, key = session.connection, new_key()
        connection.execute(INSERT, [key])
        left = OPEN_ENDS[name](connection)
        with pytest.raises(UnfinishedWork):
            session.commit()
        following = driver.open()
        following.rollback()
        assert watched.effects(key) == 0
        try:
            left.close() if name == "stream" else left.__exit__(None, None, None)
        except Exception:  # whatever it says, its connection is gone
            pass

    run(watched, story, pool_size=1)


def test_a_commit_that_the_server_turns_into_a_rollback_is_no_success(watched: Watched) -> None:
    def story(driver: Any) -> None:
        session = driver.open()
        key = new_key()
        session.connection.execute(INSERT, [key])
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.connection.execute("select * from nowhere")
        with pytest.raises(StoreError, match="answered with ROLLBACK"):
            session.commit()
        assert watched.effects(key) == 0

    run(watched, story)


def test_the_users_own_connection_has_a_face_too(watched: Watched) -> None:
    def story(driver: Any) -> None:
        class Mine(psycopg.Connection[Any]):
            def double(self, number: int) -> int:
                row = self.execute("select 2 * %s", [number]).fetchone()
                assert row is not None
                return int(row["double"])

        with Mine.connect(watched.url, row_factory=dict_row) as own:
            set_json_loads(lambda data: ["mine", data], own)
            session = driver.open(own)
            connection, key = session.connection, new_key()
            assert isinstance(connection, Mine)
            row = connection.execute("select '[1]'::jsonb as found, 1 as double").fetchone()
            assert row == {"found": ["mine", b"[1]"], "double": 1}
            connection.execute(INSERT, [key])
            with pytest.raises(CommitRefused):
                connection.execute("commit")
            with pytest.raises(CommitRefused):
                connection.commit()
            with pytest.raises(CommitRefused):
                connection.close()
            with pytest.raises(psycopg.ProgrammingError, match="forbidden within a Transaction"):
                own.commit()  # past the face: psycopg itself refuses
            session.commit()
            assert watched.effects(key) == 1
            with pytest.raises(OperationOver):
                connection.execute(INSERT, [key])
            # It is the user's own as it was before.
            own.execute(INSERT, [key])
            own.commit()
            assert watched.effects(key) == 2
            session = driver.open(own)
            with pytest.raises(psycopg.errors.UndefinedTable):
                session.connection.execute("select * from nowhere")
            with pytest.raises(StoreError, match="answered with ROLLBACK"):
                session.commit()
            assert own.info.transaction_status == TransactionStatus.IDLE

    run(watched, story)


class Interrupted(BaseException):
    """As a KeyboardInterrupt, or the time-out of a green thread."""


class Interrupting:
    """Interrupts a wait, once it is armed: after the statement was sent, before its answer was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed = False
        self._plain: Any = waiting.wait
        monkeypatch.setattr(waiting, "wait", self._wait)

    def _wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.armed:
            return self._plain(gen, *args, **kwargs)
        self.armed = False
        next(gen)
        raise Interrupted

    def arm(self) -> None:
        self.armed = True


def _interrupt(driver: Any, where: str, key: str, interrupting: Interrupting) -> None:
    """One operation that is interrupted at the named place, and rolled back as every operation is."""
    if where == "begin":
        interrupting.arm()
    session = driver.open()
    try:
        session.connection.execute(INSERT, [key])
        if where == "reset":
            leave = session._leave

            def interrupted() -> None:
                interrupting.arm()
                leave()

            session._leave = interrupted
            session.commit()
        interrupting.arm()
        if where == "handler":
            session.connection.execute("select 1")
        elif where == "statement":
            session.execute(_Ask())
        else:
            getattr(session, where)()
    finally:
        session.rollback()


@pytest.mark.parametrize("where", ["begin", "statement", "commit", "rollback", "reset", "handler"])
def test_an_interrupted_connection_is_closed_and_its_place_is_free(
    watched: Watched, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(driver: Any) -> None:
        driver.open().rollback()
        (before,) = [row[0] for row in watched.sessions()]
        key = new_key()
        with pytest.raises(Interrupted):
            _interrupt(driver, where, key, Interrupting(monkeypatch))
        following = driver.open()  # there is one place
        assert following.connection.info.backend_pid != before
        following.connection.execute(INSERT, [key])
        following.commit()
        watched.wait_for_sessions(1)
        assert watched.effects(key) in ((1, 2) if where in ("commit", "reset") else (1,))

    run(watched, story, pool_size=1)


class _Ask:
    def render(self, _style: str) -> tuple[str, tuple[()]]:
        return "select 1", ()
