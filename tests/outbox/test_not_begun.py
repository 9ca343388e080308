"""Jobs that a worker took and did not begin: their attempts do not count, and they hold nobody up."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet

from lab.processes import wait_until
from lab.proxy import CutAfter, FaultProxy
from lab.servers import mariadb
from samekey import JobContext
from samekey.core.claim import scope_part
from samekey.encryption import fernet
from samekey.errors import ConnectionLost
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.test_fairness import COLUMNS, Hung, crowd, is_done, serving
from tests.outbox.world import Outbox, hang


def lose_replies(outbox: Outbox, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """``enter`` is carried out, and nobody hears of it."""
    enter, lost = outbox.idempotency.engine.outbox.enter, list(range(times))

    def unheard(jobs: Any) -> Any:
        entered = yield from enter(jobs)
        if lost:
            lost.pop()
            raise ConnectionLost("the reply was lost")
        return entered

    monkeypatch.setattr(outbox.idempotency.engine.outbox, "enter", unheard)
    return lost


def test_an_attempt_whose_beginning_was_not_heard_of_does_not_count(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was entered at the store, three times over; its function was not called. It has one attempt."""
    ran: list[int] = []
    outbox.idempotency.job("charge", max_attempts=1)(lambda job, _: ran.append(job.attempts))
    outbox.place("charge")
    lose_replies(outbox, monkeypatch, 3)
    worker = outbox.worker()
    with pytest.raises(ConnectionLost):
        outbox.run(worker.run_once())
    assert (outbox.job().attempts, ran) == (1, [])
    outbox.work(worker)
    assert (ran, outbox.job().state, outbox.job().attempts) == ([1], "done", 1)
    assert outbox.ask("select silences from {jobs}") == [(0,)]


