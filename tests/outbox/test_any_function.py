"""Whatever kind of function a user gives, and whatever it raises: it is run, and it ends nobody else."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from samekey import Executed, JobContext, OutcomeUnknown, Response
from samekey.core.record import Record
from samekey.errors import ConfigurationError, ConnectionLost
from samekey.workers import performing
from samekey.workers.reconciler import Reconciler
from tests.outbox.world import NO_PAUSE, Outbox, order


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator, which hides that what it is put on is async."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


async def paid(connection: Any) -> None:
    await connection.execute("insert into orders values ('paid')")


def test_an_async_job_behind_an_ordinary_decorator_is_run(outbox: Outbox) -> None:
    ran: list[str] = []

    @outbox.idempotency.job("charge")
    @traced
    async def charge(job: JobContext, _: Any) -> dict[str, int]:
        ran.append("charge")
        job.write(paid)
        job.enqueue("receipt")
        job.enqueue("forgotten")
        return {"charged": 1}

    class Receipt:
        async def __call__(self, job: JobContext, _: Any) -> None:
            ran.append("receipt")

    async def forgotten(job: JobContext, _: Any) -> Any:
        return receipt(job, _)  # without its await

    receipt = Receipt()
    outbox.idempotency.job("receipt")(receipt)
    outbox.idempotency.job("forgotten")(forgotten)
    outbox.place("charge", key="k")
    outbox.work(rounds=2)
    assert {(job.state, job.attempts, job.error) for job in outbox.jobs()} == {("done", 1, None)}
    assert ran == ["charge", "receipt", "receipt"]
    assert outbox.orders() == ["written", "paid"]
    assert outbox.client("async").send(order("k")).json() == {"charged": 1}


def test_an_async_write_of_a_sync_job_is_never_lost_in_silence(outbox: Outbox) -> None:
    ran: list[int] = []

    @outbox.idempotency.job("charge", backoff=NO_PAUSE)
    def charge(job: JobContext, _: Any) -> None:
        ran.append(job.attempts)
        job.write(paid)

    outbox.place("charge")
    outbox.work(rounds=3)
    dead = outbox.job()
    assert (dead.state, ran, outbox.orders()) == ("dead", [1], ["written"])
    assert dead.error is not None and "its write 'paid' is async and the job is not" in dead.error


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_write_ends_neither_the_loop_nor_its_attempt_in_silence(
    outbox: Outbox, kind: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01,))

    def leave(_: Any) -> None:
        raise error

    async def leave_async(_: Any) -> None:
        raise error

    def charge(job: JobContext, _: Any) -> None:
        job.write(leave)

    async def charge_async(job: JobContext, _: Any) -> None:
        job.write(leave_async)

    outbox.idempotency.job("charge", max_attempts=2, backoff=NO_PAUSE)(
        charge if kind == "sync" else charge_async
    )
    outbox.place("charge")
    outbox.work(rounds=2)
    dead = outbox.job()
    assert (dead.state, dead.attempts) == ("dead", 2)
    assert f"The job was done, but that could not be recorded: Aborted: It raised {error.__name__}" in str(
        dead.error
    )


def test_a_lookup_whose_coroutine_exits_is_asked_again(outbox: Outbox) -> None:
    idempotency, asked = outbox.idempotency, []

    async def find(record: Record) -> Executed:
        asked.append(record.key)
        if len(asked) == 1:
            raise SystemExit(3)
        return Executed({"found": 1})

    idempotency.lookup()(traced(find))

    def lost() -> None:
        raise OutcomeUnknown("lost")

    async def story() -> list[str]:
        with pytest.raises(OutcomeUnknown):
            await idempotency.once_async(tenant="t", key="k", run=lost)
        reconciler, told = Reconciler(idempotency.engine), []
        for _ in range(2):
            outbox.ask("update {keys} set reconcile_after = 0 where state = 'unknown'")
            told += [one.why for one in await reconciler.look()]
        return told

    first, second = outbox.run(story())
    assert "It raised SystemExit" in first
    assert (second, asked) == ("the lookup said Executed", ["k", "k"])


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_a_write_enqueues_is_enqueued_once_however_often_it_is_recorded(
    outbox: Outbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[str] = []
    lost = [ConnectionLost("the server was restarted")] * 2

    def enqueue(job: JobContext) -> None:
        job.enqueue("charge", {"row": 1})
        job.write(lambda _: None)
        if lost:
            raise lost.pop()

    def placed(job: JobContext, _: Any) -> None:
        def write(connection: Any) -> None:
            connection.execute("insert into orders values ('row')")
            enqueue(job)

        job.write(write)

    async def placed_async(job: JobContext, _: Any) -> None:
        async def write(connection: Any) -> None:
            await connection.execute("insert into orders values ('row')")
            enqueue(job)

        job.write(write)

    monkeypatch.setattr(performing, "SETTLE_PAUSES", (0.01, 0.01, 0.01))
    outbox.idempotency.job("order")(placed if kind == "sync" else placed_async)
    outbox.idempotency.job("charge", timeout=timedelta(seconds=30))(lambda job, _: charged.append(job.key))
    outbox.place("order")
    outbox.work(rounds=2)
    assert not lost
    assert sorted(job.name for job in outbox.jobs()) == ["charge", "order"]
    assert (len(charged), outbox.orders()) == (1, ["written", "row"])


@pytest.mark.parametrize(
    "result",
    [
        Response(200, "\ud800"),
        Response(200, 1, {"x-name": "\u2192"}),
        Response(99),
        Response("201"),  # type: ignore[arg-type]
        Response(200, 1, {"x": 1}),  # type: ignore[dict-item]
        Response(200, 1, {"x": "a\r\nset-cookie: b"}),
    ],
    ids=["half a character", "header text", "status", "status text", "header number", "header break"],
)
def test_a_result_that_cannot_be_kept_never_repeats_the_effect(outbox: Outbox, result: Response) -> None:
    ran: list[int] = []

    @outbox.idempotency.job("charge", backoff=NO_PAUSE)
    def charge(job: JobContext, _: Any) -> Response:
        ran.append(job.attempts)
        return result

    outbox.place("charge")
    outbox.work(rounds=3)
    assert (outbox.job().state, ran) == ("dead", [1])
    assert "cannot be kept" in (outbox.job().error or "")


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class WordlessExit(BaseException):
    __str__ = Wordless.__str__


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("error", [Wordless, WordlessExit])
def test_an_error_that_cannot_be_told_is_a_failure_like_any_other(
    outbox: Outbox, kind: str, error: type[BaseException]
) -> None:
    def charge(job: JobContext, _: Any) -> None:
        raise error

    async def charge_async(job: JobContext, _: Any) -> None:
        raise error

    function = charge if kind == "sync" else charge_async
    outbox.idempotency.job("charge", max_attempts=2, timeout=5, backoff=NO_PAUSE)(function)
    outbox.place("charge")
    worker = outbox.work(rounds=2)
    dead = outbox.job()
    assert (dead.state, dead.attempts) == ("dead", 2)
    assert f"{error.__name__} (which cannot be told" in (dead.error or "")
    assert not worker.slots.apart.hanging


def test_a_generator_is_no_function_of_a_job(outbox: Outbox) -> None:
    """It would be done without a line of it having run."""

    def mail(_job: Any, _payload: Any) -> Any:
        yield 1

    async def stream(_job: Any, _payload: Any) -> Any:
        yield 1

    for function in (mail, stream, functools.partial(mail, 1)):
        with pytest.raises(ConfigurationError, match="is a generator"):
            outbox.idempotency.job("mail")(function)
