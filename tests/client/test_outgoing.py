"""Calls to a provider from inside an operation: the key of the step, and ends that the engine knows."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from starlette.responses import JSONResponse

from lab.processes import free_port, wait_until
from samekey import AsyncPhasedOperation, Effect, Idempotency, Input, JobContext, Response, current_operation
from samekey.client.dialect import Dialect
from samekey.core.states import State
from samekey.outgoing import (
    ADYEN,
    STRIPE,
    Outgoing,
    Patience,
    Profile,
    ProviderUnclear,
)
from samekey.outgoing.httpx2 import AsyncProviderTransport

from .calls import (
    MADE,
    Caller,
    Service,
    by_async,
    by_httpx,
    by_httpx2,
    by_requests,
    leased,
    make_due,
    post_async,
    sent_key,
    work,
)
from .scripted import Cut, Hang, Say, problem, scripted


@pytest.mark.parametrize("call", [by_httpx2, by_async, by_httpx, by_requests], ids=lambda call: call.__name__)
def test_a_leased_call_carries_the_key_of_its_operation_and_notes_the_providers_id(
    idempotency: Idempotency, call: Caller
) -> None:
    with scripted(MADE) as server:
        service = leased(idempotency, f"{server.url}/v1/charges", Outgoing(STRIPE), call)
        first, again = service.post(), service.post()
    assert (first.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert len(server.seen) == 1
    record = service.record(sent_key(server))
    assert record.state is State.COMPLETED and sent_key(server) == record.downstream_key()
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") == record


@pytest.mark.parametrize("call", [by_httpx2, by_async, by_requests], ids=lambda call: call.__name__)
@pytest.mark.parametrize(
    "said",
    [Cut(), Say(200, b"x" * 999, cut_body=True), Say(502), Say(504), Say(500), problem(409, "in_progress")],
    ids=["cut", "cut body", "502", "504", "500", "409 in progress"],
)
def test_what_leaves_open_whether_it_happened_is_unknown(
    idempotency: Idempotency, said: Any, call: Caller
) -> None:
    with scripted(said) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE), call)
        answers = [service.post().json()["code"] for _ in range(2)]
    assert answers == ["outcome_unknown", "outcome_unknown"] and len(server.seen) == 1
    assert service.record(sent_key(server)).state is State.UNKNOWN


def test_a_call_inside_before_effect_is_no_proof_that_nothing_happened(idempotency: Idempotency) -> None:
    @idempotency.leased
    async def hasty(_request: Any) -> JSONResponse:
        with current_operation().before_effect():
            await post_async(server.url, Outgoing(STRIPE), {})
        return JSONResponse({}, 201)

    with scripted(Cut()) as server:
        service = Service(idempotency, hasty)
        assert [service.post().json()["code"] for _ in range(2)] == ["outcome_unknown"] * 2
    assert len(server.seen) == 1


def test_a_202_is_the_providers_answer(idempotency: Idempotency) -> None:
    accepted = Say(202, b'{"id": "ch_1"}', (("location", "/charges/ch_1"), ("retry-after", "1")))
    with scripted(accepted) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE))
        assert service.post().json() == {"status": 202}
    assert len(server.seen) == 1
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") is not None


def test_a_provider_that_says_nothing_is_unknown_when_the_time_is_over(idempotency: Idempotency) -> None:
    outgoing = Outgoing(STRIPE, patience=Patience(deadline=timedelta(seconds=1.5), attempts=1))
    with scripted(Hang()) as server:
        service = leased(idempotency, server.url, outgoing)
        assert service.post().json()["code"] == "outcome_unknown"


@pytest.mark.parametrize("call", [by_httpx2, by_async, by_requests], ids=lambda call: call.__name__)
def test_what_never_left_frees_the_key(idempotency: Idempotency, call: Caller) -> None:
    service = leased(idempotency, f"http://127.0.0.1:{free_port()}", Outgoing(STRIPE), call)
    assert [service.post().status_code for _ in range(2)] == [503, 503]


def test_a_429_frees_the_key_and_the_next_one_is_sent_under_the_same(idempotency: Idempotency) -> None:
    with scripted(Say(429), MADE) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE))
        assert [service.post().status_code for _ in range(2)] == [503, 201]
    assert len(server.keys) == 1


@pytest.mark.parametrize("status", [400, 401, 402, 404])
def test_a_definite_answer_is_the_handlers(idempotency: Idempotency, status: int) -> None:
    with scripted(Say(status)) as server:
        service = leased(idempotency, server.url, Outgoing(STRIPE))
        assert service.post().json() == {"status": status}


def test_retries_within_the_deadline_settle_what_one_attempt_could_not(idempotency: Idempotency) -> None:
    outgoing = Outgoing(STRIPE, patience=Patience(deadline=timedelta(seconds=20)))
    with scripted(Cut(), Say(504), MADE) as server:
        assert leased(idempotency, server.url, outgoing).post().status_code == 201
    assert len(server.seen) == 3 and len(server.keys) == 1


def test_a_handlers_own_retry_that_never_leaves_proves_nothing_about_the_first(
    idempotency: Idempotency,
) -> None:
    @idempotency.leased
    async def charge(_request: Any) -> JSONResponse:
        async with httpx2.AsyncClient(transport=AsyncProviderTransport(Outgoing(STRIPE))) as client:
            url = f"http://127.0.0.1:{port}/"
            with pytest.raises(ProviderUnclear):
                await client.post(url, json={})
            closed.set()
            stopped.wait(10)
            await client.post(url, json={})
        raise AssertionError("unreachable")

    closed, stopped = threading.Event(), threading.Event()
    service = Service(idempotency, charge)
    with scripted(Cut()) as server:
        port = server.port

        def close_the_port() -> None:
            closed.wait(10)
            server.stop()
            stopped.set()

        threading.Thread(target=close_the_port).start()
        assert service.post().json()["code"] == "outcome_unknown"


def phased(idempotency: Idempotency, url: str, outgoing: Outgoing, **options: Any) -> Service:
    async def call(_effect: Effect) -> int:
        answer = await post_async(url, outgoing, {"amount": 450})
        return int(answer.status_code)

    @idempotency.phased("charge", version=1)
    async def charge(op: AsyncPhasedOperation, _input: Input) -> Response:
        return Response(201, {"status": await op.effect("charged", call, source="stripe", **options)})

    return Service(idempotency, charge)


def test_a_phased_call_carries_the_key_of_its_effect(idempotency: Idempotency) -> None:
    with scripted(Cut(), MADE) as server:
        service = phased(idempotency, server.url, Outgoing(STRIPE), provider_window=timedelta(hours=24))
        assert service.post().status_code == 409
        wait_until(lambda: service.post().status_code == 201)  # it rests a moment before the next attempt
    assert len(server.seen) == 2
    record = service.record(sent_key(server))
    assert sent_key(server) == record.downstream_key("charged")
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") == record


def test_an_effect_that_trusts_a_key_for_longer_than_the_provider_is_refused(
    idempotency: Idempotency,
) -> None:
    with scripted(MADE) as server:
        service = phased(idempotency, server.url, Outgoing(STRIPE), provider_window=timedelta(hours=48))
        assert service.post().status_code >= 409
    assert server.seen == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async job", "sync job"])
def test_a_job_carries_its_key(idempotency: Idempotency, is_async: bool) -> None:
    outgoing = Outgoing(STRIPE)
    with scripted(Cut(), MADE) as server:
        if is_async:

            @idempotency.job("charge", source="stripe", max_attempts=5)
            async def charge(job: JobContext, _payload: Any) -> Response:
                answer = await post_async(server.url, outgoing, {"amount": 450})
                return Response(201, {"charge": answer.json()["id"], "key": job.key})
        else:

            @idempotency.job("charge", source="stripe", max_attempts=5)
            def charge_sync(job: JobContext, _payload: Any) -> Response:
                answer = by_httpx2(server.url, outgoing, {"amount": 450})
                return Response(201, {"charge": answer.json()["id"], "key": job.key})

        @idempotency.deferred
        async def accept(_request: Any) -> JSONResponse:
            await current_operation().enqueue("charge")
            return JSONResponse({}, 202)

        service = Service(idempotency, accept)
        assert service.post().status_code == 202
        work(idempotency)
        make_due(idempotency)
        work(idempotency)
        answer = service.post()
    assert answer.json() == {"charge": "ch_1", "key": sent_key(server)} and len(server.seen) == 2
    assert idempotency.find(provider_id="ch_1", tenant="single", source="stripe") is not None


class Old(JobContext):
    """A job at its second attempt, so old."""

    def __init__(self, age: float) -> None:
        self.key, self.age, self.attempts, self.tried_before = "k", age, 2, True


def test_a_job_is_not_sent_again_when_the_provider_may_not_know_its_key_any_more() -> None:
    from samekey.engine.sending import sends

    with scripted(MADE) as server:
        with sends(Old(20 * 3600.0)):
            assert by_httpx2(server.url, Outgoing(STRIPE), {}).status_code == 200
        with sends(Old(23 * 3600.0)), pytest.raises(ProviderUnclear, match="does not know its key"):
            by_httpx2(server.url, Outgoing(STRIPE), {})
        with sends(Old(23 * 3600.0)):
            assert by_httpx2(server.url, Outgoing(ADYEN), {}).status_code == 200
    assert len(server.seen) == 2


def test_a_window_that_nobody_publishes_is_not_for_ever() -> None:
    from samekey.engine.sending import sends

    bank = Profile("bank", Dialect(quoted=False))
    with scripted(MADE) as server:
        with sends(Old(20 * 3600.0)):
            assert by_httpx2(server.url, Outgoing(bank), {}).status_code == 200
        with sends(Old(72 * 3600.0)), pytest.raises(ProviderUnclear, match="does not know its key"):
            by_httpx2(server.url, Outgoing(bank), {})
        with sends(Old(72 * 3600.0)):
            known = replace(bank, window=timedelta.max)
            assert by_httpx2(server.url, Outgoing(known), {}).status_code == 200
    assert len(server.seen) == 2
