"""What the transport knows of a call outweighs what its handler says; a key that protects nothing is told."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from samekey import Idempotency, current_operation
from samekey.client.dialect import Dialect
from samekey.outgoing import PAYPAL, STRIPE, Outgoing, Patience, Profile, step
from samekey.outgoing.httpx import AsyncProviderTransport, ProviderTransport
from tests.client.calls import MADE, Service, make_due, work
from tests.client.scripted import Cut, Hang, Say, problem, scripted

TWICE = Patience(deadline=timedelta(seconds=20), attempts=2)


def post(
    outgoing: Outgoing, url: str, method: str = "POST", auth: Any = None, **headers: str
) -> httpx.Response:
    transport = ProviderTransport(outgoing)
    with httpx.Client(transport=transport, auth=auth) as client:
        return client.request(method, url, json={"cents": 450}, headers=headers)


def _as_a_job(idempotency: Idempotency, charge: Any) -> None:
    """Three attempts at most."""
    idempotency.job("charge", max_attempts=3)(charge)

    @idempotency.deferred
    async def accept(_request: Any) -> JSONResponse:
        await current_operation().enqueue("charge", {})
        return JSONResponse({}, 202)

    assert Service(idempotency, accept).post().status_code == 202
    for _ in range(3):
        make_due(idempotency)
        work(idempotency)


@pytest.mark.parametrize("how", ["cut", "no id"])
def test_a_call_that_may_have_been_made_frees_no_key(idempotency: Idempotency, how: str) -> None:
    """A broad ``except`` that answers 503 says nothing about the charge."""
    said = Cut() if how == "cut" else Say(200, b'{"charge": "ch_1"}')
    with scripted(said) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            try:
                post(Outgoing(STRIPE), provider.url)
            except Exception:
                return JSONResponse({}, 503)
            return JSONResponse({}, 503)

        service = Service(idempotency, pay)
        got = [service.post().status_code, service.post().json().get("code")]
    assert got[1] == "outcome_unknown" and len(provider.seen) == 1


def test_nor_does_one_that_was_cancelled(idempotency: Idempotency) -> None:
    with scripted(Hang()) as provider:

        @idempotency.leased
        async def pay(_request: Any) -> JSONResponse:
            transport = AsyncProviderTransport(Outgoing(STRIPE))
            try:
                async with asyncio.timeout(30) as limit, httpx.AsyncClient(transport=transport) as client:
                    ending = asyncio.create_task(end_once_sent(limit))
                    await client.post(provider.url, json={})
            except TimeoutError:
                await ending
            return JSONResponse({}, 503)

        async def end_once_sent(limit: asyncio.Timeout) -> None:
            while not provider.seen:
                await asyncio.sleep(0.005)
            limit.reschedule(asyncio.get_running_loop().time())

        service = Service(idempotency, pay)
        service.post()
        assert service.post().json()["code"] == "outcome_unknown"
    assert len(provider.seen) == 1


def test_a_definite_refusal_leaves_the_handler_its_word(idempotency: Idempotency) -> None:
    with scripted(Say(402, b'{"error": {"code": "card_declined"}}')) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            post(Outgoing(STRIPE), provider.url)
            return JSONResponse({}, 503)

        service = Service(idempotency, pay)
        assert [service.post().status_code for _ in range(2)] == [503, 503]
    assert len(provider.seen) == 2


def test_the_same_call_twice_is_refused_and_steps_may_be_nested(idempotency: Idempotency) -> None:
    with scripted(MADE, Say(200, b'{"id": "ch_2"}')) as provider:

        @idempotency.leased
        def twice(_request: Any) -> JSONResponse:
            return JSONResponse([post(Outgoing(STRIPE), provider.url).json() for _ in range(2)], 201)

        assert Service(idempotency, twice).post().json()["code"] == "outcome_unknown"
        assert len(provider.seen) == 1

        @idempotency.leased
        def lines(_request: Any) -> JSONResponse:
            made = []
            for line in ("1", "2"):
                with step(f"line {line}"), step("charge"):
                    made.append(post(Outgoing(STRIPE), provider.url).json()["id"])
            return JSONResponse(made, 201)

        assert Service(idempotency, lines).post("other").status_code == 201
    assert len(provider.keys) == 3


@pytest.mark.parametrize("strict", [False, True])
def test_an_sdk_that_makes_a_key_of_its_own_for_each_attempt(
    idempotency: Idempotency, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted(Cut()) as provider:

        def charge(_job: Any, _payload: Any) -> None:
            post(Outgoing(STRIPE, strict=strict), provider.url, **{"Idempotency-Key": str(uuid.uuid4())})

        _as_a_job(idempotency, charge)
    assert len(provider.seen) == (0 if strict else 1)
    assert "not its operation's" in caplog.text


def test_an_empty_key_is_none(idempotency: Idempotency) -> None:
    with scripted(Cut(), MADE) as provider:

        def charge(_job: Any, _payload: Any) -> None:
            post(Outgoing(STRIPE), provider.url, **{"Idempotency-Key": ""})

        _as_a_job(idempotency, charge)
    assert len(provider.keys) == 1 and len(provider.seen) == 2


class Token(httpx.Auth):
    """The token is fetched at the provider's own host, first."""

    def __init__(self, path: str) -> None:
        self.path = path

    def auth_flow(self, request: httpx.Request) -> Any:
        url = request.url.copy_with(path=self.path)
        yield httpx.Request("POST", url, data={"grant_type": "client_credentials"})
        request.headers["Authorization"] = "Bearer t"
        yield request


