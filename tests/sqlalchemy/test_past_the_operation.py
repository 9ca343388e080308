"""What goes past the operation's transaction inside of a handler: what reads is let through, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import MetaData, String, Table, create_engine, insert, orm, select, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import Column, CreateTable
from sqlalchemy.sql.expression import func

from samekey.errors import ConfigurationError
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Note, Stack, write

WRITES: dict[str, Any] = {
    "commented": "/* app */ insert into notes (text) values ('outside')",
    "dashed": "-- app\ninsert into notes (text) values ('outside')",
    "cte": "with one as (insert into notes (text) values ('outside') returning id) select id from one",
    "into": "select id into elsewhere from notes",
    "call": "call outside()",
    "copy": "copy notes (text) from '/nothing'",
    "function": select(func.writes_outside()),
    "text_function": "select writes_outside()",
    "created": CreateTable(Table("elsewhere", MetaData(), Column("text", String(9)))),
    "dropped": "drop table notes",
    "truncated": "truncate notes",
    "explained": "explain analyze insert into notes (text) values ('outside')",
    "locked": "select id from notes for update",
    "two": "select 1; insert into notes (text) values ('outside')",
}
"""However a write is spelled. Those that a database does not know are refused before it is asked."""

READS: dict[str, Any] = {
    "select": select(Note.text),
    "counted": select(func.count()).select_from(Note),
    "text": "/* app */ select text from notes where text <> 'insert into notes'",
    "cte": "with one as (select 1 as n) select n from one",
}


def test_a_write_past_the_operation_is_refused_however_it_is_spelled(stack: Stack) -> None:
    let_through: list[str] = []

    def send(name: str, sender: Callable[[Any], Any], statement: Any) -> None:
        try:
            sender(statement)
            let_through.append(name)
        except ConfigurationError as error:
            let_through.extend([] if "past its transaction" in str(error) else [str(error)])

    def act(session: Session) -> str:
        write("tea")(session)
        for name, said in WRITES.items():
            with stack.engine.connect() as plain:
                send(name, plain.execute, text(said) if isinstance(said, str) else said)
                if isinstance(said, str):
                    send(name, plain.exec_driver_sql, said)
                plain.commit()
        return "went on"

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "went on"
    assert (let_through, stack.rows()) == ([], ["tea"])


def test_what_reads_past_the_operation_is_let_through(stack: Stack) -> None:
    def act(session: Session) -> str:
        with stack.engine.connect() as plain, plain.begin(), plain.begin_nested():
            for statement in READS.values():
                plain.execute(text(statement) if isinstance(statement, str) else statement).all()
        with orm.Session(stack.engine) as ordinary, ordinary.begin(), ordinary.begin_nested():
            assert list(ordinary.scalars(select(Note))) == []
        return str(write("tea")(session)[0])

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "tea"


def test_a_bare_connection_of_the_engines_pool_is_refused(stack: Stack) -> None:
    """Nobody could see what is sent over it."""

    def act(session: Session) -> str:
        with pytest.raises(ConfigurationError, match="bare connection"):
            stack.engine.raw_connection()
        with pytest.raises(ConfigurationError, match="bare connection"):
            stack.engine.pool.connect()
        return str(write("tea")(session)[0])

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == "tea"
    connection = stack.plain.raw_connection()  # elsewhere it is anybody's
    connection.close()


# ------------------------------------------------------------------ several databases


class Elsewhere(DeclarativeBase):
    pass


class Price(Elsewhere):
    """In another database."""

    __tablename__ = "prices"

    sku: Mapped[str] = mapped_column(String(20), primary_key=True)
    cents: Mapped[int]


@pytest.fixture
def other(tmp_path: Any) -> Engine:
    made = create_engine(f"sqlite:///{tmp_path / 'prices.db'}", poolclass=NullPool)
    Elsewhere.metadata.create_all(made)
    with made.begin() as connection:
        connection.execute(insert(Price).values(sku="tea", cents=300))
    return made


def bound(make: Callable[..., Stack], other: Engine) -> Stack:
    """One session for two databases, as Flask-SQLAlchemy's ``__bind_key__`` makes it."""
    stack = make()
    there: Any = other
    if stack.is_async:
        there = create_async_engine(f"sqlite+aiosqlite:///{other.url.database}", poolclass=NullPool)
    stack.sessions.configure(binds={Elsewhere: there})
    return stack


