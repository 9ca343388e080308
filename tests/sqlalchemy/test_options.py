"""Sessions that are bound to ``engine.execution_options(…)``: in an operation they count, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text

from samekey.errors import ConfigurationError
from samekey.sqlalchemy import Session
from tests.sqlalchemy.stacks import Note, Stack, write

POSTGRES = pytest.mark.parametrize("make", ["async-postgres"], indirect=True)


def _bound(stack: Stack, **options: Any) -> None:
    stack.sessions.configure(bind=stack.given.execution_options(**options))


@pytest.mark.parametrize("make", ["async-postgres", "sync-postgres"], indirect=True)
def test_a_tenants_schema_is_written_to_and_read_from_in_an_operation(stack: Stack) -> None:
    with stack.plain.begin() as connection:
        connection.execute(text("drop schema if exists ann cascade"))
        connection.execute(text("create schema ann"))
        connection.execute(text("create table ann.notes (like public.notes including all)"))
    _bound(stack, schema_translate_map={None: "ann"})

    def act(session: Session) -> list[str]:
        write("tea")(session)
        return list(session.scalars(select(Note.text)))

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == ["tea"]
    with stack.plain.connect() as connection:
        assert list(connection.scalars(text("select text from ann.notes"))) == ["tea"]
    assert stack.rows() == []


@POSTGRES
@pytest.mark.parametrize("option", [{"isolation_level": "SERIALIZABLE"}, {"postgresql_readonly": True}])
def test_an_option_that_the_transaction_cannot_have_is_refused(stack: Stack, option: dict[str, Any]) -> None:
    _bound(stack, **option)

    refused = []

    def act(session: Session) -> None:
        session.add(Note(text="tea"))
        try:
            session.flush()
        except ConfigurationError as error:
            refused.append(str(error))
            raise

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert "samekey's to say" in refused[0]
    assert stack.rows() == []


def test_one_session_with_two_sets_of_options_is_refused(stack: Stack) -> None:
    """A flush has its connection for one table while it asks for that of the next."""
    other = stack.engine.execution_options(schema_translate_map={"shop": None})

    def act(session: Session) -> str:
        write("tea")(session)
        with pytest.raises(ConfigurationError, match="Use a session for each"):
            session.scalars(select(Note), bind_arguments={"bind": other})
        return "refused"

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "refused"
    assert stack.rows() == ["tea"]
