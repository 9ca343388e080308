"""A job has another one done, at once or later, and its own writes are as atomic as a handler's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import flask
import pytest

from samekey import Idempotency, JobContext, current_operation
from samekey.core.claim import downstream_key
from samekey.drivers.run import run
from samekey.engine.jobs import LONGEST_STEP, step_of
from samekey.errors import ConfigurationError
from samekey.workers.reaper import Reaper
from samekey.wsgi import IdempotencyMiddleware
from tests.chosen import whole
from tests.edges.callers import WsgiClient
from tests.outbox.world import NO_PAUSE, Outbox, order, tenant_of

pytestmark = whole


KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


def declare(outbox: Outbox, kind: str, name: str, function: Callable[..., Any], **options: Any) -> None:
    async def as_coroutine(job: JobContext, payload: Any) -> Any:
        return function(job, payload)

    outbox.idempotency.job(name, **options)(function if kind == "sync" else as_coroutine)


@KINDS
def test_a_job_enqueues_the_next_with_its_own_end(outbox: Outbox, kind: str) -> None:
    keys: list[tuple[str, str, Any]] = []

    def charge(job: JobContext, payload: Any) -> dict[str, bool]:
        keys.append(("charge", job.key, payload))
        job.enqueue("receipt", {"to": "ann"})
        job.enqueue("receipt", {"to": "bob"})
        if job.attempts == 1:
            raise ConnectionError("the first attempt does not count")
        return {"charged": True}

    def receipt(job: JobContext, payload: Any) -> str:
        keys.append(("receipt", job.key, payload))
        assert (job.tenant, job.attempts) == ("ann", 1)
        if payload["to"] == "ann":
            job.enqueue("receipt", {"to": "archive"})
        return "dropped"

    declare(outbox, kind, "charge", charge, backoff=NO_PAUSE)
    declare(outbox, kind, "receipt", receipt)
    outbox.place("charge", 100, key="k")
    outbox.work()
    assert [job.name for job in outbox.jobs()] == ["charge"], "a failed attempt enqueues nothing"
    outbox.work(rounds=3)
    assert {job.state for job in outbox.jobs()} == {"done"}
    assert sorted(job.answers for job in outbox.jobs()) == [0, 0, 0, 1]
    assert outbox.client("async").send(order("k")).json() == {"charged": True}
    told = {key: payload for _, key, payload in keys[2:]}
    assert sorted(payload["to"] for payload in told.values()) == ["ann", "archive", "bob"]
    assert len({key for _, key, _ in keys}) == 4, "one key for each, the same for every attempt"


@KINDS
def test_a_delay_is_kept(outbox: Outbox, kind: str) -> None:
    def remind(job: JobContext, _: Any) -> None:
        if job.attempts == 1:
            job.enqueue("later", delay=timedelta(hours=2))

    declare(outbox, kind, "remind", remind)
    declare(outbox, kind, "later", lambda job, _: None)
    outbox.place("remind")
    outbox.run(_look(outbox))
    (row,) = [job for job in outbox.jobs() if job.name == "later"]
    (created,) = outbox.ask("select created_at from {jobs} where name = 'later'")[0]
    assert row.due_at - created == 2 * 3600 * 1000
    outbox.run(_look(outbox))
    assert {job.name: job.state for job in outbox.jobs()} == {"remind": "done", "later": "live"}


async def _look(outbox: Outbox) -> None:
    worker = outbox.worker()
    await worker.run_once()
    await worker.drain()


def test_an_operation_enqueues_with_a_delay(outbox: Outbox) -> None:
    outbox.idempotency.job("charge")(lambda job, _: None)
    app = flask.Flask(__name__)

    @app.post("/orders")
    @outbox.idempotency.deferred
    def place() -> Any:
        operation = current_operation()
        operation.connection.execute("insert into orders values ('written')")
        operation.enqueue("charge", None, delay=90)
        return flask.Response("", status=202)

    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=outbox.idempotency, tenant=tenant_of
    )
    assert WsgiClient(app, outbox.threads).send(order("k")).status == 202
    (late,) = outbox.ask("select due_at - created_at from {jobs}")[0]
    assert late == 90_000


def test_a_job_that_was_put_off_for_days_is_not_given_up_before_it_is_due(outbox: Outbox) -> None:
    """Its operation has waited too long only once the job itself has."""
    outbox.idempotency.job("renewal")(lambda job, _: {"renewed": True})
    app = flask.Flask(__name__)

    @app.post("/orders")
    @outbox.idempotency.deferred
    def place() -> Any:
        operation = current_operation()
        operation.connection.execute("insert into orders values ('trial')")
        operation.enqueue("renewal", None, delay=timedelta(days=3))
        return flask.Response("", status=202)

    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=outbox.idempotency, tenant=tenant_of
    )
    client = WsgiClient(app, outbox.threads)
    assert client.send(order("k")).status == 202
    upkeep, day_ms = outbox.idempotency.engine.store.tending, 24 * 3600 * 1000

    def late() -> int:
        return run(outbox.idempotency.engine.drivers.sync, lambda: upkeep.to_time_out(timeout_ms=day_ms))

    def days_pass(days: float) -> None:
        gone = int(days * day_ms)
        outbox.ask(
            f"update {{keys}} set created_at = created_at - {gone}, last_run_at = last_run_at - {gone}, "
            f"expires_at = expires_at - {gone}"
        )
        outbox.ask(f"update {{jobs}} set created_at = created_at - {gone}, due_at = due_at - {gone}")

    reaper = Reaper(outbox.idempotency.engine)
    for _ in range(3):  # 1.2, 2.4 and 3.6 days: at the last it has been due for half a day
        days_pass(1.2)
        assert late() == 0
        outbox.run(reaper.run_once())
        assert (outbox.states(), outbox.job().state) == ([("pending", None)], "live")
        assert client.send(order("k")).status == 202
    days_pass(0.5)
    assert late() == 1
    outbox.run(reaper.run_once())
    assert (outbox.states(), outbox.job().state) == ([("completed", "timed_out")], "cancelled")


def test_what_cannot_be_enqueued_is_refused(outbox: Outbox) -> None:
    errors: list[str] = []

    def job(job: JobContext, _: Any) -> None:
        for name, delay in (("nobody", 0), ("job", -1), ("job", timedelta(days=10_000))):
            with pytest.raises(ConfigurationError) as caught:
                job.enqueue(name, delay=delay)
            errors.append(str(caught.value))

    outbox.idempotency.job("job")(job)
    outbox.place("job")
    outbox.work()
    assert ["no job 'nobody'" in errors[0], "delay" in errors[1], "delay" in errors[2]] == [True] * 3


@pytest.mark.parametrize("name", ["charge#1", "a>b"])
def test_names_that_could_share_a_key_with_another_job_are_refused(name: str) -> None:
    """The second job ``charge`` of an operation is the step ``charge#1``."""
    idempotency = Idempotency("sqlite:///:memory:")
    with pytest.raises(ConfigurationError, match="needs a name without"):
        idempotency.job(name)(lambda job, _: None)
    assert downstream_key("s", "k", "charge") != downstream_key("s", "k", "charge#1")
    idempotency.close()


