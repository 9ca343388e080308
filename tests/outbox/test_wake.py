"""From commit to first attempt: a notification where one can come, polling that calms down where none can."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy
from lab.servers.postgres import PostgresServer
from samekey.drivers.postgres import listen
from samekey.drivers.postgres.listen import PostgresListener
from samekey.drivers.protocol import AsyncDriver
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.protocols import Actor
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.operator import Operator
from samekey.stores.sql.queries import queries_for
from samekey.workers import wake
from samekey.workers.service import Services, WorkerService
from samekey.workers.wake import Rhythm
from tests.chosen import without
from tests.edges.callers import LoopThread
from tests.outbox.deaf import Deaf
from tests.outbox.world import Outbox

HOUR = 3600.0


@pytest.fixture
def hourly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling that nobody would wait for: what happens now was told."""
    for name in ("FASTEST_POLL", "SLOWEST_POLL", "SAFETY_POLL"):
        monkeypatch.setattr(wake, name, HOUR)
    monkeypatch.setattr(listen, "SOONEST_RECONNECT", 0.05)


@contextlib.contextmanager
def serving(outbox: Outbox, **options: Any) -> Iterator[None]:
    """A worker service in the test's own loop."""
    outbox.idempotency.job("quick")(lambda job, payload: payload)
    service = WorkerService(outbox.idempotency.engine, Services(completer=False, **options))
    running = outbox.loop.start(service.run(handle_signals=False))
    try:
        yield
    finally:
        outbox.loop.loop.call_soon_threadsafe(service.stop)
        running.result(20)


def done(outbox: Outbox, count: int) -> Callable[[], bool]:
    return lambda: sum(job.state == "done" for job in outbox.jobs()) == count


@pytest.mark.usefixtures("hourly")
def test_a_commit_is_told_to_the_worker(postgres_outbox: Outbox) -> None:
    outbox = postgres_outbox
    with serving(outbox):
        for count in range(1, 4):  # the first may have been found at the start; the others were told
            outbox.place("quick")
            wait_until(done(outbox, count))


@pytest.mark.usefixtures("hourly")
def test_a_dead_job_that_an_operator_revives_is_told_to_the_worker(postgres_outbox: Outbox) -> None:
    outbox, fails = postgres_outbox, [True]

    @outbox.idempotency.job("flaky", max_attempts=1)
    async def flaky(job: Any, _: Any) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("the first time")

    with serving(outbox):
        outbox.place("flaky")
        wait_until(lambda: [job.state for job in outbox.jobs()] == ["dead"])
        operator, job = Operator(SqlKeys(queries_for("postgres"))), outbox.job()
        driver = outbox.idempotency.engine.drivers.sync
        assert run(driver, lambda: operator.retry_dead_job(job.id, Actor("ann", "fixed")))
        wait_until(lambda: [job.state for job in outbox.jobs()] == ["done"])


@pytest.mark.usefixtures("hourly")
def test_a_lost_listener_comes_back(postgres_outbox: Outbox) -> None:
    outbox = postgres_outbox
    with FaultProxy.before(outbox.url) as proxy, serving(outbox, listen_url=proxy.url_for(outbox.url)):
        outbox.place("quick")
        wait_until(done(outbox, 1))
        for count in (2, 3):
            before = proxy.accepted
            proxy.cut_all()
            wait_until(lambda before=before: proxy.accepted > before)  # type: ignore[misc]
            outbox.place("quick")
            wait_until(done(outbox, count))


@pytest.mark.usefixtures("hourly")
def test_a_restarted_server_is_listened_to_again(loop: LoopThread, threads: ThreadPoolExecutor) -> None:
    with PostgresServer.start() as server:
        outbox = Outbox(server.create_database(), loop, threads)
        try:
            with serving(outbox):
                outbox.place("quick")
                wait_until(done(outbox, 1))
                server.restart("fast")
                outbox.place("quick")
                wait_until(done(outbox, 2))
                outbox.place("quick")
                wait_until(done(outbox, 3))
        finally:
            outbox.close()


# ------------------------------------------------------------------ where no notification arrives


def test_without_notifications_it_polls(
    postgres_outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """LISTEN succeeds, as behind a pooler, and nothing is ever heard: the proof finds out."""
    outbox = postgres_outbox
    monkeypatch.setattr(listen, "PROOF_SECONDS", 0.1)
    caplog.set_level("INFO", logger="samekey")

    async def served(stack: contextlib.AsyncExitStack) -> Deaf:
        return await stack.enter_async_context(Deaf(outbox.url).served())

    stack = contextlib.AsyncExitStack()
    deaf = outbox.run(served(stack))
    try:
        with serving(outbox, listen_url=deaf.url):
            wait_until(lambda: "notifications do not arrive" in caplog.text)
            for count in (1, 2):
                outbox.place("quick")
                wait_until(done(outbox, count))
            assert deaf.lost >= 1
    finally:
        outbox.run(stack.aclose())


def test_a_deaf_listener_leaks_no_connection_and_tries_ever_more_rarely(
    postgres_outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "PROOF_SECONDS", 0.02)
    monkeypatch.setattr(listen, "SOONEST_RECONNECT", 0.01)
    monkeypatch.setattr(listen, "LATEST_RECONNECT", 0.04)
    pauses: list[float] = []
    sleep, store = asyncio.sleep, postgres_outbox.idempotency.engine.drivers.aio

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    async def story() -> None:
        async with (
            Deaf(postgres_outbox.url).served() as deaf,
            listening(deaf.url, store) as (listener, woken),
        ):
            monkeypatch.setattr(listen.asyncio, "sleep", noted)  # type: ignore[attr-defined]
            while len(pauses) < 4:
                await sleep(0.005)
                assert not listener.listening
                assert deaf.open <= 1
            assert deaf.accepted >= 4
            # It hears again: and says so, because something may have come meanwhile.
            woken.clear()
            deaf.hears = True
            await asyncio.wait_for(woken.wait(), 10)
            while not listener.listening:
                await sleep(0.005)
        while deaf.open:
            await sleep(0.005)

    postgres_outbox.run(story())
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.04]


