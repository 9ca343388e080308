"""What an async handler is lent on PostgreSQL: it works as a connection does, until its operation ends."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from samekey.drivers.postgres.asyncpg_session import AsyncpgSession
from samekey.errors import CommitRefused, ConfigurationError, OperationOver, StoreError, UnfinishedWork
from tests.stores.postgres_sessions import Watched, asyncpg_driver, new_key, until

INSERT = "insert into lent_effects (key) values ($1)"
Story = Callable[[Any, Watched], Awaitable[None]]


@pytest.fixture
def watched(migrated_postgres: str) -> Watched:
    return Watched(migrated_postgres)


def run(watched: Watched, story: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    """A story with a driver, which leaves no session behind."""

    async def whole() -> None:
        async with asyncpg_driver(watched.url, **options) as driver:
            await story(driver)

    asyncio.run(whole())
    watched.wait_for_sessions(0)


def test_everything_that_a_handler_does_with_a_connection(watched: Watched) -> None:
    async def story(driver: Any) -> None:
        session = await driver.open()
        connection = session.connection
        assert connection is session.connection
        assert isinstance(connection, asyncpg.Connection)
        key = new_key()
        assert await connection.execute(INSERT, key) == "INSERT 0 1"
        await connection.executemany(INSERT, [(key,), (key,)])
        assert await connection.fetchval("select count(*) from lent_effects where key = $1", key) == 3
        assert (await connection.fetchrow("select $1::text as key", key))["key"] == key
        assert [row[0] for row in await connection.fetch("select generate_series(1, 3)")] == [1, 2, 3]
        # savepoints
        async with connection.transaction():
            await connection.execute(INSERT, key)
        try:
            async with connection.transaction():
                await connection.execute(INSERT, key)
                _ = 1 / 0
        except ZeroDivisionError:
            pass
        inner = connection.transaction()
        await inner.start()
        await connection.execute(INSERT, key)
        await inner.rollback()
        await connection.execute("savepoint mine")
        await connection.execute("rollback to mine; release mine")
        # cursors and prepared statements
        assert [row[0] async for row in connection.cursor("select generate_series(1, 3)")] == [1, 2, 3]
        cursor = await connection.cursor("select generate_series(1, 3)")
        assert (await cursor.fetchrow())[0] == 1
        assert [row[0] for row in await cursor.fetch(2)] == [2, 3]
        statement = await connection.prepare("select $1::int + 1")
        assert await statement.fetchval(1) == 2
        assert statement.get_parameters()[0].name == "int4"
        assert [row[0] async for row in statement.cursor(4)] == [5]
        # copies
        await connection.copy_records_to_table("lent_effects", records=[(key,)])
        await connection.copy_to_table("lent_effects", source=io.BytesIO(f"{key}\n".encode()))
        out = io.BytesIO()
        await connection.copy_from_query("select count(*) from lent_effects where key = $1", key, output=out)
        assert out.getvalue() == b"6\n"
        # what it tells of itself
        assert connection.is_in_transaction() and not connection.is_closed()
        assert connection.get_server_pid() > 0 and connection.get_server_version().major >= 13
        assert connection.get_settings().server_encoding == "UTF8"
        await session.commit()
        assert watched.effects(key) == 6
        assert connection.is_closed()

    run(watched, story)


async def settled(end: Callable[[], Any]) -> None:
    done = end()
    if done is not None:
        await done


USES: dict[str, Callable[[Any], Any]] = {
    "execute": lambda connection: connection.execute("select 1"),
    "fetch": lambda connection: connection.fetch("select 1"),
    "fetchrow": lambda connection: connection.fetchrow("select 1"),
    "fetchval": lambda connection: connection.fetchval("select 1"),
    "executemany": lambda connection: connection.executemany("select $1::int", [(1,)]),
    "prepare": lambda connection: connection.prepare("select 1"),
    "copy": lambda connection: connection.copy_records_to_table("lent_effects", records=[("late",)]),
    "listen": lambda connection: connection.add_listener("channel", print),
    "codec": lambda connection: connection.set_builtin_type_codec("hstore", codec_name="pg_contrib.hstore"),
    "reload": lambda connection: connection.reload_schema_state(),
}


@pytest.mark.parametrize("end", ["commit", "rollback", "give_up"])
def test_what_was_lent_is_cut_when_the_operation_ends(watched: Watched, end: str) -> None:
    async def story(driver: Any) -> None:
        session = await driver.open()
        connection = session.connection
        statement = await connection.prepare("select 1")
        cursor = await connection.cursor("select generate_series(1, 3)")
        stream = connection.cursor("select generate_series(1, 100)", prefetch=1).__aiter__()
        await stream.__anext__()
        savepoint, unused = connection.transaction(), connection.transaction()
        await savepoint.start()
        await settled(getattr(session, end))
        # The next holder has the same session of the server, unless it was closed.
        following = await driver.open()
        for use in USES.values():
            with pytest.raises(OperationOver, match="operation is over"):
                await use(connection)
        late: list[Callable[[], Any]] = [
            statement.fetchval,
            lambda: cursor.fetch(1),
            stream.__anext__,
            savepoint.commit,
            savepoint.rollback,
            unused.start,
        ]
        for attempt in late:
            with pytest.raises(OperationOver):
                await attempt()
        for call in (connection.transaction, connection.is_in_transaction, statement.get_query):
            with pytest.raises(OperationOver):
                call()
        with pytest.raises(OperationOver):
            connection.cursor("select 1")
        assert await following.connection.fetchval("select 1") == 1
        await following.rollback()

    run(watched, story)


TEXTS = [
    "commit",
    "END",
    "/* x */ rollback",
    "abort",
    "begin",
    "select 1; commit and chain",
    "prepare transaction 'x'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_would_end_the_transaction_is_not_sent(watched: Watched, text: str) -> None:
    async def story(driver: Any) -> None:
        session = await driver.open()
        connection, key = session.connection, new_key()
        await connection.execute(INSERT, key)
        ways: list[Callable[[], Any]] = [
            lambda: connection.execute(text),
            lambda: connection.fetch(text),
            lambda: connection.fetchval(text),
            lambda: connection.fetchrow(text),
            lambda: connection.executemany(text, [()]),
            lambda: connection.prepare(text),
            lambda: connection.copy_from_query(text, output=io.BytesIO()),
        ]
        for way in ways:
            with pytest.raises(CommitRefused, match="samekey commits this transaction"):
                await way()
        with pytest.raises(CommitRefused):
            connection.cursor(text)
        assert watched.effects(key) == 0
        await session.commit()
        assert watched.effects(key) == 1

    run(watched, story)


def test_a_lent_connection_cannot_be_closed(watched: Watched) -> None:
    async def story(driver: Any) -> None:
        session = await driver.open()
        connection, key = session.connection, new_key()
        await connection.execute(INSERT, key)
        with pytest.raises(CommitRefused, match="Remove the close"):
            await connection.close()
        with pytest.raises(CommitRefused, match="Remove the close"):
            connection.terminate()
        with pytest.raises(CommitRefused, match="Remove the close"):
            await connection.reset()
        await session.commit()
        assert watched.effects(key) == 1

    run(watched, story)


async def set_codec(connection: Any) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=str, decoder=lambda value: ["mine", value]
    )


async def log_queries(connection: Any) -> None:
    connection.add_query_logger(lambda record: HEARD.append(record.query))


async def log_messages(connection: Any) -> None:
    connection.add_log_listener(lambda _connection, message: HEARD.append(str(message)))


async def listen(connection: Any) -> None:
    await connection.add_listener("lent_channel", lambda *_: HEARD.append("notified"))


async def listen_by_text(connection: Any) -> None:
    await connection.execute("listen lent_channel")


async def prepare_by_text(connection: Any) -> None:
    await connection.execute("prepare mine as select 'secret'")


async def prepare_within(connection: Any) -> None:
    await connection.execute("do $$ begin execute 'prepare mine as select 1'; end $$")


async def settings(connection: Any) -> None:
    await connection.execute("set application_name to 'mine'; set timezone to 'Pacific/Chatham'")
    await connection.execute("select set_config('my.tenant', 'secret', false)")


async def temporary_table(connection: Any) -> None:
    await connection.execute("create temporary table mine on commit preserve rows as select 'secret'")


async def held_cursor(connection: Any) -> None:
    await connection.execute("declare mine cursor with hold for select 'secret'")


async def advisory_lock(connection: Any) -> None:
    await connection.execute("select pg_advisory_lock(4711)")


async def sequence(connection: Any) -> None:
    await connection.execute("create sequence if not exists lent_sequence")
    await connection.execute("select nextval('lent_sequence')")


HEARD: list[str] = []


@pytest.mark.parametrize(
    "leave",
    [
        *(set_codec, log_queries, log_messages, listen, listen_by_text, prepare_by_text, prepare_within),
        *(settings, temporary_table, held_cursor, advisory_lock, sequence),
    ],
)
def test_the_next_holder_meets_nothing_of_the_last(watched: Watched, leave: Any) -> None:
    async def story(driver: Any) -> None:
        HEARD.clear()
        session = await driver.open()
        await leave(session.connection)
        await session.connection.execute(INSERT, new_key())
        await session.commit()
        await asyncio.sleep(0)  # asyncpg tells its listeners in the loop's next turn
        HEARD.clear()
        session = await driver.open()
        connection = session.connection
        assert await connection.fetchval("select '[1]'::jsonb") == "[1]"
        await connection.execute("do $$ begin raise warning 'loud'; end $$")
        await connection.execute("notify lent_channel")
        tell = """
            select current_setting('application_name'), current_setting('timezone'),
                coalesce(current_setting('my.tenant', true), ''),
                (select count(*) from pg_prepared_statements where from_sql),
                (select count(*) from pg_class where relname = 'mine'),
                (select count(*) from pg_cursors where is_holdable),
                (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
                (select count(*) from pg_listening_channels())
        """
        name, zone, *rest = await connection.fetchrow(tell)
        assert name == watched.name and zone != "Pacific/Chatham"
        assert rest == ["", 0, 0, 0, 0, 0]
        await session.commit()
        session = await driver.open()
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError):
            await session.connection.fetchval("select lastval()")
        await session.rollback()
        assert not HEARD

    run(watched, story, pool_size=1)


@pytest.mark.parametrize("kind", ["text", "int8", "bytea", "bool"])
def test_a_codec_that_would_change_our_own_statements_is_refused(watched: Watched, kind: str) -> None:
    async def story(driver: Any) -> None:
        session = await driver.open()
        with pytest.raises(ConfigurationError, match="codec"):
            await session.connection.set_type_codec(
                kind, schema="pg_catalog", encoder=str, decoder=str, format="text"
            )
        await session.rollback()

    run(watched, story)


@pytest.mark.parametrize("end", ["commit", "rollback", "cut"])
def test_a_statement_under_way_at_the_end_is_rolled_back(watched: Watched, end: str) -> None:
    """As of a task that a failed gather left behind."""

    async def story(driver: Any) -> None:
        session = await driver.open()
        connection, key = session.connection, new_key()
        await connection.execute(INSERT, key)
        left = asyncio.ensure_future(connection.fetch("select pg_sleep(3)"))
        await until(lambda: any("pg_sleep" in row[2] and row[1] == "active" for row in watched.sessions()))
        if end == "rollback":
            await session.rollback()
        else:
            with pytest.raises(UnfinishedWork, match="everything was rolled back"):
                await settled(getattr(session, end))
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await left
        with pytest.raises(OperationOver):
            await connection.execute(INSERT, key)
        await session.rollback()
        following = await driver.open()  # there is one place, and it is free again
        await following.rollback()
        watched.wait_for_sessions(1)
        assert watched.effects(key) == 0

    run(watched, story, pool_size=1)


def test_a_commit_that_the_server_turns_into_a_rollback_is_no_success(watched: Watched) -> None:
    async def story(driver: Any) -> None:
        session: AsyncpgSession = await driver.open()
        key = new_key()
        await session.connection.execute(INSERT, key)
        with pytest.raises(asyncpg.UndefinedTableError):
            await session.connection.execute("select * from nowhere")
        with pytest.raises(StoreError, match="answered with ROLLBACK"):
            await session.commit()
        assert watched.effects(key) == 0

    run(watched, story)


def test_the_users_own_connection_has_a_face_too(watched: Watched) -> None:
    async def story(driver: Any) -> None:
        own = await asyncpg.connect(watched.url)
        await set_codec(own)
        session = await driver.open(own)
        connection, key = session.connection, new_key()
        assert await connection.fetchval("select '[1]'::jsonb") == ["mine", "[1]"]
        await connection.execute(INSERT, key)
        with pytest.raises(CommitRefused):
            await connection.execute("commit")
        with pytest.raises(CommitRefused):
            await connection.close()
        await session.commit()
        assert watched.effects(key) == 1
        with pytest.raises(OperationOver):
            await connection.execute(INSERT, key)
        # It is the user's own as it was before.
        assert await own.fetchval("select '[2]'::jsonb") == ["mine", "[2]"]
        async with own.transaction():
            await own.execute(INSERT, key)
        assert watched.effects(key) == 2
        # A transaction that had failed on it is no success either.
        session = await driver.open(own)
        with pytest.raises(asyncpg.UndefinedTableError):
            await session.connection.execute("select * from nowhere")
        with pytest.raises(StoreError, match="answered with ROLLBACK"):
            await session.commit()
        assert await own.fetchval("select 1") == 1
        await own.close()

    run(watched, story)
