"""The late result of a job is heard: another worker has taken it meanwhile, or it is dead."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Executed, Resolution, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.core.record import Answer
from samekey.core.states import State
from samekey.stores.sql.effects import Effects
from samekey.stores.sql.jobs import Job
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.operator import Operator
from samekey.workers.outbox import OutboxWorker
from tests.evidence.conftest import HOUR, Node
from tests.taking import begin


class Orders:
    """A deferred order whose job is paused in its function."""

    def __init__(
        self,
        node: Node,
        *,
        fails: bool = False,
        more: bool = True,
        write_enqueues: bool = False,
        refused: bool = False,
    ) -> None:
        self.node, self.runs, self.paid = node, 0, 0
        self.entered, self.go_on = threading.Event(), threading.Event()
        idempotency = node.idempotency

        @idempotency.deferred
        async def order(_: Request) -> JSONResponse:
            await current_operation().enqueue("charge", {})
            return JSONResponse({}, 202)

        @idempotency.job("charge", source="cards")
        async def charge(job: Any, _: Any) -> Response:
            self.runs += 1
            self.entered.set()
            await asyncio.to_thread(self.go_on.wait, 60)
            job.provider_id = "ch_1"
            if fails:
                raise TimeoutError
            if refused:
                return Response(402, {"declined": True})
            if write_enqueues:
                job.write(self.mark_paid, job)
            elif more:
                job.write(self.mark_paid)
                job.enqueue("receipt", {})
            return Response(201, {"id": "ch_1"})

        idempotency.job("receipt")(lambda _job, _payload: None)

        self.app = Starlette(routes=[Route("/order", order, methods=["POST"])])
        self.app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda _: "acme")
        assert self.post()[0] == 202
        self.worker = threading.Thread(target=lambda: asyncio.run(self._work()))
        self.worker.start()
        assert self.entered.wait(60)

    async def _work(self) -> None:
        try:
            worker = OutboxWorker(self.node.idempotency.engine)
            await worker.run_once()
            await worker.drain()
        finally:
            await self.node.idempotency.engine.drivers.aio.close()

    def post(self) -> tuple[int, Any]:
        with TestClient(self.app) as client:
            answer = client.post("/order", json={}, headers={"Idempotency-Key": "k"})
            return answer.status_code, answer.json()

    async def mark_paid(self, _connection: Any, job: Any = None) -> None:
        self.paid += 1
        if job is not None:
            job.enqueue("receipt", {})

    def jobs(self) -> dict[str, str]:
        """The state of each."""
        return dict(self.all_jobs())

    def all_jobs(self) -> list[tuple[str, str]]:
        operator, record = Operator(SqlKeys(self.node.idempotency.engine.queries)), self.node.record("k")
        return [(job.name, job.state) for job in self.node.run(lambda: operator.jobs_of(record.id))]

    def events(self) -> list[Any]:
        """What waits for somebody."""
        queries, record = self.node.idempotency.engine.queries, self.node.record("k")
        effects = Effects(Operator(SqlKeys(queries)), queries)
        return self.node.run(lambda: effects.unsettled(record.id))

    def receipts(self) -> int:
        return int(self.jobs().get("receipt") == "live")

    def taken_over(self) -> Job:
        """Its lease ends, and another worker has it."""
        outbox, later = self.node.idempotency.engine.outbox, self.node.clock() + HOUR
        (job,) = self.node.run(lambda: begin(outbox, now=later))
        return job

    def bury(self, job: Job) -> None:
        outbox = self.node.idempotency.engine.outbox
        resolver = self.node.idempotency.engine.resolver
        self.node.run(lambda: outbox.bury(job, error="it never answered"))
        self.node.run(lambda: resolver.apply_waiting(job.operation_id))

    def finish(self) -> None:
        self.go_on.set()
        self.worker.join(60)


@pytest.mark.parametrize("more", [True, False], ids=["with writes", "without"])
@pytest.mark.parametrize("dead_first", [True, False], ids=["dead before", "dead after"])
def test_the_late_success_of_a_job_is_its_end_once_it_is_dead(
    sql_node: Node, dead_first: bool, more: bool
) -> None:
    orders = Orders(sql_node, more=more)
    other = orders.taken_over()
    if dead_first:
        orders.bury(other)
    orders.finish()
    if not dead_first:
        assert sql_node.state("k") is State.PENDING  # the other run may say more
        orders.bury(other)
    if more and not dead_first:
        # Nobody else makes its writes and the jobs after it, so its word alone is not its end.
        assert sql_node.state("k") is State.DEAD_LETTER and orders.jobs()["charge"] == "dead"
        return
    assert sql_node.state("k") is State.COMPLETED
    assert orders.post() == (201, {"id": "ch_1"})
    assert orders.runs == 1
    if more:
        assert orders.paid and orders.receipts() == 1, "its writes, and the jobs after it"


def test_the_late_success_of_a_job_that_waits_for_its_next_try_is_its_end(sql_node: Node) -> None:
    """Nobody runs it: with its writes and the jobs after it, and without another call."""
    orders = Orders(sql_node)
    other, outbox = orders.taken_over(), sql_node.idempotency.engine.outbox
    sql_node.run(lambda: outbox.retry(other, pause_ms=60_000, error="the provider is away"))
    orders.finish()
    assert sql_node.state("k") is State.COMPLETED
    assert orders.post() == (201, {"id": "ch_1"})
    assert orders.runs == 1 and orders.paid and orders.receipts() == 1
    assert orders.jobs()["charge"] == "done"


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_what_a_late_run_has_made_finds_its_operation(sql_node: Node, fails: bool) -> None:
    orders = Orders(sql_node, fails=fails)
    other = orders.taken_over()
    orders.finish()
    said = Executed(Response(201, {"id": "ch_1"}), "ch_1")
    assert sql_node.tell(said, tenant="acme", provider_id="ch_1") is Resolution.KEPT
    orders.bury(other)
    assert sql_node.state("k") is State.COMPLETED


def test_what_a_write_enqueues_is_enqueued_once(sql_node: Node) -> None:
    """The writes are run by a try that comes too late, and again by the one that counts."""
    orders = Orders(sql_node, write_enqueues=True)
    orders.bury(orders.taken_over())
    orders.finish()
    names = [name for name, _ in orders.all_jobs()]
    assert sorted(names) == ["charge", "receipt"]


def test_a_late_refusal_says_nothing_of_what_was_sent_since(sql_node: Node) -> None:
    orders = Orders(sql_node, refused=True)
    orders.bury(orders.taken_over())
    orders.finish()
    assert sql_node.state("k") is State.DEAD_LETTER and orders.jobs()["charge"] == "dead"


def test_a_late_success_beside_one_that_counts_asks_nobody(sql_node: Node) -> None:
    orders = Orders(sql_node)
    other, outbox = orders.taken_over(), sql_node.idempotency.engine.outbox
    sql_node.run(lambda: outbox.finish(other, Answer(201, (), b"{}"), "ch_1"))
    orders.finish()
    assert sql_node.state("k") is State.COMPLETED
    assert orders.events() == []


def test_a_job_that_was_found_done_gets_the_writes_that_its_worker_still_has(sql_node: Node) -> None:
    orders = Orders(sql_node)
    orders.bury(orders.taken_over())
    said = Executed(Response(201, {"id": "ch_1"}), "ch_1")
    about = sql_node.record("k").downstream_key("charge")
    assert sql_node.tell(said, tenant="acme", downstream_key=about) is Resolution.RESOLVED
    assert orders.jobs() == {"charge": "done"}
    orders.finish()
    assert sql_node.state("k") is State.COMPLETED
    assert orders.paid and orders.jobs() == {"charge": "done", "receipt": "live"}
