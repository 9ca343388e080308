"""Deferred operations, seen from outside: 202 until it is done, the final answer ever after."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from samekey import ConfigurationError, JobContext, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import NothingEnqueued, NotSerialisable, StepNotAwaited
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient
from tests.outbox.world import NO_PAUSE, Act, Kind, Outbox, assert_accepted, order, status_of

pytestmark = pytest.mark.parametrize("kind", ["async", "sync"])


def declare_charge(outbox: Outbox, kind: Kind, result: Any = None) -> list[JobContext]:
    """A job ``charge`` of that kind; gives the list of its runs."""
    runs: list[JobContext] = []
    answer = Response(201, {"charged": True}, {"X-Charge": "ch_1"}) if result is None else result

    async def charge_async(job: JobContext, payload: Any) -> Any:
        return charge(job, payload)

    def charge(job: JobContext, payload: Any) -> Any:
        runs.append(job)
        job.provider_id = "ch_1"
        assert payload == {"cents": 100}
        return answer

    outbox.idempotency.job("charge")(charge if kind == "sync" else charge_async)
    return runs


def test_the_row_and_the_job_commit_together_and_the_answer_comes_later(outbox: Outbox, kind: Kind) -> None:
    runs = declare_charge(outbox, kind)
    client = outbox.client(kind)
    first = client.send(order("k"))
    operation = assert_accepted(first)
    assert first.json() == {"id": operation, "state": "pending"}
    assert outbox.orders() == ["written"]
    assert (outbox.job().state, outbox.job().answers) == ("live", 1)

    again = client.send(order("k"))
    assert_accepted(again, operation)
    assert again.json() == first.json()
    status = client.send(status_of(first.header("location")))
    assert (status.status, status.json()["state"], status.json()["answer"]) == (200, "pending", None)
    assert int(status.header("retry-after") or 0) >= 1
    assert len(outbox.jobs()) == 1

    outbox.work()
    (run,) = runs
    assert (run.operation_id, run.tenant, run.attempts) == (operation, "ann", 1)
    finals = [client.send(order("k")) for _ in range(2)]
    for final in finals:
        assert (final.status, final.body, final.replayed) == (201, b'{"charged": true}', True)
        assert (final.header("x-charge"), final.header("content-type")) == ("ch_1", "application/json")
        assert final.content == finals[0].content
    settled = client.send(status_of(first.header("location"))).json()
    assert settled["state"] == "completed"
    assert settled["answer"]["status"] == 201
    assert settled["answer"]["body"] == '{"charged": true}'
    assert ["x-charge", "ch_1"] in settled["answer"]["headers"]
    assert outbox.job().state == "done"
    record = outbox.idempotency.engine.find_by_provider_id("ch_1", tenant="ann")
    assert record is not None
    assert record.id == operation
    assert outbox.idempotency.engine.find_by_downstream_key(run.key) == record
    assert (len(runs), outbox.orders()) == (1, ["written"])


def test_clients_see_that_a_worker_runs_it(outbox: Outbox, kind: Kind) -> None:
    """Seen from inside the job: a retry and the status say that it is in progress; before and after a run
    that is tried again they say that it waits."""
    client = outbox.client(kind)
    seen: list[Any] = []

    def look() -> None:
        again = client.send(order("k"))
        operation = assert_accepted(again)
        assert again.json()["id"] == operation
        shown = client.send(status_of(again.header("location")))
        assert int(shown.header("retry-after") or 0) >= 1 and shown.json()["answer"] is None
        seen.append((again.json()["state"], shown.json()["state"]))

    def charge(job: JobContext, _payload: Any) -> Any:
        look()
        if job.attempts == 1:
            raise RuntimeError("try again")
        return Response(201, {})

    async def charge_async(job: JobContext, payload: Any) -> Any:
        return await asyncio.to_thread(charge, job, payload)

    outbox.idempotency.job("charge", backoff=NO_PAUSE)(charge if kind == "sync" else charge_async)
    assert_accepted(client.send(order("k")))
    look()
    outbox.work()
    look()
    outbox.work()
    waits, runs = ("pending", "pending"), ("in_progress", "in_progress")
    assert seen == [waits, runs, waits, runs]
    assert client.send(order("k")).status == 201


def test_the_final_answer_is_kept_byte_for_byte(outbox: Outbox, kind: Kind) -> None:
    body = bytes(range(256))
    declare_charge(outbox, kind, Response(203, body, {"Content-Type": "image/x-odd", "Set-Cookie": "a=b"}))
    client = outbox.client(kind)
    client.send(order("k"))
    outbox.work()
    final = client.send(order("k"))
    assert (final.status, final.body, final.header("content-type")) == (203, body, "image/x-odd")
    assert final.header("set-cookie") is None


def test_another_request_with_the_key_is_refused_before_and_after(outbox: Outbox, kind: Kind) -> None:
    declare_charge(outbox, kind)
    client = outbox.client(kind)
    client.send(order("k"))
    other = order("k", body={"item": "tea"})
    assert (client.send(other).status, client.send(other).code) == (422, "reused")
    outbox.work()
    assert (client.send(other).status, client.send(other).code) == (422, "reused")


@pytest.mark.parametrize("act", [Act(raises=lambda: ValueError("no")), Act(status=500), Act(status=503)])
def test_nothing_stands_when_the_handler_fails(outbox: Outbox, kind: Kind, act: Act) -> None:
    runs = declare_charge(outbox, kind)
    failed = outbox.client(kind, act).send(order("k"))
    assert failed.status >= 500
    assert (outbox.orders(), outbox.jobs()) == ([], [])
    # And a retry runs, with a handler that has recovered.
    client = outbox.client(kind)
    assert_accepted(client.send(order("k")))
    outbox.work()
    assert client.send(order("k")).status == 201
    assert (len(runs), outbox.orders()) == (1, ["written"])


def test_a_refusal_is_rolled_back_and_remembered(outbox: Outbox, kind: Kind) -> None:
    declare_charge(outbox, kind)
    refused = outbox.client(kind, Act(status=409, body=b"sold out")).send(order("k"))
    assert (refused.status, refused.body) == (409, b"sold out")
    assert (outbox.orders(), outbox.jobs()) == ([], [])
    again = outbox.client(kind).send(order("k"))
    assert (again.status, again.body, again.replayed) == (409, b"sold out", True)
    assert outbox.jobs() == []


def test_a_refusal_by_authorisation_is_not_remembered(outbox: Outbox, kind: Kind) -> None:
    declare_charge(outbox, kind)
    assert outbox.client(kind, Act(status=403)).send(order("k")).status == 403
    assert (outbox.orders(), outbox.jobs()) == ([], [])
    assert_accepted(outbox.client(kind).send(order("k")))


def test_a_handler_that_enqueues_nothing_is_told_so(outbox: Outbox, kind: Kind) -> None:
    got = outbox.client(kind, Act(jobs=())).send(order("k"))
    assert got.status == 500
    assert isinstance(got.error, NothingEnqueued)
    assert "op.enqueue" in str(got.error)
    assert outbox.orders() == []
    assert outbox.states() == []


@pytest.mark.parametrize("before", [0, 1])
def test_an_enqueue_that_was_not_awaited_is_noticed(outbox: Outbox, kind: Kind, before: int) -> None:
    """Nothing stands, whether or not another job had been written."""
    runs = declare_charge(outbox, kind)
    if kind == "sync":
        assert_accepted(outbox.client(kind).send(order("k")))  # nothing to await
        return
    outbox.idempotency.job("receipt")(print)

    @outbox.idempotency.deferred
    async def place(_request: Any) -> Any:
        operation = current_operation()
        await operation.connection.execute("insert into orders values ('written')")
        for _ in range(before):
            await operation.enqueue("charge", {"cents": 100})
        operation.enqueue("receipt")
        return PlainTextResponse("accepted", 202)

    app = Starlette(routes=[Route("/orders", place, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
    got = AsgiClient(app, outbox.loop).send(order("k"))
    assert got.status == 500 and isinstance(got.error, StepNotAwaited)
    assert "op.enqueue('receipt') was never awaited" in str(got.error)
    assert (outbox.orders(), outbox.jobs(), runs) == ([], [], [])
    assert_accepted(outbox.client(kind).send(order("k")))


def test_no_two_jobs_share_a_downstream_key(outbox: Outbox, kind: Kind) -> None:
    """The second job of a name is told apart from any job of another name."""
    with pytest.raises(ConfigurationError, match="needs a name without #"):
        outbox.idempotency.job("charge#1")(print)

    @outbox.idempotency.deferred
    async def place(_request: Any) -> Any:
        with pytest.raises(ConfigurationError, match="needs a name without #"):
            current_operation().downstream_key("charge#1")
        return PlainTextResponse("refused", 400)

    app = Starlette(routes=[Route("/orders", place, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
    assert AsgiClient(app, outbox.loop).send(order("k")).status == 400


@pytest.mark.parametrize("wrong", [7, "", "nul\0", "x" * 256, b"ch_1"])
def test_a_providers_id_that_cannot_be_kept_is_refused_where_it_is_set(
    outbox: Outbox, kind: Kind, wrong: Any
) -> None:
    refusals: list[str] = []

    def charge(job: JobContext, payload: Any) -> Any:
        try:
            job.provider_id = wrong
        except ConfigurationError as error:
            refusals.append(str(error))
        job.provider_id = "ch_1"
        return Response(201)

    outbox.idempotency.job("charge")(charge)
    client = outbox.client(kind)
    client.send(order("k"))
    outbox.work()
    assert client.send(order("k")).status == 201
    assert len(refusals) == 1 and refusals[0].startswith("provider_id must")
    assert outbox.job().provider_id == "ch_1"


def test_an_unknown_job_is_a_clear_error_and_nothing_is_written(outbox: Outbox, kind: Kind) -> None:
    declare_charge(outbox, kind)
    got = outbox.client(kind, Act(jobs=(("charge", {"cents": 100}), ("chrage", 1)))).send(order("k"))
    assert isinstance(got.error, ConfigurationError)
    assert "'chrage'" in str(got.error) and "charge" in str(got.error)
    assert (outbox.orders(), outbox.jobs(), outbox.states()) == ([], [], [])


@pytest.mark.parametrize("payload", [object(), {1: "number as a key"}, (1, 2), float("nan"), {"a": {1, 2}}])
def test_a_payload_that_cannot_be_stored_is_a_clear_error(outbox: Outbox, kind: Kind, payload: Any) -> None:
    declare_charge(outbox, kind)
    got = outbox.client(kind, Act(jobs=(("charge", payload),))).send(order("k"))
    assert isinstance(got.error, NotSerialisable)
    assert "The payload of the job" in str(got.error) and "plain values" in str(got.error)
    assert (outbox.orders(), outbox.jobs(), outbox.states()) == ([], [], [])


def test_several_jobs_have_keys_of_their_own_and_the_first_answers(outbox: Outbox, kind: Kind) -> None:
    runs = declare_charge(outbox, kind)
    mailed: list[JobContext] = []

    @outbox.idempotency.job("mail")
    def mail(job: JobContext, address: str) -> object:
        mailed.append(job)
        return object()  # nobody asks for its result

    jobs = (("charge", {"cents": 100}), ("mail", "a@example.org"), ("mail", "b@example.org"))
    client = outbox.client(kind, Act(jobs=jobs))
    client.send(order("k"))
    assert sorted((job.name, job.answers) for job in outbox.jobs()) == [
        ("charge", 1),
        ("mail", 0),
        ("mail", 0),
    ]
    outbox.work()
    assert client.send(order("k")).status == 201
    assert {job.state for job in outbox.jobs()} == {"done"}
    assert len({job.key for job in (*runs, *mailed)}) == 3
    assert len({job.key.partition("-")[0] for job in (*runs, *mailed)}) == 1


def test_other_tenants_see_nothing(outbox: Outbox, kind: Kind) -> None:
    runs = declare_charge(outbox, kind)
    client = outbox.client(kind)
    mine = client.send(order("k"))
    for _ in range(2):
        hidden = client.send(status_of(mine.header("location"), tenant="eve"))
        never = client.send(status_of(f"/idempotency/{'0' * 32}", tenant="eve"))
        assert (hidden.status, hidden.body) == (404, never.body)
        theirs = client.send(order("k", tenant="eve", body={"item": "tea"}))
        assert theirs.header("location") != mine.header("location")
        outbox.work()
    assert {job.tenant for job in runs} == {"ann", "eve"}
    assert len({job.key for job in runs}) == 2


def test_the_handlers_own_202_keeps_its_body(outbox: Outbox, kind: Kind) -> None:
    declare_charge(outbox, kind)
    client = outbox.client(kind, Act(body=b"thank you"))
    got = client.send(order("k"))
    assert_accepted(got)
    assert got.body == b"thank you"
    assert len(got.all("content-length")) <= 1
    assert_accepted(outbox.client(kind, Act(status=200, body=b"done?")).send(order("k2")))


def test_an_answer_too_large_to_keep_is_withheld_and_nothing_runs_again(outbox: Outbox, kind: Kind) -> None:
    runs = declare_charge(outbox, kind, "x" * (outbox.idempotency.engine.policy.max_answer + 1))
    client = outbox.client(kind)
    client.send(order("k"))
    outbox.work(rounds=2)
    again = client.send(order("k"))
    assert (again.status, again.code) == (409, "result_unavailable")
    assert (len(runs), outbox.job().state) == (1, "done")


def test_a_dead_letter_is_neither_run_again_nor_called_a_failure(outbox: Outbox, kind: Kind) -> None:
    @outbox.idempotency.job("charge", max_attempts=1)
    def charge(job: JobContext, payload: Any) -> None:
        raise ValueError("broken")

    client = outbox.client(kind)
    first = client.send(order("k"))
    outbox.work()
    again = client.send(order("k"))
    assert (again.status, again.code) == (409, "outcome_unknown")
    assert int(again.header("retry-after") or 0) >= 1
    assert json.loads(client.send(status_of(first.header("location"))).body)["state"] == "dead_letter"
