"""A handler that raises: its transaction is over before anybody answers the error.

Dependencies, error handlers and middleware write what they write without an operation too: a failed attempt,
a mark on the account that the handler has locked.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, text, update
from sqlalchemy.engine import Connection

from samekey.sqlalchemy import Session
from tests.sqlalchemy.stacks import Declined, Note, Stack
from tests.sqlalchemy.test_ends import EVERY

PATIENCE = {
    "postgresql": "set local lock_timeout = '3s'",
    "mysql": "set innodb_lock_wait_timeout = 3",
    "sqlite": "pragma busy_timeout = 3000",
}


def _decline(session: Session) -> None:
    session.add(Note(text="order"))
    session.execute(update(Note).where(Note.text == "account").values(about=None))
    session.commit()
    raise Declined


def _with_an_account(stack: Stack) -> None:
    with stack.plain.begin() as connection:
        connection.execute(insert(Note).values(text="account"))


@EVERY
def test_who_answers_its_error_may_write_what_it_had_locked(stack: Stack) -> None:
    _with_an_account(stack)

    def mark(connection: Connection) -> None:
        connection.execute(text(PATIENCE[connection.dialect.name]))
        connection.execute(update(Note).where(Note.text == "account").values(text="account, declined"))

    def on_decline(_: Session) -> None:
        with stack.plain.begin() as connection:
            mark(connection)

    stack.act, stack.on_decline = _decline, on_decline
    with stack.served() as post:
        assert post().status == 402
    assert stack.rows() == ["account, declined"]


def _after_a_rollback(session: Session) -> None:
    session.rollback()
    session.add(Note(text="attempt"))
    session.commit()


def _straight_on(session: Session) -> None:
    session.add(Note(text="attempt"))
    session.commit()


@EVERY
@pytest.mark.parametrize("act", [_after_a_rollback, _straight_on])
def test_what_its_own_session_writes_then_stands(stack: Stack, act: Any) -> None:
    """And nothing of what the handler had given to it."""
    _with_an_account(stack)
    stack.act, stack.on_decline = _decline, act
    with stack.served() as post:
        assert post().status == 402
        assert stack.rows() == ["account", "attempt"]
        stack.on_decline = None
        stack.act = lambda session: session.add(Note(text="order"))
        assert (post().status, post().replayed) == (201, True)
    assert stack.rows() == ["account", "attempt", "order"]


def _lost(session: Session) -> None:
    session.add(Note(text="order"))
    session.flush()
    session.add(Note(text="order"))
    try:
        session.flush()
    except Exception as error:
        raise Declined from error


@EVERY
def test_also_where_a_statement_had_failed(stack: Stack) -> None:
    stack.act, stack.on_decline = _lost, _after_a_rollback
    with stack.served() as post:
        assert post().status == 402
    assert stack.rows() == ["attempt"]
