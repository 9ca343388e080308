"""Calls to a provider whose answer, or failure, says nothing about an attempt before it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from starlette.responses import JSONResponse

from lab.processes import free_port, wait_until
from samekey import (
    AsyncPhasedOperation,
    Effect,
    Idempotency,
    Input,
    JobContext,
    PhasedOperation,
    Response,
    current_operation,
)
from samekey.core.backoff import Backoff
from samekey.core.states import State
from samekey.drivers.run import run
from samekey.outgoing import PAYPAL, SQUARE, STRIPE, Outgoing, Patience, Profile, ProviderUnclear
from samekey.outgoing.httpx2 import AsyncProviderTransport
from samekey.stores.protocols import Actor
from samekey.stores.sql.operator import Operator

from .calls import (
    MADE,
    Caller,
    Service,
    by_async,
    by_httpx2,
    by_requests,
    leased,
    make_due,
    post_async,
    sent_key,
    work,
)
from .scripted import Cut, Say, Scripted, problem, scripted

AT_ONCE = Backoff(first=timedelta(milliseconds=1), longest=timedelta(milliseconds=10))
TWICE = Patience(deadline=timedelta(seconds=20), backoff=AT_ONCE, attempts=2)
PATIENT = Outgoing(STRIPE, patience=TWICE)
ANOTHER_BODY = Say(400, b'{"error": {"type": "idempotency_error", "message": "Keys can only be"}}')
REPLAYED_500 = Say(500, b'{"error": {"type": "api_error"}}', (("Idempotent-Replayed", "true"),))
SAYS_NOTHING = [Say(403), Say(409), Say(423), Say(501), ANOTHER_BODY, problem(422, "reused"), REPLAYED_500]


def _named(said: Say) -> str:
    return f"{said.status} {said.body[:30].decode()}"


# --- within one run


@pytest.mark.parametrize("said", [*SAYS_NOTHING, Say(401), Say(404), Say(407), Say(413)], ids=_named)
def test_an_answer_that_says_nothing_of_the_attempt_before_it_leaves_the_outcome_unknown(
    idempotency: Idempotency, said: Say
) -> None:
    with scripted(Cut(), said) as server:
        service = leased(idempotency, server.url, PATIENT)
        assert [service.post().json()["code"] for _ in range(2)] == ["outcome_unknown"] * 2
    assert len(server.seen) == 2
    assert service.record(sent_key(server)).state is State.UNKNOWN


@pytest.mark.parametrize("call", [by_httpx2, by_async, by_requests], ids=lambda call: call.__name__)
def test_each_library_says_so(idempotency: Idempotency, call: Caller) -> None:
    with scripted(Cut(), Say(403)) as server:
        assert leased(idempotency, server.url, PATIENT, call).post().json()["code"] == "outcome_unknown"


def test_nor_does_the_answer_to_a_handlers_own_second_try(idempotency: Idempotency) -> None:
    @idempotency.leased
    async def charge(_request: Any) -> JSONResponse:
        with pytest.raises(ProviderUnclear):
            await post_async(server.url, Outgoing(STRIPE), {})
        answer = await post_async(server.url, Outgoing(STRIPE), {})
        return JSONResponse({}, 201 if answer.is_success else 402)

    with scripted(Cut(), Say(401)) as server:
        assert Service(idempotency, charge).post().json()["code"] == "outcome_unknown"


@pytest.mark.parametrize("before", [Say(429), Say(425)], ids=["429", "425"])
def test_an_attempt_that_was_not_looked_at_leaves_no_doubt(idempotency: Idempotency, before: Say) -> None:
    with scripted(before, Say(403)) as server:
        assert leased(idempotency, server.url, PATIENT).post().json() == {"status": 403}
    assert len(server.seen) == 2


def test_a_decline_after_a_lost_answer_is_an_answer(idempotency: Idempotency) -> None:
    declined = Say(402, b'{"error": {"type": "card_error", "code": "card_declined"}}')
    with scripted(Cut(), declined) as server:
        assert leased(idempotency, server.url, PATIENT).post().json() == {"status": 402}


@pytest.mark.parametrize("said", [Say(500), REPLAYED_500], ids=["first", "replayed"])
@pytest.mark.parametrize("outgoing", [Outgoing(STRIPE), PATIENT], ids=["one attempt", "several"])
def test_a_500_is_no_answer_even_if_the_provider_will_give_no_other(
    idempotency: Idempotency, outgoing: Outgoing, said: Say
) -> None:
    with scripted(said, REPLAYED_500) as server:
        assert leased(idempotency, server.url, outgoing).post().json()["code"] == "outcome_unknown"


@pytest.mark.parametrize("status", [501, 505])
def test_a_5xx_that_is_made_before_any_work_is_an_answer(idempotency: Idempotency, status: int) -> None:
    with scripted(Say(status)) as server:
        assert leased(idempotency, server.url, Outgoing(STRIPE)).post().json() == {"status": status}


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (STRIPE, ANOTHER_BODY),
        (STRIPE, problem(422, "reused")),
        (STRIPE, Say(422, b'{"title": "Idempotency-Key is already used"}')),
        (SQUARE, Say(400, b'{"errors": [{"code": "IDEMPOTENCY_KEY_REUSED"}]}')),
        (PAYPAL, Say(422, b'{"details": [{"description": "The PayPal-Request-ID has already been used"}]}')),
    ],
    ids=["Stripe", "samekey", "IETF", "Square", "PayPal"],
)
def test_a_complaint_of_another_request_under_the_key_is_no_answer(
    idempotency: Idempotency, profile: Profile, said: Say
) -> None:
    with scripted(said) as server:
        answer = leased(idempotency, server.url, Outgoing(profile)).post()
    assert answer.json()["code"] == "outcome_unknown" and len(server.seen) == 1


# --- keys of the handler's own


def own_keys(idempotency: Idempotency, urls: list[str], keys: list[str | None], bodies: list[Any]) -> Service:
    """One leased handler; None: it asks its operation, for a step."""

    @idempotency.leased
    async def several(_request: Any) -> JSONResponse:
        operation, ids = current_operation(), []
        operation.source = "stripe"
        sent = [key or operation.downstream_key(f"step {place}") for place, key in enumerate(keys)]
        transport = AsyncProviderTransport(Outgoing(STRIPE, keys="check"))
        async with httpx2.AsyncClient(transport=transport) as client:
            for url, key, body in zip(urls, sent, bodies, strict=True):
                answer = await client.post(url, json=body, headers={"Idempotency-Key": key})
                ids.append(answer.json()["id"])
        service.steps = {one.step: one.provider_id for one in operation.sent().steps}
        return JSONResponse(ids, 201)

    service = Service(idempotency, several)
    return service


CH_2 = Say(200, b'{"id": "ch_2"}')


@pytest.mark.parametrize("bodies", [[{}, {}], [{"n": 1}, {"n": 2}]], ids=["same body", "other body"])
@pytest.mark.parametrize("keys", [["a", "b"], [None, None]], ids=["made by itself", "asked for"])
def test_keys_of_the_handlers_own_are_sent_as_they_are(
    idempotency: Idempotency, keys: list[str | None], bodies: list[Any]
) -> None:
    with scripted(MADE, CH_2) as server:
        service = own_keys(idempotency, [server.url] * 2, keys, bodies)
        assert service.post().json() == ["ch_1", "ch_2"]
    sent = [one.key for one in server.seen]
    assert len(set(sent)) == 2 and (keys[0] is None or sent == keys)


def test_each_id_is_noted_with_the_step_whose_key_was_sent(idempotency: Idempotency) -> None:
    with scripted(MADE, CH_2) as server:
        service = own_keys(idempotency, [server.url] * 2, [None, None], [{}, {}])
        assert service.post().status_code == 201
    assert service.steps == {"step 0": "ch_1", "step 1": "ch_2"}


def test_two_different_calls_under_one_key_of_its_own_are_refused(idempotency: Idempotency) -> None:
    with scripted(MADE, CH_2) as server:
        service = own_keys(idempotency, [server.url] * 2, ["a", "a"], [{"n": 1}, {"n": 2}])
        assert service.post().json()["code"] == "outcome_unknown"
    assert len(server.seen) == 1


def test_a_call_that_never_left_is_no_word_about_one_before_it_under_another_key(
    idempotency: Idempotency,
) -> None:
    with scripted(MADE) as server:
        urls = [server.url, f"http://127.0.0.1:{free_port()}"]
        service = own_keys(idempotency, urls, ["a", "b"], [{}, {}])
        assert [service.post().json()["code"] for _ in range(2)] == ["outcome_unknown"] * 2
    assert len(server.seen) == 1


def test_a_key_of_its_own_in_the_body_leaves_the_body_as_it_is(idempotency: Idempotency) -> None:
    written = b'{ "idempotency_key":"' + b"k" * 50 + b'", "amount": 4.50 }'

    @idempotency.leased
    async def pay(_request: Any) -> JSONResponse:
        async with httpx2.AsyncClient(transport=AsyncProviderTransport(Outgoing(SQUARE))) as client:
            await client.post(server.url, content=written)
        return JSONResponse({}, 201)

    with scripted(MADE) as server:
        assert Service(idempotency, pay).post().status_code == 201
    assert server.seen[0].body == written


# --- over several attempts at a job, an effect, or a handler that may run again


def deferred(
    idempotency: Idempotency, server: Scripted, profile: Profile = STRIPE, *, max_attempts: int = 2
) -> Service:
    @idempotency.job("charge", source="stripe", max_attempts=max_attempts)
    async def charge(job: JobContext, _payload: Any) -> Response:
        answer = await post_async(server.url, Outgoing(profile), {"attempt": job.attempts})
        return Response(201 if answer.is_success else 402, {"status": answer.status_code})

    @idempotency.deferred
    async def accept(_request: Any) -> JSONResponse:
        await current_operation().enqueue("charge")
        return JSONResponse({}, 202)

    return Service(idempotency, accept)


@pytest.mark.parametrize("said", SAYS_NOTHING, ids=_named)
def test_a_jobs_second_attempt_does_not_forget_the_first(idempotency: Idempotency, said: Say) -> None:
    with scripted(Cut(), said) as server:
        service = deferred(idempotency, server)
        service.post()
        for _ in range(2):
            work(idempotency)
            make_due(idempotency)
        assert service.post().status_code != 402
    assert len(server.seen) == 2
    assert service.record(sent_key(server)).state in (State.UNKNOWN, State.DEAD_LETTER)


def _retried_by_an_operator(idempotency: Idempotency, service: Service) -> None:
    """The one attempt was carried out and its answer lost; somebody has the dead letter tried again."""
    service.post()
    work(idempotency)
    engine = idempotency.engine
    assert isinstance(engine.store.finding, Operator)
    operator = engine.store.finding
    session = engine.drivers.sync.open()
    ((job_id,),) = session.connection.execute("select id from samekey_jobs").fetchall()
    session.rollback()
    assert run(engine.drivers.sync, lambda: operator.retry_dead_job(job_id, Actor("ann", "again")))
    work(idempotency)


def test_attempts_that_an_operator_gives_back_do_not_forget_what_was_sent(idempotency: Idempotency) -> None:
    with scripted(Cut(), Say(401)) as server:
        service = deferred(idempotency, server, max_attempts=1)
        _retried_by_an_operator(idempotency, service)
        assert service.post().status_code != 402
    assert len(server.seen) == 2
    assert service.record(sent_key(server)).state is State.DEAD_LETTER


def test_a_dead_letter_that_is_tried_again_after_the_providers_window_sends_nothing(
    idempotency: Idempotency,
) -> None:
    with scripted(Cut(), MADE) as server:
        forgets_at_once = replace(STRIPE, window=timedelta(microseconds=1))
        service = deferred(idempotency, server, forgets_at_once, max_attempts=1)
        _retried_by_an_operator(idempotency, service)
    assert len(server.seen) == 1
    assert service.record(sent_key(server)).state is State.DEAD_LETTER


def test_a_jobs_second_attempt_may_be_declined(idempotency: Idempotency) -> None:
    with scripted(Cut(), Say(402)) as server:
        service = deferred(idempotency, server)
        service.post()
        for _ in range(2):
            work(idempotency)
            make_due(idempotency)
        assert service.post().json() == {"status": 402}


@pytest.mark.parametrize(
    ("said", "is_async"),
    [(Say(403), False), *((said, True) for said in SAYS_NOTHING)],
    ids=lambda one: _named(one) if isinstance(one, Say) else "async" if one else "sync",
)
def test_an_effects_second_attempt_does_not_forget_the_first(
    idempotency: Idempotency, said: Say, is_async: bool
) -> None:
    with scripted(Cut(), said, MADE) as server:
        service = effect(idempotency, server, is_async)
        # Whatever the second attempt is told, the third finds out.
        wait_until(lambda: service.post().status_code in (201, 402))
        assert service.post().json() == {"status": 200}
    assert len(server.seen) == 3 and len(server.keys) == 1


def effect(idempotency: Idempotency, server: Scripted, is_async: bool) -> Service:
    rules: dict[str, Any] = {"source": "stripe", "provider_window": timedelta(hours=24)}

    async def call_async(_effect: Effect) -> int:
        return int((await post_async(server.url, Outgoing(STRIPE), {})).status_code)

    def call(_effect: Effect) -> int:
        return int(by_httpx2(server.url, Outgoing(STRIPE), {}).status_code)

    if is_async:

        @idempotency.phased("charge", version=1, backoff=AT_ONCE)
        async def charge(op: AsyncPhasedOperation, _input: Input) -> Response:
            status = await op.effect("charged", call_async, **rules)
            return Response(201 if status < 300 else 402, {"status": status})

        return Service(idempotency, charge)

    @idempotency.phased("charge", version=1, backoff=AT_ONCE)
    def charge_sync(op: PhasedOperation, _input: Input) -> Response:
        status = op.effect("charged", call, **rules)
        return Response(201 if status < 300 else 402, {"status": status})

    return Service(idempotency, charge_sync)


def test_a_handler_that_runs_again_without_proof_does_not_forget_its_first_run(
    idempotency: Idempotency,
) -> None:
    @idempotency.leased(repeatable=True)
    async def charge(_request: Any) -> JSONResponse:
        answer = await post_async(server.url, Outgoing(STRIPE), {})
        if len(server.seen) == 1:
            raise ValueError("its process could as well have died")
        return JSONResponse({}, 201 if answer.is_success else 402)

    with scripted(MADE, Say(403)) as server:
        service = Service(idempotency, charge)
        assert [service.post().status_code for _ in range(2)] == [500, 409]
    assert service.record(sent_key(server)).state is State.UNKNOWN
