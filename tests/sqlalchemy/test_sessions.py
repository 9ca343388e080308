"""A user's own session in an operation: what it commits stands with the answer, or falls with it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import event, insert, orm, select, text
from sqlalchemy.exc import IntegrityError

from samekey import current_operation
from samekey.errors import ConfigurationError, OperationOver
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Note, Stack, write


def test_what_a_service_commits_stands_with_the_answer(stack: Stack) -> None:
    with stack.served() as post:
        first, again = post(), post()
    assert (first.status, first.replayed, again.replayed) == (201, False, True)
    assert first.body == again.body == {"run": 1, "made": ["tea"]}
    assert stack.rows() == ["tea"]


def test_what_a_service_committed_vanishes_with_a_failure(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("tea")(session)
        raise ValueError("after the commit")

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
        assert stack.rows() == []
        stack.act = write("tea")
        retried = post()
    assert (retried.status, retried.body["run"], stack.rows()) == (201, 2, ["tea"])


def test_what_a_service_committed_vanishes_with_a_refusal_that_is_remembered(stack: Stack) -> None:
    def act(session: Session) -> tuple[int, dict[str, str]]:
        write("tea")(session)
        return 409, {"detail": "sold out"}

    stack.act = act
    with stack.served() as post:
        first, again = post(), post()
    assert (first.status, again.status, again.replayed, stack.rows()) == (409, 409, True, [])


def test_a_rollback_undoes_what_came_after_the_last_commit_and_no_more(stack: Stack) -> None:
    def act(session: Session) -> list[str]:
        write("kept")(session)
        write("undone", commit=False)(session)
        session.flush()
        session.rollback()
        write("kept too")(session)
        return list(session.scalars(select(Note.text).order_by(Note.id)))

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == ["kept", "kept too"]
    assert stack.rows() == ["kept", "kept too"]


def test_what_nobody_committed_is_committed_with_the_answer(stack: Stack) -> None:
    """Many applications commit in their dependency, after the handler: by then it stands already."""
    stack.act = write("tea", commit=False)
    stack.after = lambda session: session.commit()
    with stack.served() as post:
        assert post().status == 201
    assert (stack.rows(), stack.after_error) == (["tea"], None)


def test_what_a_closed_session_had_not_committed_is_not_kept(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("kept")(session)
        write("forgotten", commit=False)(session)
        session.flush()
        session.close()

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["kept"]


def test_a_session_that_was_closed_can_be_used_again_in_the_operation(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("one")(session)
        session.close()
        write("two")(session)
        raise ValueError("everything goes")

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def test_a_statement_that_fails_is_undone_by_the_sessions_rollback(stack: Stack) -> None:
    def act(session: Session) -> str:
        write("tea")(session)
        try:
            write("tea")(session)
        except IntegrityError:
            session.rollback()
        write("milk")(session)
        return "went on"

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "went on"
    assert stack.rows() == ["tea", "milk"]


def test_a_failure_that_was_swallowed_keeps_nothing(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("tea")(session)
        try:
            write("tea")(session)
        except IntegrityError:
            pass

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def test_begin_nested_is_a_savepoint_in_the_sessions_own(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("one", commit=False)(session)
        with session.begin_nested():
            write("two", commit=False)(session)
        with suppress(ZeroDivisionError), session.begin_nested():
            write("three", commit=False)(session)
            session.flush()
            raise ZeroDivisionError
        session.commit()

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["one", "two"]


def test_a_begin_block_commits_into_the_operation(stack: Stack) -> None:
    def act(session: Session) -> None:
        with session.begin():
            write("one", commit=False)(session)
        with suppress(ZeroDivisionError), session.begin():
            write("two", commit=False)(session)
            raise ZeroDivisionError

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["one"]


def test_new_code_asks_the_operation_for_its_session(stack: Stack) -> None:
    def act(_: Session) -> None:
        session = current_operation().session
        assert session is current_operation().session
        getattr(session, "sync_session", session).add(Note(text="tea"))

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["tea"]


def test_text_that_would_end_the_transaction_is_refused(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("tea")(session)
        session.execute(text("commit"))

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def test_a_session_is_refused_after_its_operation(stack: Stack) -> None:
    stack.after = write("later")
    with stack.served() as post:
        assert post().status == 201
    assert isinstance(stack.after_error, OperationOver)
    assert "an operation that is over" in str(stack.after_error)
    assert stack.rows() == ["tea"]


def test_a_session_is_refused_after_its_operation_was_rolled_back(stack: Stack) -> None:
    stack.act = lambda session: (409, write("tea")(session))
    stack.after = write("later")
    with stack.served() as post:
        assert post().status == 409
    assert isinstance(stack.after_error, OperationOver)
    assert stack.rows() == []


def test_a_session_that_was_closed_after_its_operation_is_an_ordinary_one(stack: Stack) -> None:
    def after(session: Session) -> None:
        session.close()
        write("later")(session)

    stack.after = after
    with stack.served() as post:
        assert post().status == 201
    assert (stack.after_error, stack.rows()) == (None, ["tea", "later"])


def test_listeners_of_the_engine_have_run_on_the_operations_connection(stack: Stack) -> None:
    """Foreign keys are enforced on SQLite because a listener of the engine says so."""

    def act(session: Session) -> None:
        session.add(Note(text="tea", about=4711))
        session.commit()

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


@pytest.mark.parametrize("make", ["flask-sqlite"], indirect=True)
def test_a_session_that_is_closed_before_the_operation_ends_takes_nothing_back(stack: Stack) -> None:
    """Flask tears a request down before the answer leaves the application, and with it the session."""
    stack.act = write("tea", commit=False)
    stack.teardown = lambda session: session.close()
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["tea"]


@pytest.mark.parametrize("make", ["flask-sqlite"], indirect=True)
def test_after_its_handler_a_session_reads_and_writes_no_more(stack: Stack) -> None:
    def teardown(session: Session) -> None:
        assert [note.text for note in session.scalars(select(Note))] == ["tea"]
        with pytest.raises(OperationOver):
            write("later")(session)
        session.close()
        with pytest.raises(OperationOver, match="an operation that has not ended"):
            write("later")(session)

    stack.teardown = teardown
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["tea"]


def test_a_session_that_does_not_join_cannot_write_past_the_operation(stack: Stack) -> None:
    def act(session: Session) -> str:
        write("tea")(session)
        with orm.Session(stack.engine) as plain:
            assert plain.scalar(select(1)) == 1
            with pytest.raises(ConfigurationError, match="past its transaction"):
                plain.execute(insert(Note).values(text="outside"))
        return "went on"

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "went on"
    assert stack.rows() == ["tea"]


@pytest.mark.parametrize(
    "make",
    ["async-postgres", *(pytest.param(f"sync-{one}", marks=whole) for one in ("postgres", "mariadb"))],
    indirect=True,
)
def test_what_a_listener_sets_is_there_in_every_operation(stack: Stack) -> None:
    """Also on a connection that was reset after the operation before."""
    mariadb = stack.engine.dialect.name == "mysql"
    sets = "set @shop = 'notes'" if mariadb else "set shop.name = 'notes'"
    asks = "select @shop" if mariadb else "select current_setting('shop.name', true)"

    @event.listens_for(stack.engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(sets)
        cursor.close()

    def act(session: Session) -> Any:
        session.add(Note(text=f"tea {stack.runs}"))
        return session.scalar(text(asks))

    stack.act = act
    with stack.served() as post:
        assert [post(f"k{number}").body["made"] for number in range(3)] == ["notes"] * 3
