"""SQLModel's sessions, with ``exec``, in an operation: sync and async, on every database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker
from sqlmodel import Field, SQLModel, col, delete, select, update

from samekey.errors import ConfigurationError, OperationOver
from samekey.sqlmodel import AsyncSession, Session
from tests.sqlalchemy.stacks import Stack


class Letter(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    text: str = Field(max_length=60, unique=True)


@pytest.fixture
def stack(make: Callable[..., Stack]) -> Stack:
    """Each stack with the session classes of SQLModel's."""
    stack = make()
    if isinstance(stack.given, AsyncEngine):
        stack.sessions = async_sessionmaker(stack.given, class_=AsyncSession)
    else:
        stack.sessions = sessionmaker(stack.engine, class_=Session)
    table: Any = Letter.__table__  # type: ignore[attr-defined]
    table.drop(stack.plain, checkfirst=True)
    table.create(stack.plain)
    return stack


def letters(stack: Stack) -> list[str]:
    with Session(stack.plain) as session:
        return list(session.exec(select(Letter.text).order_by(col(Letter.id))).all())


def send(text: str) -> Callable[[Any], Any]:
    """A service, which commits as services do, and gives the model back."""

    def act(session: Session) -> dict[str, Any]:
        letter = Letter(text=text)
        session.add(letter)
        session.commit()
        session.refresh(letter)
        return letter.model_dump()

    return act


def test_a_service_that_commits_stands_with_the_answer(stack: Stack) -> None:
    stack.act = send("tea")
    with stack.served() as post:
        first, again = post(), post()
    assert (first.status, again.body, again.replayed) == (201, first.body, True)
    assert (first.body["made"]["text"], letters(stack)) == ("tea", ["tea"])


def test_what_was_executed_and_committed_vanishes_with_a_failure(stack: Stack) -> None:
    def act(session: Any) -> None:
        send("tea")(session)
        session.exec(update(Letter).where(col(Letter.text) == "tea").values(text="milk"))
        assert session.exec(select(Letter.text)).all() == ["milk"]
        session.exec(delete(Letter).where(col(Letter.text) == "old"))
        session.commit()
        raise ValueError("after the commit")

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
        assert letters(stack) == []
        stack.act = send("tea")
        assert post().status == 201
    assert letters(stack) == ["tea"]


def test_savepoints_and_rollbacks_are_the_sessions_own(stack: Stack) -> None:
    def act(session: Any) -> list[str]:
        send("kept")(session)
        with suppress(ZeroDivisionError), session.begin_nested():
            session.add(Letter(text="undone"))
            session.flush()
            raise ZeroDivisionError
        session.add(Letter(text="forgotten"))
        session.flush()
        session.rollback()
        return list(session.exec(select(Letter.text)).all())

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == ["kept"]
    assert letters(stack) == ["kept"]


def test_what_is_read_before_and_written_after_is_as_with_sqlalchemys(stack: Stack) -> None:
    """A dependency may read; after the operation nothing is written by its session."""
    stack.before = lambda session: session.exec(select(Letter)).all()  # type: ignore[attr-defined]
    stack.act, stack.after = send("tea"), send("later")
    with stack.served() as post:
        assert post().status == 201
    assert isinstance(stack.after_error, OperationOver)
    assert letters(stack) == ["tea"]


def test_a_session_of_sqlmodels_own_class_cannot_write_past_the_operation(stack: Stack) -> None:
    import sqlmodel

    def act(session: Any) -> str:
        with sqlmodel.Session(stack.engine) as plain:
            assert plain.exec(select(Letter)).all() == []
            with pytest.raises(ConfigurationError, match="past its transaction"):
                plain.exec(update(Letter).values(text="outside"))
        send("tea")(session)
        return "went on"

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "went on"
