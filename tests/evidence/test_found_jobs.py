"""What was found out about a job is its result, and its function goes on with that: it makes its writes and
enqueues the jobs after it, and calls nobody a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey import Declined, Evidence, Executed, JobContext, Resolution, Response
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.stores.protocols import Actor
from tests.chosen import stores
from tests.evidence.conftest import SQL
from tests.outbox.conftest import loop, threads
from tests.outbox.world import NO_PAUSE, Act, Kind, Outbox, order

__all__ = ["loop", "threads"]

PAID = Executed(Response(201, {"id": "ch_1"}), "ch_1")


@pytest.fixture(params=stores(*SQL))
def outbox(request: pytest.FixtureRequest, loop: Any, threads: Any) -> Iterator[Outbox]:
    made = Outbox(request.getfixturevalue(f"{request.param}_url"), loop, threads)
    yield made
    made.close()


class Charges:
    """A job that charges, marks its order as paid and has it shipped; the provider's first answers are
    lost."""

    def __init__(self, outbox: Outbox, kind: Kind, *, max_attempts: int = 1, lost: int = 1) -> None:
        self.outbox, self.calls, self.shipped = outbox, 0, 0
        self.key, self.lost, self.breaks = "", lost, 0
        self.meanwhile: Callable[[], None] = lambda: None

        def charge(job: JobContext, _payload: Any, found: Executed | Declined | None = None) -> Any:
            self.key = job.key
            if found is None:
                self.calls += 1
                if self.calls <= self.lost:
                    raise ConnectionError("the answer was lost")
                found = PAID
            if self.breaks:
                self.breaks -= 1
                raise RuntimeError("a bug beside the call")
            if isinstance(found, Declined):
                job.write(self.mark_async if kind == "async" else self.mark, "declined")
                return found.response
            job.provider_id = found.provider_id
            job.write(self.mark_async if kind == "async" else self.mark, "paid")
            job.enqueue("ship")
            self.meanwhile()
            return found.response

        async def charge_async(job: JobContext, payload: Any, *, found: Any = None) -> Any:
            return charge(job, payload, found)

        def ship(_job: JobContext, _payload: Any) -> None:
            self.shipped += 1

        function = charge if kind == "sync" else charge_async
        outbox.idempotency.job("charge", max_attempts=max_attempts, backoff=NO_PAUSE, source="cards")(
            function
        )
        outbox.idempotency.job("ship")(ship)

    def mark(self, connection: Any, note: str) -> None:
        connection.execute(f"insert into orders values ('{note}')")

    async def mark_async(self, connection: Any, note: str) -> None:
        await connection.execute(f"insert into orders values ('{note}')")

    def told(self, evidence: Evidence, event_id: str = "e1") -> Resolution:
        later = datetime.now(UTC) + timedelta(seconds=30)
        return self.outbox.idempotency.resolve(
            evidence,
            source="cards",
            event_id=event_id,
            tenant="ann",
            occurred_at=later,
            downstream_key=self.key,
            verify=lambda: True,
        )

    def end(self) -> tuple[int, Any, list[str], int, int]:
        """The answer, the books, how often it was shipped and how often the provider was called."""
        self.outbox.work(rounds=2)
        got = self.outbox.client("async").send(order("k"))
        return got.status, got.json(), sorted(self.outbox.orders()), self.shipped, self.calls


DONE = (201, {"id": "ch_1"}, ["paid", "written"], 1, 1)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_dead_job_that_was_found_done_makes_its_writes_and_calls_nobody(outbox: Outbox, kind: Kind) -> None:
    charges = Charges(outbox, kind)
    outbox.place("charge", key="k")
    outbox.work()
    assert outbox.states() == [("dead_letter", "job_failed")]
    assert charges.told(PAID) is Resolution.RESOLVED
    assert outbox.states() == [("pending", None)]
    assert charges.told(PAID) is Resolution.DUPLICATE
    assert charges.end() == DONE


def test_an_operators_word_has_a_dead_job_go_on_too(outbox: Outbox) -> None:
    """Whoever found it out: the writes and the jobs after it are made, and nobody is called."""
    charges = Charges(outbox, "async")
    operation_id = outbox.place("charge")
    outbox.work()
    engine = outbox.idempotency.engine
    (_, record) = run(engine.drivers.sync, lambda: engine.keys.read_by_id(operation_id)) or (0, None)
    assert record is not None and record.state is State.DEAD_LETTER
    word = Actor("ann", "found at the provider")
    assert run(engine.drivers.sync, lambda: engine.resolver.apply(record, PAID, word))
    assert outbox.states() == [("pending", None)]
    outbox.work(rounds=2)
    assert (charges.calls, charges.shipped, outbox.states()) == (1, 1, [("completed", None)])
    assert "paid" in outbox.orders()


def test_a_dead_job_beside_the_one_that_answers_goes_on_too(outbox: Outbox) -> None:
    charges = Charges(outbox, "async")
    outbox.idempotency.job("answer")(lambda _job, _payload: Response(201, {"id": "ch_1"}))
    got = outbox.client("async", Act(jobs=(("answer", None), ("charge", None)))).send(order("k"))
    assert got.status == 202
    outbox.work()
    assert outbox.states() == [("completed", None)]
    assert charges.told(PAID) is Resolution.RESOLVED
    assert charges.end() == DONE


def test_a_refusal_that_was_found_is_for_its_function_to_tell(outbox: Outbox) -> None:
    charges = Charges(outbox, "async")
    outbox.place("charge", key="k")
    outbox.work()
    assert charges.told(Declined(Response(402, {"declined": True}))) is Resolution.RESOLVED
    assert charges.end() == (402, {"declined": True}, ["declined", "written"], 0, 1)


def test_a_job_that_waits_for_its_next_try_is_told_too(outbox: Outbox) -> None:
    """A yes that came early waits for it; a provider that knows no keys is not called a second time."""
    charges = Charges(outbox, "async", max_attempts=5)
    outbox.place("charge", key="k")
    outbox.work()
    assert charges.told(PAID) is Resolution.KEPT
    assert charges.end() == DONE


def test_a_bug_beside_the_call_never_has_the_call_made_again(outbox: Outbox) -> None:
    """It is a dead letter again; an operator's retry goes on from what was found."""
    charges = Charges(outbox, "async")
    outbox.place("charge", key="k")
    outbox.work()
    charges.breaks = 1
    assert charges.told(PAID) is Resolution.RESOLVED
    outbox.work()
    assert outbox.states() == [("dead_letter", "job_failed")]
    job_id, engine = outbox.job().id, outbox.idempotency.engine
    finding: Any = engine.store.finding
    assert run(engine.drivers.sync, lambda: finding.retry_dead_job(job_id, Actor("ann", "mended")))
    assert charges.end() == DONE


def test_a_worker_that_still_runs_it_ends_it_once(outbox: Outbox) -> None:
    """It was overtaken and its job is dead; the event comes, and then its own end."""
    charges = Charges(outbox, "async", lost=0)
    outbox.place("charge", key="k")
    heard: list[Resolution] = []

    def give_up_and_tell() -> None:
        outbox.ask("update {jobs} set state = 'dead', attempt = 'another', done_at = run_at")
        outbox.ask("update {keys} set state = 'dead_letter'")
        heard.append(charges.told(PAID))

    charges.meanwhile = give_up_and_tell
    outbox.work()
    assert heard == [Resolution.RESOLVED]
    assert charges.end() == DONE


def test_a_payload_that_is_called_found_is_a_payload(outbox: Outbox) -> None:
    seen: list[Any] = []

    @outbox.idempotency.job("lost_and_found", max_attempts=1)
    def lost_and_found(_job: JobContext, found: Any) -> None:
        seen.append(found)

    outbox.place("lost_and_found", {"item": "umbrella"})
    outbox.work()
    assert (seen, outbox.job().state) == ([{"item": "umbrella"}], "done")