def test_a_url_of_another_database_is_not_listened_to(
    postgres_outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own notifications arrive there, and never the jobs'."""
    monkeypatch.setattr(listen, "PROOF_SECONDS", 0.1)
    caplog.set_level("INFO", logger="samekey")
    other = urlunsplit(urlsplit(postgres_outbox.url)._replace(path="/postgres"))
    with serving(postgres_outbox, listen_url=other):
        wait_until(lambda: "notifications do not arrive" in caplog.text)
        postgres_outbox.place("quick")
        wait_until(done(postgres_outbox, 1))


def test_a_connection_that_goes_deaf_is_found_out(
    postgres_outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open, and nothing comes over it any more."""
    monkeypatch.setattr(listen, "PROOF_SECONDS", 0.05)
    monkeypatch.setattr(listen, "PROOF_EVERY", 0.05)
    store = postgres_outbox.idempotency.engine.drivers.aio

    async def story() -> None:
        deaf = Deaf(postgres_outbox.url)
        deaf.hears = True
        async with deaf.served(), listening(deaf.url, store) as (listener, woken):
            while not listener.listening:
                await asyncio.sleep(0.005)
            woken.clear()
            deaf.hears = False
            await asyncio.wait_for(woken.wait(), 10)
            assert not listener.listening

    postgres_outbox.run(story())


@contextlib.asynccontextmanager
async def listening(url: str, store: AsyncDriver) -> AsyncIterator[tuple[PostgresListener, asyncio.Event]]:
    listener, woken = PostgresListener(url, store), asyncio.Event()
    await listener.start(woken)
    try:
        yield listener, woken
    finally:
        await listener.stop()


def test_a_listener_without_a_server_does_no_harm() -> None:
    async def story() -> None:
        url = "postgresql://nobody@127.0.0.1:9/nowhere"
        async with listening(url, drivers_for(url).aio) as (listener, woken):
            await asyncio.wait_for(woken.wait(), 10)
            assert not listener.listening

    asyncio.run(story())


# ------------------------------------------------------------------ what an idle worker costs


@without(outbox="mariadb")
def test_an_idle_worker_costs_next_to_nothing(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted for two seconds from the first one on; a slower machine only counts less."""
    counted: list[tuple[float, str]] = []
    looks = {"due_jobs", "next_kind"}  # the second on MariaDB
    execute = outbox.idempotency.engine.drivers.aio.execute

    async def count(statement: Any) -> Any:
        counted.append((time.monotonic(), statement.name))
        return await execute(statement)

    monkeypatch.setattr(outbox.idempotency.engine.drivers.aio, "execute", count)
    with serving(outbox):
        wait_until(lambda: len(counted) >= 2 and looks & {name for _, name in counted})
        outbox.run(asyncio.sleep(2))
    statements = [name for at, name in counted if at < counted[0][0] + 2]
    # Looks at 0, 0.05, 0.15, 0.35, 0.75 and 1.55 s if it polls, a statement each; fewer if it listens. The
    # reaper, the sweeper and the reconciler look once, and the listener asks for one proof.
    assert len(statements) <= 10, statements
    once = {"find_abandoned", "take_unknown", "count_sweep", "stranded_evidence", "notify"}
    assert set(statements) <= {*looks, *once}
    assert all(statements.count(name) <= 1 for name in once), statements


def test_polling_calms_down_and_work_wakes_it_up() -> None:
    rhythm = Rhythm()
    pauses = [rhythm.idle(listening=False, next_due_ms=None) for _ in range(8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    rhythm.worked()
    assert rhythm.idle(listening=False, next_due_ms=None) == 0.05


def test_what_is_due_later_is_waited_for_and_no_longer() -> None:
    rhythm = Rhythm()
    assert rhythm.idle(listening=True, next_due_ms=None) == wake.SAFETY_POLL
    assert rhythm.idle(listening=True, next_due_ms=700) == 0.7
    assert rhythm.idle(listening=True, next_due_ms=10**9) == wake.SAFETY_POLL
    assert rhythm.idle(listening=True, next_due_ms=1) == wake.FASTEST_POLL


def test_what_is_due_and_held_by_another_is_no_reason_to_spin() -> None:
    rhythm = Rhythm()
    pauses = [rhythm.idle(listening=True, next_due_ms=-5) for _ in range(8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
