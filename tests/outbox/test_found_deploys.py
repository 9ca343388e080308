"""A deploy between a job's death and the provider's word: what counts is the code that is there then."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from samekey import Executed, Resolution, Response
from samekey.drivers.run import run
from samekey.engine.jobs import JobContext
from samekey.errors import ConfigurationError
from samekey.stores.protocols import Actor
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.world import NO_PAUSE, Outbox


async def mark_paid(connection: Any) -> None:
    await connection.execute("insert into orders values ('paid')")


class Provider:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.loses_replies = True

    def charge(self, key: str) -> None:
        self.calls.append(key)
        if self.loses_replies:
            raise ConnectionError("the reply is lost")


def that_takes_what_was_found(outbox: Outbox, provider: Provider) -> Outbox:
    @outbox.idempotency.job("charge", max_attempts=1, backoff=NO_PAUSE, source="acme")
    async def charge(job: JobContext, _payload: Any, *, found: Any = None) -> Response:
        if found is None:
            provider.charge(job.key)
        job.write(mark_paid)
        return Response(201, {})

    return outbox


def that_does_not(outbox: Outbox, provider: Provider) -> Outbox:
    @outbox.idempotency.job("charge", max_attempts=1, backoff=NO_PAUSE, source="acme")
    async def charge(job: JobContext, _payload: Any) -> Response:
        provider.charge(job.key)
        job.write(mark_paid)
        return Response(201, {})

    return outbox


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def nodes(
    request: pytest.FixtureRequest, loop: LoopThread, threads: ThreadPoolExecutor
) -> Iterator[tuple[Outbox, Outbox]]:
    url = request.getfixturevalue(f"{request.param}_url")
    with closing(Outbox(url, loop, threads)) as before, closing(Outbox(url, loop, threads)) as after:
        yield before, after


def tell(outbox: Outbox, key: str) -> Resolution:
    told = outbox.idempotency.resolve_async(
        Executed(Response(201, {}), "ch_1"),
        source="acme",
        event_id="e1",
        tenant="ann",
        occurred_at=datetime.now(UTC),
        verify=lambda: True,
        downstream_key=key,
    )
    return outbox.run(told)


def test_a_function_that_takes_what_was_found_by_now_goes_on_with_it(nodes: tuple[Outbox, Outbox]) -> None:
    provider = Provider()
    before, after = that_does_not(nodes[0], provider), that_takes_what_was_found(nodes[1], provider)
    before.place("charge", {}, key="k")
    before.work()
    provider.loses_replies = False
    assert tell(after, provider.calls[0]) is Resolution.RESOLVED
    after.work()
    assert after.orders() == ["written", "paid"] and len(provider.calls) == 1
    assert [job.state for job in after.jobs()] == ["done"]


def test_a_function_that_does_not_take_it_any_more_calls_nobody(
    nodes: tuple[Outbox, Outbox], caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    before, after = that_takes_what_was_found(nodes[0], provider), that_does_not(nodes[1], provider)
    before.place("charge", {}, key="k")
    before.work()
    provider.loses_replies = False
    assert tell(after, provider.calls[0]) is Resolution.RESOLVED
    after.work(rounds=3)
    assert len(provider.calls) == 1, "the provider may not know the key any more"
    assert after.job().state == "live" and after.job().attempts == 0
    assert "does not take that" in caplog.text
    before.make_due()
    before.work()
    assert before.orders() == ["written", "paid"] and len(provider.calls) == 1


def rolled_back_for_good(nodes: tuple[Outbox, Outbox], provider: Provider) -> Outbox:
    """Found done a day ago and more, and nobody takes that any more."""
    before, after = that_takes_what_was_found(nodes[0], provider), that_does_not(nodes[1], provider)
    before.place("charge", {}, key="k")
    before.work()
    provider.loses_replies = False
    assert tell(after, provider.calls[0]) is Resolution.RESOLVED
    after.work()
    assert after.job().state == "live"
    evidence = "samekey.evidence" if after.dialect == "postgres" else "samekey_evidence"
    after.ask(f"update {evidence} set received_at = received_at - ?", 25 * 3_600_000)
    after.work()
    assert (after.job().state, after.states()) == ("dead", [("dead_letter", "job_failed")])
    assert "samekey keys resolve --executed" in str(after.job().error) and len(provider.calls) == 1
    return after


def test_what_nobody_takes_for_a_day_is_an_operators_to_end(nodes: tuple[Outbox, Outbox]) -> None:
    after = rolled_back_for_good(nodes, Provider())
    engine = after.idempotency.engine
    (record,) = run(engine.drivers.sync, engine.store.finding.find)
    finding = Executed(Response(201, {"charge": "ch_1"}), "ch_1")
    settle = lambda: engine.resolver.apply(record, finding, Actor("ann", "seen"))  # noqa: E731
    assert run(engine.drivers.sync, settle)
    assert [job.state for job in after.jobs()] == ["done"] and after.states()[0][0] == "completed"


def test_or_goes_on_with_code_that_takes_it(nodes: tuple[Outbox, Outbox]) -> None:
    provider = Provider()
    after = rolled_back_for_good(nodes, provider)
    engine, before = after.idempotency.engine, nodes[0]
    retry = engine.store.tables.operator.retry_dead_job
    assert run(engine.drivers.sync, lambda: retry(after.job().id, Actor("ann", "mended")))
    before.work()
    assert before.orders() == ["written", "paid"] and len(provider.calls) == 1


def test_a_decorator_that_does_not_pass_found_on_is_refused(outbox: Outbox) -> None:
    async def charge(job: Any, payload: Any, found: Any = None) -> None: ...

    @functools.wraps(charge)
    async def narrow(job: Any, payload: Any) -> None: ...

    @functools.wraps(charge)
    async def wide(*args: Any, **named: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="decorator"):
        outbox.idempotency.job("narrow")(narrow)
    outbox.idempotency.job("wide")(wide)
    assert outbox.idempotency.engine.jobs.takers() == ["wide"]
