"""How a handler ends, and what becomes of what its sessions held back; sessions of other tasks beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from sqlalchemy import event, select, text, update

from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.sqlalchemy import Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import Act, Note, Stack

_MORE = ("sync-postgres", "async-sqlite", "async-mariadb", "sync-mariadb", "flask-sqlite")
EVERY = pytest.mark.parametrize(
    "make",
    ["async-postgres", "sync-sqlite", *(pytest.param(one, marks=whole) for one in _MORE)],
    indirect=True,
)
ASYNC = pytest.mark.parametrize(
    "make", ["async-postgres", "async-sqlite", pytest.param("async-mariadb", marks=whole)], indirect=True
)
MYSQL = pytest.mark.parametrize(
    "make", [pytest.param(one, marks=whole) for one in ("sync-mariadb", "async-mariadb")], indirect=True
)


class OutOfStock(Exception):
    """The application's own."""


def _adds(session: Session) -> None:
    session.add(Note(text="order"))
    raise OutOfStock


def _changes(session: Session) -> None:
    (note,) = session.scalars(select(Note))
    note.text = "changed"
    raise OutOfStock


@EVERY
@pytest.mark.parametrize(("before", "act"), [(None, _adds), ("read", _changes)], ids=["added", "changed"])
def test_what_was_held_back_when_the_handler_raised_is_written_by_nobody(
    stack: Stack, before: str | None, act: Act
) -> None:
    with stack.plain.begin() as connection:
        connection.execute(text("insert into notes (text) values ('there')"))
    if before is not None:
        kept: list[Any] = []
        stack.before = lambda session: kept.extend(session.scalars(select(Note)))
        stack.act = lambda session: _touch(kept[-1])
    else:
        stack.act = act
    stack.after = lambda session: session.commit()
    with stack.served() as post:
        assert [post().status, post().status] == [500, 500]
    assert stack.rows() == ["there"]
    assert stack.runs == 2


def _touch(note: Note) -> None:
    note.text = "changed"
    raise OutOfStock


@EVERY
def test_what_a_listener_adds_at_the_commit_is_in_the_operation(stack: Stack) -> None:
    """A unit of work that is committed after the handler: its outbox rows are made in ``before_commit``."""
    created: list[str] = []
    at = getattr(stack.sessions, "class_", None)
    session_class = getattr(at, "sync_session_class", at)

    @event.listens_for(session_class, "before_commit")
    def collect(session: Session) -> None:
        while created:
            session.add(Note(text=created.pop()))

    def act(session: Session) -> None:
        session.add(Note(text="order"))
        created.append("event")

    stack.act = act
    stack.after = lambda session: session.commit()
    try:
        with stack.served() as post:
            assert post().status == 201
            assert post().replayed
        assert sorted(stack.rows()) == ["event", "order"]
    finally:
        event.remove(session_class, "before_commit", collect)


@EVERY
def test_a_listener_of_commits_hears_of_one(stack: Stack) -> None:
    """Its rows are written with the operation; the commit after the handler is none."""
    at = getattr(stack.sessions, "class_", None)
    session_class = getattr(at, "sync_session_class", at)
    told: list[str] = []

    @event.listens_for(session_class, "before_commit")
    def audit(session: Session) -> None:
        session.add(Note(text="audit"))

    @event.listens_for(session_class, "after_commit")
    def after(session: Session) -> None:
        told.append("committed")

    stack.act = lambda session: session.add(Note(text="order"))
    stack.after = lambda session: session.commit()
    try:
        with stack.served() as post:
            assert post().status == 201
        assert sorted(stack.rows()) == ["audit", "order"]
        assert (stack.after_error, told) == (None, ["committed"])
    finally:
        event.remove(session_class, "before_commit", audit)
        event.remove(session_class, "after_commit", after)


