"""Many at once, in threads and tasks, and a COMMIT whose acknowledgement is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from lab.processes import wait_until
from lab.proxy import FaultProxy, cut_after
from samekey import Idempotency
from samekey.errors import FailedTransaction, OperationOver
from samekey.sqlalchemy import AsyncSession, Session
from tests.chosen import whole
from tests.sqlalchemy.stacks import DRIVERS, Base, Got, Note, Stack, url_for, write


def at_once(post: Callable[..., Got], keys: list[str]) -> list[Got]:
    barrier = threading.Barrier(len(keys))

    def send(key: str) -> Got:
        barrier.wait(30)
        return post(key)

    with ThreadPoolExecutor(len(keys)) as threads:
        return list(threads.map(send, keys))


@pytest.mark.parametrize("make", ["async-postgres", pytest.param("sync-sqlite", marks=whole)], indirect=True)
def test_duplicates_at_once_write_one_row(stack: Stack) -> None:
    with stack.served() as post:
        found = at_once(post, ["k"] * 6)
        assert post().status == 201
    assert {got.status for got in found} <= {201, 409}
    assert (stack.runs, stack.rows()) == (1, ["tea"])


@whole
@pytest.mark.parametrize(
    "make", [f"{kind}-{store}" for kind in ("sync", "async") for store in DRIVERS], indirect=True
)
def test_others_at_once_write_a_row_each(stack: Stack) -> None:
    """More than the engine's pool has connections, each with a session that has read before its claim."""
    keys = [f"k{number}" for number in range(6)]
    names = (f"tea {number}" for number in range(100))
    stack.before = lambda session: session.scalars(select(Note)).all()

    def act(session: Session) -> None:
        write(next(names))(session)

    stack.act = act
    with stack.served() as post:
        found = at_once(post, keys)
        for _ in range(20):
            # SQLite has one writer, and a pool of two is soon empty: whoever was refused comes again.
            if all(got.status == 201 for got in found):
                break
            found = [post(key) for key in keys]
    assert [got.status for got in found] == [201] * 6
    assert len(stack.rows()) == 6


@pytest.mark.parametrize("make", ["sync-sqlite"], indirect=True)
@pytest.mark.parametrize("own", [False, True], ids=["the-handlers", "its-own"])
def test_a_thread_that_is_left_behind_writes_nothing(stack: Stack, own: bool) -> None:
    """With the handler's session, whatever its context; with one of its own, in the handler's context."""
    ended, threads, refused = threading.Event(), [], []

    def later(session: Session) -> None:
        ended.wait(30)
        try:
            write("later")(session)
        except OperationOver as error:
            refused.append(error)

    def act(session: Session) -> None:
        write("tea")(session)
        context = copy_context() if own else Context()
        used = stack.sessions() if own else session
        threads.append(threading.Thread(target=context.run, args=[later, used]))
        threads[0].start()

    def after(_: Session) -> None:
        ended.set()
        threads[0].join(30)

    stack.act, stack.after = act, after
    with stack.served() as post:
        assert post().status == 201
    assert (len(refused), stack.rows()) == (1, ["tea"])


@pytest.mark.parametrize("make", ["sync-sqlite"], indirect=True)
def test_a_thread_without_context_is_in_the_operation_by_its_session(stack: Stack) -> None:
    def act(session: Session) -> None:
        session.scalars(select(Note)).all()
        thread = threading.Thread(target=write("tea"), args=[session])
        thread.start()
        thread.join(30)
        raise ValueError("everything goes")

    stack.act = act
    with stack.served() as post:
        assert post().status == 500
    assert stack.rows() == []


def in_a_loop(url: str, work: Callable[[Any, Idempotency], Any]) -> Any:
    """An async engine on a database with the table, and an Idempotency on it."""
    plain = create_engine(url_for(url, is_async=False))
    Base.metadata.create_all(plain)

    async def run() -> Any:
        engine = create_async_engine(url_for(url, is_async=True))
        idempotency = Idempotency(engine)
        await asyncio.to_thread(idempotency.migrate)
        try:
            return await work(engine, idempotency)
        finally:
            await idempotency.aclose()
            await engine.dispose()

    try:
        result = asyncio.run(run())
        with plain.connect() as connection:
            return result, list(connection.scalars(select(Note.text)))
    finally:
        plain.dispose()


