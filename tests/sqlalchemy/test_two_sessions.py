"""Several sessions in one operation: none undoes what another was told that it stands."""

from __future__ import annotations

import pytest
from sqlalchemy import select

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
        with pytest.raises(FailedTransaction, match="rolled back after another session"):
            session.rollback()
        return "as if nothing had been"

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []
