"""Jobs, and what is sent through the operation's own connection, while a session is open: it stands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import FailedTransaction
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Note, Stack, write

_MORE = ("sync-postgres", "async-sqlite", "async-mariadb", "sync-mariadb")
pytestmark = pytest.mark.parametrize(
    "make",
    ["async-postgres", "sync-sqlite", *(pytest.param(one, marks=whole) for one in _MORE)],
    indirect=True,
)


@contextmanager
def deferred(stack: Stack, act: Callable[[], None]) -> Iterator[Callable[[], Any]]:
    """Around a handler that does this and answers 202. In async stacks its waits are awaited."""

    async def job_async(context: Any, payload: Any) -> None: ...

    def job(context: Any, payload: Any) -> None: ...

    for name in ("charge", "mail"):
        stack.idempotency.job(name)(job_async if stack.is_async else job)

    async def handler_async(_: Any) -> JSONResponse:
        await stack.sessions().run_sync(lambda _: act())
        return JSONResponse({}, 202)

    def handler(_: Any) -> JSONResponse:
        act()
        return JSONResponse({}, 202)

    guarded = stack.idempotency.deferred(handler_async if stack.is_async else handler)
    app = Starlette(routes=[Route("/", guarded, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=stack.idempotency, tenant=lambda _: stack.tenant)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield lambda: client.post("/", headers={"Idempotency-Key": "k"})
        if isinstance(stack.given, AsyncEngine):
            assert client.portal is not None
            client.portal.call(stack.idempotency.aclose)
            client.portal.call(stack.given.dispose)
        else:
            stack.idempotency.close()
            stack.engine.dispose()


def new_session(stack: Stack) -> Session:
    made = stack.sessions()
    found: Session = getattr(made, "sync_session", made)
    return found


def wait(found: Any) -> None:
    if inspect.isawaitable(found):
        await_only(found)


def enqueue(name: str, payload: Any = None) -> None:
    wait(current_operation().enqueue(name, payload))


def send(sql: str) -> None:
    wait(current_operation().connection.execute(sql))


def enqueued(stack: Stack) -> list[str]:
    jobs = "samekey.jobs" if stack.engine.dialect.name == "postgresql" else "samekey_jobs"
    with stack.plain.connect() as connection:
        found = connection.scalars(text(f"select name from {jobs}"))
        return sorted(one.decode() if isinstance(one, bytes) else one for one in found)


def forget_jobs(stack: Stack) -> None:
    jobs = "samekey.jobs" if stack.engine.dialect.name == "postgresql" else "samekey_jobs"
    with stack.plain.begin() as connection:
        connection.execute(text(f"delete from {jobs}"))


def test_a_job_that_is_enqueued_after_the_sessions_commit_outlives_the_session(stack: Stack) -> None:
    """The order's id is loaded once more after the commit: the session has a savepoint when the job comes."""
    forget_jobs(stack)

    def act() -> None:
        with new_session(stack) as session:
            order = Note(text="order")
            session.add(order)
            session.commit()
            enqueue("charge", {"order": order.id})
            session.refresh(order)
            enqueue("mail", {"order": order.id})

    with deferred(stack, act) as post:
        first, again = post(), post()
    assert (first.status_code, again.status_code) == (202, 202)
    assert (stack.rows(), enqueued(stack)) == (["order"], ["charge", "mail"])


def test_a_job_that_would_be_undone_with_a_session_that_wrote_is_not_lost_silently(stack: Stack) -> None:
    forget_jobs(stack)

    def act() -> None:
        enqueue("charge")
        with new_session(stack) as session:
            session.add(Note(text="order"))
            session.flush()
            enqueue("mail")
            with pytest.raises(FailedTransaction, match=r"op\.enqueue"):
                session.rollback()

    with deferred(stack, act) as post:
        assert post().status_code == 500
    assert (stack.rows(), enqueued(stack)) == ([], [])


def test_what_the_bare_connection_wrote_outlives_a_session_that_has_only_read(stack: Stack) -> None:
    def act(session: Session) -> None:
        with new_session(stack) as second:
            second.scalars(select(Note)).all()
            send("insert into notes (text) values ('raw')")

    stack.act = act
    with stack.served() as post:
        assert (post().status, post().replayed) == (201, True)
    assert stack.rows() == ["raw"]


def test_what_the_bare_connection_wrote_is_not_undone_by_a_session_that_wrote(stack: Stack) -> None:
    def act(session: Session) -> None:
        write("one", commit=False)(session)
        session.flush()
        send("insert into notes (text) values ('raw')")
        with pytest.raises(FailedTransaction):
            session.rollback()

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def test_a_session_is_rolled_back_after_what_the_bare_connection_wrote_before_it(stack: Stack) -> None:
    def act(session: Session) -> None:
        send("insert into notes (text) values ('raw')")
        write("one", commit=False)(session)
        session.flush()
        session.rollback()
        write("two")(session)
        send("insert into notes (text) values ('raw too')")

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert stack.rows() == ["raw", "two", "raw too"]


def test_rows_that_are_fetched_piece_by_piece_are_nobody_elses(stack: Stack) -> None:
    """Fetching more of them is no statement of somebody else's."""

    def act(session: Session) -> None:
        write(*(f"n{number}" for number in range(9)))(session)
        write("undone", commit=False)(session)
        session.flush()
        rows = iter(session.scalars(select(Note.text).execution_options(yield_per=2)))
        assert next(rows).startswith("n")
        assert len(list(rows)) == 9
        session.rollback()

    stack.act = act
    with stack.served() as post:
        assert post().status == 201
    assert len(stack.rows()) == 9


def test_a_bare_cursor_of_a_sessions_connection_writes_for_nobody_who_could_undo_it_alone(
    stack: Stack,
) -> None:
    """Past SQLAlchemy nobody can tell whose a statement is, so a rollback is refused rather than guessed."""

    def act(session: Session) -> None:
        bare = session.connection().connection.cursor()
        bare.execute("insert into notes (text) values ('bare')")
        with pytest.raises(FailedTransaction):
            session.rollback()

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []
