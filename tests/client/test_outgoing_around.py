"""What stands around a call to a provider: the token that it needs, an SDK that sets up the session it was
given, and what the provider remembers of a former life of the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
from starlette.responses import JSONResponse

from lab.processes import free_port
from samekey import Idempotency, Response, current_operation
from samekey.client.requests import KeyedAdapter
from samekey.core.states import State
from samekey.engine.jobs import JobContext
from samekey.outgoing import PAYPAL, STRIPE, STRIPE_V2, Outgoing
from samekey.outgoing.httpx import ProviderTransport
from samekey.outgoing.requests import ProviderAdapter

from .calls import MADE, Service, by_httpx2, make_due, work
from .scripted import Cut, Say, scripted

TOKEN = Say(200, b'{"access_token": "t"}')
FORM = {"grant_type": "client_credentials"}
REPLAYED = Say(200, MADE.body, (("Idempotent-Replayed", "true"),))


class Token(httpx.Auth):
    """The token is fetched before each call."""

    requires_response_body = True

    def __init__(self, url: str) -> None:
        self.url = url

    def auth_flow(self, request: httpx.Request) -> Any:
        answer = yield httpx.Request("POST", f"{self.url}/v1/oauth2/token", data=FORM)
        answer.raise_for_status()
        request.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        yield request


def by_httpx(tokens: str, url: str) -> Any:
    with httpx.Client(transport=ProviderTransport(Outgoing(PAYPAL)), auth=Token(tokens)) as client:
        return client.post(f"{url}/v2/orders", json={"amount": 450})


def by_requests(tokens: str, url: str) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", ProviderAdapter(Outgoing(PAYPAL)))
        answer = session.post(f"{tokens}/v1/oauth2/token", data=FORM)
        answer.raise_for_status()
        return session.post(f"{url}/v2/orders", json={"amount": 450})


EACH = pytest.mark.parametrize("call", [by_httpx, by_requests])


def _ok(answer: Any) -> bool:
    return bool(answer.status_code < 400)


def _pay(idempotency: Idempotency, call: Callable[[str, str], Any], tokens: list[str], url: str) -> list[int]:
    @idempotency.leased
    def pay(_request: Any) -> JSONResponse:
        answer = call(tokens.pop(0) if len(tokens) > 1 else tokens[0], url)
        return JSONResponse({}, 201 if _ok(answer) else 402)

    service = Service(idempotency, pay)
    return [service.post().status_code for _ in range(2)]


@EACH
def test_a_token_that_cannot_be_fetched_frees_the_key(
    idempotency: Idempotency, call: Callable[[str, str], Any]
) -> None:
    with scripted(TOKEN, MADE) as provider:
        answers = _pay(idempotency, call, [f"http://127.0.0.1:{free_port()}", provider.url], provider.url)
    assert answers == [503, 201]


@EACH
@pytest.mark.parametrize("said", [Cut(), Say(503), Say(429)], ids=["cut", "503", "429"])
def test_nor_does_one_that_is_not_given_now_leave_any_doubt(
    idempotency: Idempotency, call: Callable[[str, str], Any], said: Say | Cut
) -> None:
    with scripted(said, TOKEN, MADE) as provider:
        answers = _pay(idempotency, call, [provider.url], provider.url)
    assert answers == [503, 201]
    assert [one.path for one in provider.seen] == ["/v1/oauth2/token", "/v1/oauth2/token", "/v2/orders"]


@EACH
def test_a_token_says_nothing_of_a_call_before_it(
    idempotency: Idempotency, call: Callable[[str, str], Any]
) -> None:
    with scripted(TOKEN, Cut(), Say(503)) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            try:
                call(provider.url, provider.url)
            except Exception:
                call(provider.url, provider.url)  # once more, by a handler that does not know better
            return JSONResponse({}, 201)

        service = Service(idempotency, pay)
        assert service.post().json()["code"] == "outcome_unknown"


def test_nor_of_an_attempt_at_the_job_before_it(idempotency: Idempotency) -> None:
    with scripted(TOKEN, Cut(), Say(503)) as provider:

        @idempotency.job("pay", source="paypal", max_attempts=2)
        def pay(_job: JobContext, _payload: Any) -> Response:
            return Response(201, by_requests(provider.url, provider.url).json())

        @idempotency.deferred
        async def accept(_request: Any) -> JSONResponse:
            await current_operation().enqueue("pay")
            return JSONResponse({}, 202)

        service = Service(idempotency, accept)
        service.post()
        for _ in range(2):
            work(idempotency)
            make_due(idempotency)
    (key,) = {one.headers.get("paypal-request-id") for one in provider.seen} - {None}
    assert key is not None and service.record(key).state is State.DEAD_LETTER


# --- an SDK sets up the session that it was given


def test_an_sdk_cannot_have_urllib3_hide_an_attempt(idempotency: Idempotency) -> None:
    """PayPal's does this with ``override_http_client_configuration``. The first may have been carried out, so
    the second one's 403 says nothing: unseen, it would be taken for a refusal."""
    with scripted(Say(500), Say(403)) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            with requests.Session() as session:
                session.trust_env = False
                session.mount("http://", ProviderAdapter(Outgoing(PAYPAL)))
                adapters: list[Any] = list(session.adapters.values())
                for adapter in adapters:
                    adapter.max_retries.total = 3
                    adapter.max_retries.status_forcelist = [500]
                    adapter.max_retries.allowed_methods = ["POST"]
                    adapter.max_retries.raise_on_status = False
                answer = session.post(f"{provider.url}/v2/orders", json={"amount": 450})
            return JSONResponse({}, 201 if answer.ok else 402)

        assert Service(idempotency, pay).post().json()["code"] == "outcome_unknown"
    assert len(provider.seen) == 1


