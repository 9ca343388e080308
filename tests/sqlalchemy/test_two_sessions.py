"""Several sessions in one operation: none undoes what another was told that it stands."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from samekey.errors import FailedTransaction
from samekey.sqlalchemy import Session
from tests.sqlalchemy.stacks import Note, Stack, write


def another(stack: Stack) -> Session:
    made = stack.sessions()
    found: Session = getattr(made, "sync_session", made)
    return found


def test_two_sessions_of_one_operation_see_each_other_and_fall_together(stack: Stack) -> None:
    def act(session: Session) -> list[str]:
        write("one")(session)
        with another(stack) as second:
            write("two")(second)
            found = list(second.scalars(select(Note.text).order_by(Note.id)))
        write("three")(session)
        return found

    def act_and_fail(session: Session) -> None:
        act(session)
        raise ValueError("everything goes")

    stack.act = act_and_fail
    with stack.served() as post:
        assert post().status == 500
        assert stack.rows() == []
        stack.act = act
        assert post().body["made"] == ["one", "two"]
    assert stack.rows() == ["one", "two", "three"]


def test_sessions_may_end_in_any_order(stack: Stack) -> None:
    def act(session: Session) -> None:
        second = another(stack)
        write("one", commit=False)(session)
        session.flush()
        write("two", commit=False)(second)
        second.flush()
        session.commit()
        write("three", commit=False)(second)
        second.commit()
        write("four")(session)
        second.close()

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["one", "two", "three", "four"]


def test_the_inner_session_is_rolled_back_alone(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("one", commit=False)(session)
        session.flush()
        with another(stack) as second:
            write("two", commit=False)(second)
            second.flush()
            second.rollback()
        session.commit()

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["one"]


def test_a_session_that_has_only_read_may_end_around_one_that_wrote(stack: Stack) -> None:
    def act(session: Session) -> None:
        session.scalars(select(Note)).all()
        with another(stack) as second:
            write("two")(second)
        session.close()

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["two"]


def test_a_rollback_that_would_undo_another_sessions_commit_is_refused_for_good(stack: Stack) -> None:
    def act(session: Session) -> str:
        write("one", commit=False)(session)
        session.flush()
        with another(stack) as second:
            write("two")(second)
        with pytest.raises(FailedTransaction, match="its savepoint lies around their work"):
            session.rollback()
        return "as if nothing had been"

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


@pytest.mark.parametrize("commits", [False, True])
def test_what_one_session_wrote_stays_when_another_that_has_only_read_is_closed(
    stack: Stack, commits: bool
) -> None:
    """It was written while the other's savepoint was the innermost one."""

    def act(session: Session) -> None:
        session.scalars(select(Note)).all()
        with another(stack) as second:
            second.scalars(select(Note)).all()
            write("one", commit=commits)(session)
            session.flush()
        session.commit()

    stack.act = act
    with stack.served() as post:
        assert (post().status, post().replayed) == (201, True)
    assert stack.rows() == ["one"]


def test_a_session_that_wrote_is_not_undone_around_what_an_older_one_wrote_after_it(stack: Stack) -> None:
    def act(session: Session) -> None:
        session.scalars(select(Note)).all()
        second = another(stack)
        write("two", commit=False)(second)
        second.flush()
        write("one")(session)
        with pytest.raises(FailedTransaction, match="its savepoint lies around their work"):
            second.close()

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def test_what_was_undone_is_in_nobodys_way(stack: Stack) -> None:
    """Only what still stands is protected: an inner session that was rolled back has nothing there."""

    def act(session: Session) -> None:
        write("one", commit=False)(session)
        session.flush()
        with another(stack) as second:
            write("two", commit=False)(second)
            second.flush()
            session.scalars(select(Note)).all()  # a read is no write, wherever it lies
        session.rollback()
        write("three")(session)

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["three"]


def test_a_nested_block_that_has_only_read_takes_nothing_of_anothers_back(stack: Stack) -> None:
    def act(session: Session) -> None:
        second = another(stack)
        with session.begin_nested() as nested:
            session.scalars(select(Note)).all()
            write("two")(second)
            nested.rollback()
        write("one")(session)

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["two", "one"]


def test_a_question_that_failed_is_undone_by_the_sessions_rollback(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("one")(session)
        with pytest.raises(DBAPIError):
            session.scalar(select(func.no_such_function()))
        session.rollback()
        write("two")(session)

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["one", "two"]