# ------------------------------------------------------------------ writes that end their transaction


@KINDS
def test_a_write_that_commits_is_noticed(outbox: Outbox, kind: str) -> None:
    """Its writes may stand without the job's end: that is for an operator, and never run again."""
    runs: list[int] = []

    def write_sync(connection: Any) -> None:
        execute(connection, "insert into orders values ('escaped')")
        execute(connection, "commit")

    async def write_async(connection: Any) -> None:
        await connection.execute("insert into orders values ('escaped')")
        await connection.execute("commit")

    def execute(connection: Any, sql: str) -> None:
        if hasattr(connection, "execute"):
            connection.execute(sql)
        else:
            with connection.cursor() as cursor:
                cursor.execute(sql)

    async def job_async(job: JobContext, _: Any) -> None:
        runs.append(job.attempts)
        job.write(write_async)

    def job_sync(job: JobContext, _: Any) -> None:
        runs.append(job.attempts)
        job.write(write_sync)

    outbox.idempotency.job("job", max_attempts=3, backoff=NO_PAUSE)(
        job_async if kind == "async" else job_sync
    )
    outbox.place("job")
    outbox.work(rounds=4)
    row = outbox.job()
    escaped = "escaped" in outbox.orders()
    assert row.state == "dead", row
    # Either the lent connection refused, each time, and nothing stands; or it was found at once.
    assert runs == ([1] if escaped else [1, 2, 3]), (runs, row.error)
    assert outbox.states() == [("dead_letter", "job_failed")]


def test_a_job_may_enqueue_itself_for_ever(outbox: Outbox) -> None:
    """It polls a provider, say. What its key is made of does not grow with its history."""
    name, keys = f"poll_{'x' * 195}", list[str]()

    @outbox.idempotency.job(name, max_attempts=1)
    async def poll(job: JobContext, link: int) -> None:
        keys.append(job.key)
        job.enqueue(name, link + 1)

    outbox.place(name, 0)
    outbox.work(rounds=8)
    assert len(set(keys)) == len(keys) == 8, [job.error for job in outbox.jobs()]
    effects = "samekey.effects" if outbox.dialect == "postgres" else "samekey_effects"
    assert max(length for (length,) in outbox.ask(f"select length(step) from {effects}")) <= 255


@pytest.mark.parametrize("name", ["poll", "x" * 255, "\U0001f4b6" * 255], ids=["short", "long", "wide"])
def test_every_link_of_a_chain_has_a_step_of_its_own_that_every_store_can_keep(name: str) -> None:
    first = step_of(name, 0)
    chain, seen = [first], {first, step_of(name, 1), step_of(name, 12345)}
    for link in range(1, 400):
        for count in (0, 1, 2):
            chain.append(step_of(name, count, after=chain[link - 1]))
        seen.update(chain[-3:])
    assert len(seen) == len(chain) + 2
    assert max(len(step.encode()) for step in seen) <= LONGEST_STEP
