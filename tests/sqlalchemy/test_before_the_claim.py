"""Sessions that were made, or used, before the operation began: they join it, or say why they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, insert, literal_column, select, text

from samekey.sqlalchemy import Session
from tests.sqlalchemy.stacks import Note, Stack, write


def test_a_session_that_has_read_before_the_claim_joins_the_operation(stack: Stack) -> None:
    def before(session: Session) -> None:
        session.info["found"] = session.scalars(select(Note)).all()

    def act(session: Session) -> None:
        write("tea")(session)
        raise ValueError("everything goes")

    stack.before, stack.act = before, act
    with stack.served() as post:
        assert post().status == 500
        assert stack.rows() == []
        stack.act = write("tea")
        assert post().status == 201
        assert stack.rows() == ["tea"]


def test_an_object_from_before_the_claim_is_changed_in_the_operation(stack: Stack) -> None:
    """The handler only sets an attribute; a dependency commits after the answer, when it stands already."""

    def before(session: Session) -> None:
        session.info["note"] = session.scalars(select(Note)).first()

    def change(session: Session) -> None:
        session.info["note"].text = "changed"

    def change_and_fail(session: Session) -> None:
        change(session)
        raise ValueError("everything goes")

    with stack.served() as post:
        assert post("first").status == 201
        stack.before, stack.act = before, change_and_fail
        assert post("second").status == 500
        assert stack.rows() == ["tea"]
        stack.act, stack.after = change, lambda session: session.commit()
        assert post("second").status == 201
    assert (stack.rows(), stack.after_error) == (["changed"], None)


def test_a_session_that_has_written_before_the_claim_is_refused(stack: Stack) -> None:
    def before(session: Session) -> None:
        write("early", commit=False)(session)
        session.flush()

    stack.before = before
    with stack.served() as post:
        assert post().status == 500
    assert (stack.runs, stack.rows()) == (0, [])


def test_a_session_that_may_have_written_before_the_claim_is_refused(stack: Stack) -> None:
    stack.before = lambda session: session.execute(text("delete from notes"))
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def test_a_session_that_has_committed_before_the_claim_joins_the_operation(stack: Stack) -> None:
    stack.before = write("early")
    stack.act = lambda session: (409, write("tea")(session))
    with stack.served() as post:
        assert post().status == 409
    assert stack.rows() == ["early"]


def test_what_was_added_and_not_sent_before_the_claim_is_part_of_the_operation(stack: Stack) -> None:
    stack.before = write("added", commit=False)
    stack.act = lambda session: (409, write("tea")(session))
    with stack.served() as post:
        assert post().status == 409
        assert stack.rows() == []
        stack.act = write("tea")
        assert post("another").status == 201
    assert stack.rows() == ["added", "tea"]


def test_a_transaction_block_around_the_handler_ends_with_the_operation(stack: Stack) -> None:
    """A dependency that yields inside ``session.begin()`` and has read in it."""

    def before(session: Session) -> None:
        session.info["block"] = block = session.begin()
        block.__enter__()
        session.scalars(select(Note)).all()

    def after(session: Session) -> None:
        session.info["block"].__exit__(None, None, None)

    stack.before, stack.after = before, after
    stack.act = write("tea", commit=False)
    with stack.served() as post:
        assert post().status == 201
    assert (stack.after_error, stack.rows()) == (None, ["tea"])


def test_a_pool_is_not_held_by_sessions_that_wait_for_their_operation(stack: Stack) -> None:
    """Each session that has read held a connection of the engine's pool: of two, for six requests."""
    stack.before = lambda session: session.scalars(select(Note)).all()
    with stack.served() as post:
        for number in range(6):
            stack.act = write(f"tea {number}")
            assert post(f"k{number}").status == 201
        assert stack.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert len(stack.rows()) == 6


KEEPS: dict[str, Any] = {
    "for update": select(Note).with_for_update(),
    "for share in a text": text("select * from notes for share"),
    "a lock": select(func.pg_advisory_xact_lock(7)),
    "a lock in a text": text("select pg_advisory_xact_lock(7)"),
    "a lock in a literal": select(literal_column("pg_advisory_xact_lock(7)")),
    "a setting": select(func.set_config("app.tenant", "ann", True)),
    "a row": select(insert(Note).values(text="early").returning(Note.id).cte()),
}
READS: dict[str, Any] = {
    "an aggregate": select(func.count(), func.lower(Note.text)).group_by(Note.text),
    "a text with with": text(
        "with x as (select 1 as one) select one, count(*) from x where one in (1) group by one"
    ),
    "a text as objects": select(Note).from_statement(text("select id, text, about from notes")),
    "a function": func.now(),
}


@pytest.mark.parametrize("make", ["async-postgres"], indirect=True)
@pytest.mark.parametrize("what", KEEPS)
def test_a_session_that_holds_more_than_what_it_has_read_is_refused(stack: Stack, what: str) -> None:
    """Its lock would be let go where it joins, and the handler would go on as if it had it."""
    stack.before = lambda session: session.execute(KEEPS[what]).all()
    with stack.served() as post:
        assert post().status == 500
    assert (stack.runs, stack.rows()) == (0, [])


@pytest.mark.parametrize("make", ["async-postgres"], indirect=True)
@pytest.mark.parametrize("what", READS)
def test_what_only_reads_before_the_claim_is_no_hindrance(stack: Stack, what: str) -> None:
    def before(session: Session) -> None:
        assert session.get_bind().dialect.name == "postgresql"
        session.execute(READS[what]).all()

    stack.before = before
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["tea"]


def test_a_connection_that_was_taken_before_the_claim_may_have_written(stack: Stack) -> None:
    stack.before = lambda session: session.connection().execute(text("delete from notes"))
    with stack.served() as post:
        assert post().status == 500
    assert stack.runs == 0
