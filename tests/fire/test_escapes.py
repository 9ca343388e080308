"""Each way out of the atomic transaction, and the clear error at its end.

An escape that can be refused is refused while it is tried. One that can only be seen afterwards leaves an
outcome that nobody can tell, and the operation is never run again by itself.
"""

from __future__ import annotations

import sqlite3
from typing import Any, get_args

import psycopg
import pytest

from samekey import SamekeyError
from samekey.errors import CommitRefused, EscapedTransaction, NothingWritten
from tests.chosen import whole
from tests.fire.apps import Settings, World, settled
from tests.fire.checkpoints import current_key
from tests.fire.evidence import query
from tests.fire.scene import Raised, Scene, Work, scene

pytestmark = whole


worlds = pytest.mark.parametrize("world", get_args(World))
# ------------------------------------------------------------------ own connection


async def write_elsewhere(at: Scene) -> None:
    query(at.settings.url, "insert into effects (key) values (?)", [current_key.get()])


@worlds
def test_work_on_another_connection_is_warned_about(settings: Settings) -> None:
    with scene(settings, write_elsewhere) as at:
        with pytest.warns(RuntimeWarning, match="wrote nothing on current_operation"):
            got = at.send()
        assert got.is_new
        assert at.send().repeats(got)
        assert (at.evidence.runs("k"), at.evidence.effects("k")) == (1, 1)


@worlds
def test_work_on_another_connection_is_an_error_in_strict_mode(settings: Settings, raised: Raised) -> None:
    with scene(settings, write_elsewhere, strict=True) as at:
        got = at.send()
        assert got.status == 500
        error = raised(got)
        assert isinstance(error, NothingWritten)
        assert "another connection does not commit with the answer" in str(error)
        assert at.evidence.state("k") is None


# ------------------------------------------------------------------ own end of the transaction

ENDS = {
    "commit": ["COMMIT"],
    "commit-and-begin": ["COMMIT", "BEGIN"],
    "commit-and-chain": ["COMMIT AND CHAIN"],
    "commit-and-write-on": ["COMMIT", "INSERT INTO effects (key) VALUES ('more')"],
    "rollback": ["ROLLBACK"],
    "rollback-and-begin": ["ROLLBACK", "BEGIN"],
}


@worlds
@pytest.mark.parametrize("fails", [False, True], ids=["then answers", "then raises"])
@pytest.mark.parametrize("statements", ENDS.values(), ids=ENDS)
def test_a_transaction_that_the_handler_ended_itself(
    postgres: Settings, statements: list[str], fails: bool, raised: Raised
) -> None:
    """Past the face that it was lent: what cannot be refused is found out."""

    async def escape(at: Scene) -> None:
        connection = _behind(await at.insert())
        for sql in statements:
            await settled(connection.execute(sql))
        if fails:
            raise RuntimeError("after the escape")

    with scene(postgres, escape) as at:
        got = at.send()
        assert (got.status, got.code) == (409, "outcome_unknown")
        error = raised(got)
        assert isinstance(error, EscapedTransaction)
        assert "Leave the end of the transaction to samekey" in str(error)
        assert at.evidence.state("k") == "unknown"
        assert at.evidence.effects("k") == int(statements[0].startswith("COMMIT"))
        for _ in range(2):
            assert at.send().code == "outcome_unknown"
        assert at.evidence.runs("k") == 1


def _behind(connection: Any) -> Any:
    """The driver's own connection behind the face of it that a handler is lent."""
    return getattr(connection, "_samekey_real" if isinstance(connection, psycopg.Connection) else "_target")


@worlds
@pytest.mark.parametrize("statements", ENDS.values(), ids=ENDS)
def test_postgresql_refuses_a_text_that_ends_our_transaction(
    postgres: Settings, statements: list[str], raised: Raised
) -> None:
    async def escape(at: Scene) -> None:
        connection = await at.insert()
        for sql in statements:
            await settled(connection.execute(sql))

    assert_refused(postgres, escape, raised, CommitRefused, "samekey commits this transaction")


