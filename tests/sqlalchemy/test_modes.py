"""Sessions in every kind of transaction that samekey has: phases, deferred work, jobs, plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel, ConfigDict
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import ConfigurationError, OperationOver
from samekey.sqlalchemy import AsyncSession, Session
from samekey.workers.outbox import OutboxWorker
from tests.sqlalchemy.stacks import Base, Note


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    made = create_engine(sqlite_url)
    Base.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def loops(engine: Engine) -> AsyncEngine:
    return create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))


def texts(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(Note.text).order_by(Note.id)))


def served(idempotency: Idempotency, handler: Any) -> TestClient:
    app = Starlette(routes=[Route("/", handler, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "ann")
    return TestClient(app, raise_server_exceptions=False)


def test_a_sync_phase_commits_what_its_session_wrote(engine: Engine) -> None:
    idempotency, sessions = Idempotency(engine), sessionmaker(engine, class_=Session)
    fails = [True]

    def write(_: Any, text: str) -> str:
        with sessions() as session:
            session.add(Note(text=text))
            session.commit()
        if fails.pop() if fails else False:
            raise ValueError("after the commit")
        return text

    @idempotency.phased("notes", lease=1)
    def handler(op: Any, _: Any) -> Response:
        return Response(
            201, {"wrote": [op.transaction("one", write, "one"), op.transaction("two", write, "two")]}
        )

    with served(idempotency, handler) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 500
        assert texts(engine) == []
        assert client.post("/", headers={"Idempotency-Key": "k2"}).json() == {"wrote": ["one", "two"]}
    assert texts(engine) == ["one", "two"]
    idempotency.close()


def test_an_async_phase_commits_what_its_session_wrote(engine: Engine, loops: AsyncEngine) -> None:
    idempotency, sessions = Idempotency(loops), async_sessionmaker(loops, class_=AsyncSession)
    left: list[AsyncSession] = []

    async def write(_: Any, text: str) -> str:
        session = sessions()
        session.add(Note(text=text))  # and nothing else: it is sent when the phase's function returns
        left.append(session)
        return text

    @idempotency.phased("notes")
    async def handler(op: Any, _: Any) -> Response:
        await op.transaction("one", write, "one")
        left[0].add(Note(text="between the phases"))
        with pytest.raises(OperationOver):
            await left[0].commit()
        await left[0].close()
        return Response(201, {})

    with served(idempotency, handler) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 201
        assert client.portal is not None
        client.portal.call(loops.dispose)
        client.portal.call(idempotency.aclose)
    assert texts(engine) == ["one"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_deferred_work_and_its_job_commit_what_their_sessions_wrote(
    engine: Engine, loops: AsyncEngine, is_async: bool
) -> None:
    idempotency = Idempotency(loops if is_async else engine)
    threads, tasks = sessionmaker(engine, class_=Session), async_sessionmaker(loops, class_=AsyncSession)

    def save(_: Any, text: str) -> None:
        with threads() as session:
            session.add(Note(text=text))
            session.commit()

    async def save_async(_: Any, text: str) -> None:
        async with tasks() as session:
            session.add(Note(text=text))
            await session.commit()

    def accept(_: Any) -> JSONResponse:
        save(None, "accepted")
        current_operation().enqueue("work")
        return JSONResponse({}, 202)

    async def accept_async(_: Any) -> JSONResponse:
        await save_async(None, "accepted")
        await current_operation().enqueue("work")
        return JSONResponse({}, 202)

    def work(job: Any, _: Any) -> Response:
        job.write(save, "done")
        return Response(201, {})

    async def work_async(job: Any, _: Any) -> Response:
        job.write(save_async, "done")
        return Response(201, {})

    handler: Any = idempotency.deferred(accept_async if is_async else accept)
    idempotency.job("work")(work_async if is_async else work)
    with served(idempotency, handler) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 202
        assert texts(engine) == ["accepted"]
        assert client.portal is not None
        worker = OutboxWorker(idempotency.engine)
        assert client.portal.call(worker.run_once) == 1
        client.portal.call(worker.drain)
        assert texts(engine) == ["accepted", "done"]
        client.portal.call(loops.dispose)
        client.portal.call(idempotency.aclose)


def test_plain_functions_commit_what_their_sessions_wrote(engine: Engine, loops: AsyncEngine) -> None:
    threads, tasks = Idempotency(engine), Idempotency(loops)

    def write() -> None:
        current_operation().session.add(Note(text="sync"))

    async def write_async() -> None:
        current_operation().session.add(Note(text="async"))

    for _ in range(2):
        threads.once(tenant="ann", key="k1", run=write, mode="atomic")

    async def both() -> None:
        for _ in range(2):
            await tasks.once_async(tenant="ann", key="k2", run=write_async, mode="atomic")
        await tasks.aclose()
        await loops.dispose()

    asyncio.run(both())
    threads.close()
    assert texts(engine) == ["sync", "async"]


def test_a_session_of_the_wrong_kind_is_refused_where_nobody_could_see_it_before(engine: Engine) -> None:
    idempotency = Idempotency(engine)

    async def write() -> None:
        Session(engine).scalar(select(Note.id))

    with pytest.raises(ConfigurationError, match="runs in async code, and Idempotency was given an Engine"):
        asyncio.run(idempotency.once_async(tenant="ann", key="k", run=write, mode="atomic"))
    idempotency.close()


def test_a_leased_handlers_session_is_an_ordinary_one(engine: Engine) -> None:
    idempotency = Idempotency(engine)

    def write() -> None:
        with Session(engine) as session:
            session.add(Note(text="stands"))
            session.commit()
        raise ValueError("after the commit")

    with pytest.raises(ValueError, match="after the commit"):
        idempotency.once(tenant="ann", key="k", run=write)
    with pytest.raises(ConfigurationError, match="has no transaction of its own"):
        idempotency.once(tenant="ann", key="k2", run=lambda: current_operation().session)
    assert texts(engine) == ["stands"]
    idempotency.close()


def test_an_answer_that_is_made_of_an_object_loads_what_it_needs(engine: Engine) -> None:
    """FastAPI makes the answer after the handler; by default a commit has expired the object by then."""
    idempotency, sessions, app = Idempotency(engine), sessionmaker(engine, class_=Session), FastAPI()
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "ann")

    def get_session() -> Iterator[Session]:
        with sessions() as session:
            yield session

    @app.post("/", response_model=Shown, status_code=201)
    @idempotency.atomic
    def handler(session: Any = Depends(get_session)) -> Any:  # noqa: B008
        session.add(note := Note(text="tea"))
        session.commit()
        return note

    with TestClient(app) as client:
        first, again = (client.post("/", headers={"Idempotency-Key": "k"}) for _ in range(2))
        assert (first.status_code, first.json(), again.content) == (201, {"text": "tea"}, first.content)
    assert texts(engine) == ["tea"]
    idempotency.close()


class Shown(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    text: str


def test_without_a_key_an_atomic_handlers_session_commits_with_its_answer_too(engine: Engine) -> None:
    idempotency, sessions = Idempotency(engine), sessionmaker(engine, class_=Session)

    @idempotency.atomic(required=False)
    def handler(request: Any) -> JSONResponse:
        with sessions() as session:
            session.add(Note(text=request.headers["note"]))
            session.commit()
        return JSONResponse({}, int(request.headers["status"]))

    with served(idempotency, handler) as client:
        for note, status in (("falls", 500), ("is refused", 409), ("stands", 201)):
            assert client.post("/", headers={"note": note, "status": str(status)}).status_code == status
    assert texts(engine) == ["stands"]
    idempotency.close()