@pytest.mark.parametrize("adapter", [KeyedAdapter(), ProviderAdapter(Outgoing(STRIPE))])
def test_whatever_retries_are_set_there_are_none(adapter: Any) -> None:
    adapter.max_retries = 5
    assert (adapter.max_retries.total, adapter.max_retries.read) == (0, False)


# --- a former life of the key


def _is_over(idempotency: Idempotency) -> None:
    session = idempotency.engine.drivers.sync.open()
    session.connection.execute("update samekey_keys set expires_at = 1")
    session.commit()


def test_what_the_provider_made_for_a_former_life_is_not_taken_for_this_ones(
    idempotency: Idempotency,
) -> None:
    with scripted(MADE, REPLAYED) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            answer = by_httpx2(provider.url, Outgoing(STRIPE_V2), {"amount": 450})
            return JSONResponse(answer.json(), 201)

        service = Service(idempotency, pay)
        assert service.post().status_code == 201
        _is_over(idempotency)
        assert service.post().json()["code"] == "outcome_unknown"
    assert len(provider.keys) == 1


def test_a_replay_that_nobody_has_asked_for_before_is_said(
    idempotency: Idempotency, caplog: pytest.LogCaptureFixture
) -> None:
    """In a first life, as far as anybody knows, a gateway may have sent it twice: it is taken."""
    with scripted(REPLAYED) as provider:

        @idempotency.job("pay", source="stripe")
        def pay(_job: JobContext, _payload: Any) -> Response:
            return Response(201, by_httpx2(provider.url, Outgoing(STRIPE), {"amount": 450}).json())

        @idempotency.deferred
        async def accept(_request: Any) -> JSONResponse:
            await current_operation().enqueue("pay")
            return JSONResponse({}, 202)

        service = Service(idempotency, accept)
        service.post()
        work(idempotency)
        assert service.post().status_code == 201
    assert "answered this before" in caplog.text


@pytest.mark.parametrize("script", [(MADE,), (Cut(), REPLAYED)], ids=["made", "sent before"])
def test_nothing_is_said_of_any_other_answer(
    idempotency: Idempotency, script: tuple[Say | Cut, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with scripted(*script) as provider:

        @idempotency.leased
        def pay(_request: Any) -> JSONResponse:
            for _ in script:
                try:
                    made = by_httpx2(provider.url, Outgoing(STRIPE), {"amount": 450})
                except Exception:
                    continue
            return JSONResponse(made.json(), 201)

        service = Service(idempotency, pay)
        assert service.post().status_code == 201
    assert "answered this before" not in caplog.text