def test_a_session_of_two_databases_reads_from_the_other_one(
    make: Callable[..., Stack], other: Engine
) -> None:
    def act(session: Session) -> list[Any]:
        price = session.get_one(Price, "tea")
        write("tea")(session)
        session.refresh(price)
        return [price.cents, session.scalar(select(func.count()).select_from(Price))]

    def failing(session: Session) -> None:
        assert session.get_one(Price, "tea").cents == 300
        write("milk")(session)
        raise ValueError("after the commit")

    stack = bound(make, other)
    stack.before = lambda session: session.get_one(Price, "tea")
    stack.act, stack.after = act, lambda session: session.commit()
    with stack.served() as post:
        first, again = post(), post()
        assert (first.body["made"], again.body, again.replayed) == ([300, 1], first.body, True)
        stack.act = failing
        assert post("another").status == 500
    assert (stack.rows(), stack.after_error) == (["tea"], None)


def dearer(session: Session) -> None:
    session.get_one(Price, "tea").cents = 400


def dearer_at_once(session: Session) -> None:
    dearer(session)
    session.commit()


OTHERS_WRITES: dict[str, Callable[[Session], Any]] = {
    "changed": dearer,
    "committed": dearer_at_once,
    "inserted": lambda session: session.execute(insert(Price).values(sku="milk", cents=1)),
    "text": lambda session: session.execute(
        text("insert into prices values ('milk', 1)"), bind_arguments={"mapper": Price}
    ),
    "connection": lambda session: session.connection(bind_arguments={"mapper": Price}),
}


def test_a_session_of_two_databases_writes_nothing_to_the_other_one(
    make: Callable[..., Stack], other: Engine
) -> None:
    """It would stand although the operation fails."""
    seen: dict[str, BaseException] = {}
    stack = bound(make, other)

    def acting(name: str) -> Callable[[Session], None]:
        def act(session: Session) -> None:
            write("tea")(session)
            try:
                OTHERS_WRITES[name](session)
                session.flush()
            except BaseException as error:
                seen[name] = error
                raise

        return act

    with stack.served() as post:
        for name in OTHERS_WRITES:
            stack.act = acting(name)
            assert post(name).status == 500
    assert {type(error) for error in seen.values()} == {ConfigurationError}
    assert all("another engine than the one" in str(error) for error in seen.values())
    with other.connect() as connection:
        assert [tuple(row) for row in connection.execute(select(Price.sku, Price.cents))] == [("tea", 300)]
    assert stack.rows() == []


# ------------------------------------------------------------------ a connection in the place of an engine


@pytest.mark.parametrize("make", ["sync-sqlite", pytest.param("sync-postgres", marks=whole)], indirect=True)
def test_a_session_that_is_bound_to_a_connection_is_told_what_to_do_in_tests(stack: Stack) -> None:
    """SQLAlchemy's recipe for test suites: the transaction of that connection is rolled back after a test."""
    connection: Connection = stack.plain.connect()
    with connection.begin():
        stack.sessions.configure(bind=connection, join_transaction_mode="create_savepoint")
        seen: list[BaseException] = []

        def act(session: Session) -> None:
            try:
                write("tea")(session)
            except ConfigurationError as error:
                seen.append(error)
                raise

        stack.act = act
        with stack.served() as post:
            assert post().status == 500
        assert "bound to a Connection" in str(seen[0])
        assert "empty the tables after each test" in str(seen[0])
    connection.close()
    assert stack.rows() == []