@pytest.mark.parametrize("make", ["sync-sqlite", pytest.param("sync-postgres", marks=whole)], indirect=True)
def test_what_a_call_held_back_when_it_raised_is_written_by_nobody(stack: Stack) -> None:
    """``once``, as a task queue uses it: its teardown commits."""
    session = stack.sessions()

    def pay() -> None:
        session.add(Note(text="order"))
        raise OutOfStock

    for _ in range(2):
        with pytest.raises(OutOfStock):
            stack.idempotency.once(tenant="t", key="k", run=pay, mode="atomic")
        session.commit()
    session.close()
    stack.idempotency.close()
    stack.engine.dispose()
    assert stack.rows() == []


def _serve(stack: Stack, handler: Any) -> Any:
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, idempotency=stack.idempotency, tenant=lambda _: stack.tenant)
    app.post("/", response_model=None)(stack.idempotency.atomic(handler))
    return TestClient(app, raise_server_exceptions=False)


def _close(stack: Stack, client: TestClient) -> None:
    assert client.portal is not None
    client.portal.call(stack.idempotency.aclose)
    client.portal.call(stack.given.dispose)


@ASYNC
def test_tasks_with_a_session_each_share_the_transaction(stack: Stack) -> None:
    async def load(name: str) -> None:
        async with stack.sessions() as session:
            await session.execute(select(Note))
            session.add(Note(text=name))
            await session.commit()

    async def handler() -> JSONResponse:
        await asyncio.gather(load("one"), load("two"))
        return JSONResponse({}, 201)

    with _serve(stack, handler) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 201
        _close(stack, client)
    assert sorted(stack.rows()) == ["one", "two"]


@pytest.mark.parametrize("make", ["async-postgres"], indirect=True)
def test_what_a_task_has_rolled_back_does_not_stand(stack: Stack) -> None:
    """While another task's statement is on its way."""

    async def fails() -> None:
        async with stack.sessions() as session:
            session.add(Note(text="undone"))
            await session.flush()
            raise OutOfStock

    async def works() -> None:
        async with stack.sessions() as session:
            await session.execute(text("select pg_sleep(0.2)"))

    async def handler() -> JSONResponse:
        await asyncio.gather(fails(), works(), return_exceptions=True)
        return JSONResponse({}, 201)

    with _serve(stack, handler) as client:
        client.post("/", headers={"Idempotency-Key": "k"})
        _close(stack, client)
    assert stack.rows() == []


@ASYNC
def test_a_session_of_a_task_beside_the_handler_is_not_the_operations(stack: Stack) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def audit() -> None:
        async with stack.sessions() as session:
            session.add(Note(text="audit"))
            await asyncio.sleep(0.3)  # its provider
            await session.commit()

    app = FastAPI()

    @app.middleware("http")
    async def audited(request: Any, call_next: Any) -> Any:
        tasks.append(asyncio.create_task(audit()))
        await asyncio.sleep(0.05)
        return await call_next(request)

    async def audits() -> None:
        await asyncio.gather(*tasks)

    app.add_middleware(IdempotencyMiddleware, idempotency=stack.idempotency, tenant=lambda _: stack.tenant)

    @app.post("/", response_model=None)
    @stack.idempotency.atomic
    async def handler() -> JSONResponse:
        async with stack.sessions() as session:
            session.add(Note(text="order"))
            await session.flush()
        return JSONResponse({"detail": "sold out"}, 409)

    with TestClient(app, raise_server_exceptions=True) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 409
        assert client.portal is not None
        client.portal.call(audits)
        _close(stack, client)
    assert stack.rows() == ["audit"]


@MYSQL
def test_an_update_counts_what_it_found(stack: Stack) -> None:
    def act(session: Session) -> Any:
        session.add(Note(text="paid"))
        session.flush()
        found: Any = session.execute(update(Note).values(text="paid"))
        return found.rowcount

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == 1


@MYSQL
def test_rows_that_are_fetched_in_pieces_outlast_other_statements(stack: Stack) -> None:
    def act(session: Session) -> Any:
        session.add_all([Note(text=str(number)) for number in range(10)])
        session.flush()
        other = current_operation().session
        seen = 0
        for _ in session.scalars(select(Note).execution_options(yield_per=2)):
            seen += 1
            if not stack.is_async:
                other.execute(select(1))
        return seen

    stack.act = act
    with stack.served() as post:
        assert post().body["made"] == 10