@pytest.mark.parametrize("profile", [PAYPAL, STRIPE])
def test_a_token_is_fetched_beside_the_call(idempotency: Idempotency, profile: Profile) -> None:
    with scripted(Say(200, b'{"access_token": "t"}'), MADE) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            post(Outgoing(profile, strict=True), f"{provider.url}/orders", auth=Token("/v1/oauth2/token"))
            return JSONResponse({}, 201)

        assert Service(idempotency, pay).post().status_code == 201
    first, second = provider.seen
    name = profile.dialect.header.lower()
    assert name not in first.headers and name in second.headers


def test_a_method_for_which_the_provider_takes_no_key_is_sent_once(
    idempotency: Idempotency, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted(Cut()) as provider:

        @idempotency.leased
        def change(_request: Any) -> JSONResponse:
            post(Outgoing(STRIPE, patience=TWICE), provider.url, "PATCH")
            return JSONResponse({}, 201)

        assert Service(idempotency, change).post().json()["code"] == "outcome_unknown"
    assert len(provider.seen) == 1 and "takes no key" in caplog.text


@pytest.mark.parametrize("case", ["result", "member"])
def test_what_was_done_and_cannot_be_told_again_is_no_refusal(idempotency: Idempotency, case: str) -> None:
    used = Say(400, b'{"code": "duplicate_request", "message": "The request_id has been used"}')
    second = problem(409, "result_unavailable") if case == "result" else used
    profile = STRIPE if case == "result" else Profile("bank", Dialect(quoted=False, member="request_id"))
    with scripted(Cut(), second) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            answer = post(Outgoing(profile, patience=TWICE), provider.url)
            return JSONResponse({}, 201 if answer.is_success else 402)

        assert Service(idempotency, pay).post().json()["code"] == "outcome_unknown"


def test_a_repeatable_handler_keeps_to_the_window(idempotency: Idempotency) -> None:
    profile = Profile("bank", Dialect(quoted=False), timedelta(milliseconds=1))
    with scripted(MADE) as provider:

        @idempotency.leased(repeatable=True)
        def pay(_request: Any) -> JSONResponse:
            post(Outgoing(profile), provider.url)
            raise RuntimeError("a bug")

        service = Service(idempotency, pay)
        for _ in range(2):
            service.post()
    assert len(provider.seen) == 1