def test_a_task_that_is_left_behind_writes_nothing(sqlite_url: str) -> None:
    async def work(engine: Any, idempotency: Idempotency) -> Any:
        over = asyncio.Event()
        tasks = []

        async def later(session: AsyncSession) -> None:
            await over.wait()
            async with session:
                session.add(Note(text="later"))
                await session.commit()

        async def handler() -> None:
            async with AsyncSession(engine) as session:
                session.add(Note(text="tea"))
                await session.commit()
            tasks.append(asyncio.create_task(later(AsyncSession(engine))))

        await idempotency.once_async(tenant="ann", key="k", run=handler, mode="atomic")
        over.set()
        with pytest.raises(OperationOver, match="an operation that is over"):
            await tasks[0]

    assert in_a_loop(sqlite_url, work) == (None, ["tea"])


def _sleeps(url: str) -> bool:
    asked = (
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'active'"
        " and wait_event = 'PgSleep'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(asked).fetchone()
    return found is not None and found[0] > 0


def test_a_statement_that_was_interrupted_keeps_everything_from_being_committed(postgres_url: str) -> None:
    async def work(engine: Any, idempotency: Idempotency) -> Any:
        async def handler() -> None:
            async with AsyncSession(engine) as session:
                session.add(Note(text="tea"))
                await session.commit()
                with pytest.raises(TimeoutError):
                    await interrupted(session)
                await session.rollback()

        async def interrupted(session: AsyncSession) -> None:
            async with asyncio.timeout(60) as limit:
                ending = asyncio.create_task(end_once_begun(limit))
                try:
                    await session.execute(text("select pg_sleep(30)"))
                finally:
                    await ending

        async def end_once_begun(limit: asyncio.Timeout) -> None:
            await asyncio.to_thread(wait_until, lambda: _sleeps(postgres_url))
            limit.reschedule(asyncio.get_running_loop().time())

        with pytest.raises(FailedTransaction):
            await idempotency.once_async(tenant="ann", key="k", run=handler, mode="atomic")

    assert in_a_loop(postgres_url, work) == (None, [])


def test_rows_are_streamed_in_the_operation(postgres_url: str) -> None:
    async def work(engine: Any, idempotency: Idempotency) -> Any:
        async def handler() -> list[str]:
            async with AsyncSession(engine) as session:
                session.add_all([Note(text="one"), Note(text="two")])
                await session.flush()
                streamed = await session.stream_scalars(select(Note.text).order_by(Note.id))
                return [found async for found in streamed]

        return await idempotency.once_async(tenant="ann", key="k", run=handler, mode="atomic")

    assert in_a_loop(postgres_url, work) == (["one", "two"], [])


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_commit_whose_acknowledgement_is_lost_is_settled_by_proof(
    postgres_url: str, is_async: bool
) -> None:
    with FaultProxy.before(postgres_url) as proxy:
        stack = Stack("async" if is_async else "sync", proxy.url_for(postgres_url))
        with stack.served() as post:
            stack.act = write("first")
            assert post("first").status == 201
            rule = proxy.on_commit(cut_after)
            stack.act = write("tea")
            got = post()
            assert rule.fired.is_set()
            assert (got.status, got.replayed) == (201, False)
            assert post().replayed
        assert (stack.runs, stack.rows()) == (2, ["first", "tea"])


def test_statements_stay_prepared_for_the_next_operation(postgres_url: str) -> None:
    """And what one operation has prepared is of no use to its own left-overs."""

    async def work(engine: Any, idempotency: Idempotency) -> Any:
        counts = []

        async def handler(name: str) -> None:
            async with AsyncSession(engine) as session:
                session.add(Note(text=name))
                await session.commit()
                prepared = (
                    "select count(*) from pg_prepared_statements where statement like 'INSERT INTO notes%'"
                )
                counts.append(await session.scalar(text(prepared)))

        for number in range(4):
            name = f"tea {number}"
            await idempotency.once_async(tenant="ann", key=name, run=partial(handler, name), mode="atomic")
        return counts

    assert in_a_loop(postgres_url, work)[0] == [1, 1, 1, 1]
