"""COMMIT by ways past a connection's own methods on PostgreSQL: refused before it is sent, or found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from samekey import Idempotency, current_operation
from samekey.errors import CommitRefused, EscapedTransaction, OperationOver, OutcomeUnknown
from tests.stores.postgres_sessions import Watched, new_key

INSERT = "insert into lent_effects (key) values ('{}')"
NO_STRINGS = "set local standard_conforming_strings = off"


@pytest.fixture
def watched(migrated_postgres: str) -> Watched:
    return Watched(migrated_postgres)


@pytest.fixture
def idempotency(watched: Watched) -> Iterator[Idempotency]:
    made = Idempotency(watched.url, pool_size=1)
    yield made
    made.close()


CURSORS: dict[str, Callable[[Any], Any]] = {
    "Cursor": psycopg.Cursor,
    "ClientCursor": psycopg.ClientCursor,
    "RawCursor": psycopg.RawCursor,
    "ServerCursor": lambda connection: psycopg.ServerCursor(connection, "mine"),
}
TEXTS = [
    "select 1; commit",
    "select $€$ ' $€$; commit; select $€$ ' $€$",
    "select 1 as €$$; commit; select 2 as €$$",
    "select e'a'\n'\\''; commit; select 1 --'",
    "select 1 --\r; commit",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", CURSORS)
def test_a_cursor_that_the_handler_makes_itself_commits_nothing(
    watched: Watched, idempotency: Idempotency, kind: str, text: str
) -> None:
    key = new_key()

    def pay() -> None:
        connection = current_operation().connection
        connection.execute(INSERT.format(key))
        with CURSORS[kind](connection) as cursor, pytest.raises(CommitRefused):
            cursor.execute(text)
        assert watched.effects(key) == 0
        connection.execute(INSERT.format(key))

    idempotency.once(tenant="t", key=key, run=pay, mode="atomic")
    assert watched.effects(key) == 2


def test_a_string_in_which_backslashes_escape_hides_nothing(
    watched: Watched, idempotency: Idempotency
) -> None:
    key = new_key()

    def pay() -> None:
        connection = current_operation().connection
        connection.execute(NO_STRINGS)
        with pytest.raises(CommitRefused):
            connection.execute(r"select '\''; commit; select 1 --'")
        connection.execute(INSERT.format(key))

    idempotency.once(tenant="t", key=key, run=pay, mode="atomic")
    assert watched.effects(key) == 1


def test_what_such_a_cursor_prepares_meets_nobody(idempotency: Idempotency) -> None:
    def leave() -> None:
        connection = current_operation().connection
        psycopg.ClientCursor(connection).execute("prepare mine as select 'a secret'")
        connection.pgconn.exec_(b"prepare mine_too as select 'a secret'")
        connection.execute(INSERT.format(new_key()))

    def look() -> Any:
        connection = current_operation().connection
        connection.execute(INSERT.format(new_key()))
        found = connection.execute("select name from pg_prepared_statements where name like 'mine%'")
        return found.fetchall()

    idempotency.once(tenant="a", key=new_key(), run=leave, mode="atomic")
    assert idempotency.once(tenant="b", key=new_key(), run=look, mode="atomic") == []


@pytest.mark.parametrize("dies", [False, True], ids=["", "and the connection is lost"])
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_commit_past_everything_is_found_at_once_and_never_frees_the_key(
    watched: Watched, idempotency: Idempotency, ending: str, dies: bool
) -> None:
    key = new_key()

    def pay() -> None:
        connection = current_operation().connection
        connection.execute(INSERT.format(key))
        backend = connection.info.backend_pid
        connection.pgconn.exec_(b"commit")
        with pytest.raises(OperationOver):
            connection.execute(INSERT.format(key))
        if dies:
            with psycopg.connect(watched.url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s, 5000)", [backend])
        if ending == "raises":
            raise ValueError("later")

    with pytest.raises((EscapedTransaction, ValueError)):
        idempotency.once(tenant="t", key=key, run=pay, mode="atomic")
    with pytest.raises(OutcomeUnknown):
        idempotency.once(tenant="t", key=key, run=pay, mode="atomic")
    assert watched.effects(key) == 1


@pytest.mark.parametrize("how", ["copy_records_to_table", "copy_to_table", *TEXTS, NO_STRINGS])
def test_no_way_of_asyncpgs_commits(watched: Watched, how: str) -> None:
    key = new_key()

    async def pay() -> None:
        connection = current_operation().connection
        await connection.execute(INSERT.format(key))
        text = how
        if how == NO_STRINGS:
            await connection.execute(NO_STRINGS)
            text = r"select '\''; commit; select 1 --'"
        copies: dict[str, dict[str, Any]] = {
            "copy_records_to_table": {"records": [(key,)], "where": "true; commit"},
            "copy_to_table": {"source": b"", "where": "true; commit"},
        }
        sent = (
            getattr(connection, how)("lent_effects", **copies[how])
            if how in copies
            else connection.execute(text)
        )
        with pytest.raises(CommitRefused):
            await sent
        assert watched.effects(key) == 0

    async def main() -> None:
        idempotency = Idempotency(watched.url)
        await idempotency.once_async(tenant="t", key=key, run=pay, mode="atomic")
        await idempotency.aclose()

    asyncio.run(main())
    assert watched.effects(key) == 1


def test_a_commit_past_asyncpgs_face_is_found_at_once(watched: Watched) -> None:
    key = new_key()

    async def pay() -> None:
        connection = current_operation().connection
        await connection.execute(INSERT.format(key))
        await connection._protocol.query("commit", 5)
        with pytest.raises(OperationOver):
            await connection.execute(INSERT.format(key))

    async def main() -> None:
        idempotency = Idempotency(watched.url)
        with pytest.raises(EscapedTransaction):
            await idempotency.once_async(tenant="t", key=key, run=pay, mode="atomic")
        with pytest.raises(OutcomeUnknown):
            await idempotency.once_async(tenant="t", key=key, run=pay, mode="atomic")
        await idempotency.aclose()

    asyncio.run(main())
    assert watched.effects(key) == 1


LOG_IN = (
    "create or replace function log_in(who text) returns void language plpgsql as $$ begin "
    "perform set_config('role', who, true); end $$"
)


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize(
    "text",
    [
        "set role {}",
        "set local role {}",
        "set session authorization {}",
        "select set_config('role', '{}', true)",
        "select log_in('{}')",
        "select (log_in ('{}'))",
    ],
)
def test_a_handler_may_take_a_role_that_knows_nothing_of_samekeys_tables(
    watched: Watched, idempotency: Idempotency, style: str, text: str
) -> None:
    """As row-level security has it."""
    key, role = new_key(), f"weak_{new_key().replace('-', '_')}"[:40]
    with psycopg.connect(watched.url, autocommit=True) as other:
        other.execute(f"create role {role}")
        other.execute(f"grant all on lent_effects to {role}")
        other.execute(LOG_IN)

    def pay() -> None:
        connection = current_operation().connection
        connection.execute(text.format(role))
        connection.execute(INSERT.format(key))

    async def pay_async() -> None:
        connection = current_operation().connection
        await connection.execute(text.format(role))
        await connection.execute(INSERT.format(key))

    async def main() -> None:
        made = Idempotency(watched.url)
        await made.once_async(tenant="t", key=key, run=pay_async, mode="atomic")
        await made.aclose()

    if style == "async":
        asyncio.run(main())
    else:
        idempotency.once(tenant="t", key=key, run=pay, mode="atomic")
    assert watched.effects(key) == 1
    with psycopg.connect(watched.url, autocommit=True) as other:
        other.execute(f"drop owned by {role}")
        other.execute(f"drop role {role}")