@pytest.mark.parametrize("world", ["wsgi"])
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_psycopg_refuses_to_end_our_transaction(postgres: Settings, end: str, raised: Raised) -> None:
    async def escape(at: Scene) -> None:
        getattr(await at.insert(), end)()

    assert_refused(postgres, escape, raised, CommitRefused, "samekey commits this transaction")


@pytest.mark.parametrize("world", ["asgi"])
@pytest.mark.parametrize("end", ["close", "terminate", "reset"])
def test_asyncpg_refuses_to_end_our_transaction(postgres: Settings, end: str, raised: Raised) -> None:
    async def escape(at: Scene) -> None:
        await settled(getattr(await at.insert(), end)())

    assert_refused(postgres, escape, raised, CommitRefused, "samekey commits this transaction")


def assert_refused(
    settings: Settings, escape: Work, raised: Raised, kind: type[Exception], sentence: str
) -> None:
    """The attempt itself fails; everything is rolled back, and a retry may run."""
    attempts = []

    async def first_escape(at: Scene) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            await escape(at)
        else:
            await at.insert()

    with scene(settings, first_escape) as at:
        got = at.send()
        assert got.status == 500
        error = raised(got)
        assert isinstance(error, kind), repr(error)
        assert sentence in str(error)
        assert at.evidence.effects("k") == 0
        retried = at.send()
        assert retried.is_new
        assert at.evidence.effects("k") == 1
        assert at.send().repeats(retried)


async def _commit(connection: Any) -> None:
    await settled(connection.commit())


async def _rollback(connection: Any) -> None:
    await settled(connection.rollback())


async def _commit_by_text(connection: Any) -> None:
    await settled(connection.execute("  Commit; "))


async def _end_by_text(connection: Any) -> None:
    await settled(connection.execute("end transaction"))


async def _rollback_by_text(connection: Any) -> None:
    await settled(connection.execute("ROLLBACK"))


async def _commit_by_cursor(connection: Any) -> None:
    connection.cursor().execute("commit")


async def _commit_by_script(connection: Any) -> None:
    connection.executescript("insert into effects (key) values ('script')")  # it commits first


async def _commit_by_block(connection: Any) -> None:
    with connection:
        pass


SQLITE_ENDS = {
    "asgi": [_commit, _rollback, _commit_by_text, _end_by_text, _rollback_by_text],
    "wsgi": [
        *(_commit, _rollback, _commit_by_text, _end_by_text, _rollback_by_text),
        *(_commit_by_cursor, _commit_by_script, _commit_by_block),
    ],
}


@pytest.mark.parametrize(
    ("world", "end"),
    [
        pytest.param(world, end, id=f"{world}{end.__name__}")
        for world, ends in SQLITE_ENDS.items()
        for end in ends
    ],
)
def test_sqlite_refuses_to_end_our_transaction(sqlite: Settings, end: Work, raised: Raised) -> None:
    async def escape(at: Scene) -> None:
        await end(await at.insert())

    assert_refused(sqlite, escape, raised, CommitRefused, "samekey commits this transaction")


@worlds
def test_savepoints_are_the_handlers_own_business(settings: Settings) -> None:
    async def nest(at: Scene) -> None:
        connection = await at.insert()
        await settled(connection.execute("SAVEPOINT mine"))
        await at.insert()
        await settled(connection.execute("ROLLBACK TO SAVEPOINT mine"))
        await settled(connection.execute("RELEASE SAVEPOINT mine"))

    with scene(settings, nest) as at:
        assert at.send().is_new
        assert at.evidence.effects("k") == 1


@worlds
def test_a_refused_commit_does_no_harm_if_the_handler_goes_on(sqlite: Settings) -> None:
    async def carry_on(at: Scene) -> None:
        connection = await at.insert()
        with pytest.raises((SamekeyError, sqlite3.Error)):
            await settled(connection.execute("commit"))

    with scene(sqlite, carry_on) as at:
        assert at.send().is_new
        assert (at.evidence.effects("k"), at.evidence.state("k")) == (1, "completed")