def test_the_same_for_a_worker_that_is_stopped_then(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox.idempotency.job("charge", max_attempts=1)(lambda job, _: None)
    outbox.place("charge")
    lose_replies(outbox, monkeypatch, 3)

    async def story() -> None:
        worker = outbox.worker()
        with pytest.raises(ConnectionLost):
            await worker.run_once()
        await worker.stop()

    outbox.run(asyncio.wait_for(story(), 30))
    job = outbox.job()
    assert (job.state, job.attempts, job.attempt) == ("live", 0, None)


def test_replies_that_a_real_connection_loses_count_nothing(
    postgres_url: str, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    """The connection is cut after the server has entered the jobs, as often as a statement is tried."""
    ran: list[int] = []
    with FaultProxy.before(postgres_url) as proxy:
        outbox = Outbox(proxy.url_for(postgres_url), loop, threads)
        try:
            outbox.idempotency.job("charge", max_attempts=1)(lambda job, _: ran.append(job.attempts))
            outbox.place("charge")
            rule = proxy.on_statement(r"[\s\S]*entered = 1,\s+run_at[\s\S]*", CutAfter(), times=3)
            with serving(outbox, lease=timedelta(seconds=60)):
                wait_until(is_done(outbox, "charge"), 30)
            assert (rule.count, ran) == (3, [1])
        finally:
            outbox.close()


@pytest.mark.parametrize("store", stores("sqlite", "postgres", "mariadb"))
def test_a_crowd_of_unreadable_jobs_holds_up_none_that_can_be_read(
    request: pytest.FixtureRequest,
    store: str,
    loop: LoopThread,
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them are due first; the worker does not sleep before it has looked past the last one."""
    url: str = request.getfixturevalue(f"{store}_url")
    mine, lost = Fernet.generate_key(), Fernet.generate_key()
    monkeypatch.setattr("samekey.workers.wake.FASTEST_POLL", 3600.0)
    monkeypatch.setattr("samekey.workers.wake.SLOWEST_POLL", 3600.0)
    monkeypatch.setattr("samekey.workers.wake.SAFETY_POLL", 3600.0)
    with (
        closing(Outbox(url, loop, threads, {"encryption": fernet(lost)})) as app,
        closing(Outbox(url, loop, threads, {"encryption": fernet(mine)})) as worker,
    ):
        for one in (app, worker):
            one.idempotency.job("charge")(lambda job, _: None)
        crowd(app, "charge", 100)
        operation = worker.place("charge")
        with serving(worker) as service:
            wait_until(
                lambda: app.ask("select state from {jobs} where operation_id = ?", operation) == [("done",)]
            )
            assert not service.healthy
            assert "lacks the encryption key" in service.troubles["outbox, unreadable"]
        assert app.ask("select max(attempts) from {jobs} where state = 'live'") == [(0,)]


def test_a_payload_of_another_job_is_not_worked_on(
    sqlite_url: str, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    """Whoever can write to the database cannot have one customer charged what another owes."""
    done: list[str] = []
    with closing(Outbox(sqlite_url, loop, threads, {"encryption": fernet(Fernet.generate_key())})) as outbox:
        outbox.idempotency.job("charge")(lambda job, _: done.append(job.operation_id))
        first, second = outbox.place("charge"), outbox.place("charge")
        theirs = outbox.ask("select payload from {jobs} where operation_id = ?", second)[0][0]
        outbox.ask("update {jobs} set payload = ? where operation_id = ?", theirs, first)
        outbox.work(outbox.worker())
        assert done == [second]
        assert outbox.ask("select state, attempts from {jobs} where operation_id = ?", first) == [("live", 0)]


def test_what_cannot_be_read_for_long_is_tried_ever_more_rarely(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samekey.workers import outbox as module

    outbox.idempotency.job("job")(lambda job, _: None)
    outbox.place("job")
    outbox.ask("update {jobs} set payload = ?", b'{"version": 99}')
    pauses: list[timedelta] = []
    worker = outbox.worker()
    give_back = worker._give_back

    async def seen(jobs: Any, pause: timedelta, error: str | None) -> None:
        if jobs:
            pauses.append(pause)
        await give_back(jobs, pause, error)

    monkeypatch.setattr(worker, "_give_back", seen)
    for hours in (0, 1):
        outbox.ask("update {jobs} set created_at = created_at - ?", hours * 3_600_000)
        outbox.work(worker)
    assert pauses == [module.NOT_FOR_US, module.LONG_NOT_FOR_US]


def test_no_tenants_backlog_however_long_hides_the_others(outbox: Outbox) -> None:
    """More of its jobs are due, and before all others, than a look goes through at first."""
    hung = Hung(outbox, "job", "async")
    crowd(outbox, "job", 20)
    rows = 2100
    if outbox.dialect == "sqlite":
        numbers = (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < ?) select i from n"
        )
    else:
        numbers = {
            "postgres": "select i from generate_series(1, ?) as n(i)",
            "mysql": f"select seq as i from {mariadb.numbers(4000)} where seq <= ?",
        }[outbox.dialect]
    glue = "concat('x', n.i)" if outbox.dialect == "mysql" else "'x' || n.i"
    outbox.ask(
        f"insert into {{jobs}} (id, name, tenant, due_at, {COLUMNS}) select {glue}, j.name, j.tenant, 0, "
        + ", ".join(f"j.{column}" for column in COLUMNS.split(", "))
        + f" from ({numbers}) as n, (select * from {{jobs}} where name = 'job' limit 1) as j",
        rows,
    )
    begun: list[str] = []

    async def other(job: JobContext, _: Any) -> None:
        begun.append(job.tenant)

    outbox.idempotency.job("other")(other)
    outbox.ask(
        f"insert into {{jobs}} (id, name, tenant, due_at, {COLUMNS}) "
        f"select 'bob', name, ?, 1, {COLUMNS} from {{jobs}} where name = 'job' limit 1",
        scope_part("bob"),
    )
    try:
        with serving(outbox, concurrency=10):
            wait_until(lambda: "bob" in hung.begun, 30)
    finally:
        hung.release()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("why", ["killer", "unreadable"])
def test_a_job_that_was_only_to_be_buried_gets_no_attempt_back_when_its_worker_stops(
    outbox: Outbox, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has killed two workers, or nobody can read it. The store does not answer while it is written off."""
    ran: list[int] = []
    outbox.idempotency.job("charge", max_attempts=2)(lambda job, _: ran.append(job.attempts))
    outbox.place("charge")
    if why == "killer":
        for _ in range(2):
            outbox.take()
            outbox.make_due()
    else:
        outbox.ask("update {jobs} set payload = ?", b"not json")
    worker = outbox.worker(grace=timedelta(0))
    monkeypatch.setattr(worker._performer, "_bury", hang)

    async def story() -> None:
        assert await worker.run_once() == 1
        await worker.stop()

    outbox.run(asyncio.wait_for(story(), 30))
    before = 2 if why == "killer" else 0
    rows = outbox.ask("select state, attempts, silences, entered, attempt, error from {jobs}")
    assert rows == [("live", before, before, 0, None, None)]
    outbox.work()
    assert (ran, outbox.job().state, outbox.job().attempts) == ([], "dead", before)


@pytest.mark.parametrize("missing", ["what was found", "its thread", "the keeper's thread"])
def test_what_fails_before_the_functions_first_line_is_no_attempt_of_it(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """It has one attempt, and that is the function's own."""
    ran: list[int] = []

    def charge(job: Any, _payload: Any, *, found: Any = None) -> None:
        ran.append(job.attempts)

    outbox.idempotency.job("charge", max_attempts=1)(charge)
    outbox.place("charge")
    worker = outbox.worker()
    with monkeypatch.context() as trouble:
        if missing == "what was found":

            def away(*_: Any) -> Any:
                raise ConnectionLost("the store is away")

            trouble.setattr(outbox.idempotency.engine.resolver, "told_about", away)
        else:
            start, of = threading.Thread.start, "keeper" if "keeper" in missing else "job charge"

            def limited(thread: threading.Thread) -> None:
                if of in thread.name:
                    raise RuntimeError("can't start new thread")
                start(thread)

            trouble.setattr(threading.Thread, "start", limited)
        outbox.work(worker)
    assert (ran, outbox.job().state, outbox.job().attempts) == ([], "live", 0)
    assert outbox.ask("select sends, entered, silences from {jobs}") == [(0, 0, 0)]
    outbox.work()  # another worker: where a thread was missing, this one leaves them to others for a while
    assert (ran, outbox.job().state, outbox.job().attempts) == ([1], "done", 1)
