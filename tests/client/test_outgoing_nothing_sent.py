"""Calls to a provider of which nothing was sent: they leave nothing unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import requests
from starlette.responses import JSONResponse

from lab.processes import free_port
from samekey import Idempotency
from samekey.client import Keyed
from samekey.client.requests import Session
from samekey.outgoing import SQUARE, STRIPE, Outgoing, Profile, step
from samekey.outgoing.httpx import ProviderTransport as OldTransport
from samekey.outgoing.httpx2 import AsyncProviderTransport, ProviderTransport
from samekey.outgoing.requests import ProviderAdapter
from tests.chosen import whole

from .calls import MADE, Service
from .scripted import Cut, Say, Scripted, scripted

Sent = dict[str, Any]


def _sync(library: Any, transport: Callable[..., Any]) -> Callable[..., Any]:
    async def call(url: str, outgoing: Outgoing, proxy: str | None, sent: Sent) -> Any:
        inner = library.HTTPTransport(proxy=proxy, trust_env=False)
        with library.Client(transport=transport(outgoing, inner)) as client:
            return client.post(url, **sent)

    return call


async def _async(url: str, outgoing: Outgoing, proxy: str | None, sent: Sent) -> Any:
    inner = httpx2.AsyncHTTPTransport(proxy=proxy, trust_env=False)
    async with httpx2.AsyncClient(transport=AsyncProviderTransport(outgoing, inner)) as client:
        return await client.post(url, **sent)


async def _requests(url: str, outgoing: Outgoing, proxy: str | None, sent: Sent) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, ProviderAdapter(outgoing))
        proxies = {} if proxy is None else {"http": proxy, "https": proxy}
        data = {"data" if name == "content" else name: value for name, value in sent.items()}
        return session.post(url, proxies=proxies, **data)


CALLS = {
    "httpx2": _sync(httpx2, ProviderTransport),
    "httpx2-async": _async,
    "httpx": _sync(httpx, OldTransport),
    "requests": _requests,
}


@pytest.fixture(
    params=[
        "httpx2",
        pytest.param("httpx2-async", marks=whole),
        pytest.param("httpx", marks=whole),
        "requests",
    ]
)
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CALLS[request.param]


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(MADE) as server:
        yield server


def service(
    idempotency: Idempotency,
    call: Callable[..., Any],
    url: str,
    *,
    proxy: str | None = None,
    profile: Profile = STRIPE,
    sent: Sent | None = None,
    before: str | None = None,
    **settings: Any,
) -> Service:
    """``before``: a call to this URL goes out first."""

    @idempotency.leased
    async def charge(_request: Any) -> JSONResponse:
        if before is not None:
            with step("before"):
                await call(before, Outgoing(STRIPE, provider_id=lambda _answer: None), None, {"json": {}})
        with step("charge" if before else ""):
            outgoing = Outgoing(profile, **settings)
            answer = await call(url, outgoing, proxy, {"json": {}} if sent is None else sent)
        return JSONResponse({"status": answer.status_code}, 201)

    return Service(idempotency, charge)


def test_a_failed_handshake(idempotency: Idempotency, call: Any, server: Scripted) -> None:
    """The server does not speak TLS at all."""
    made = service(idempotency, call, server.url.replace("http:", "https:"))
    assert [made.post().status_code for _ in range(2)] == [503, 503]
    assert server.seen == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_down(idempotency: Idempotency, call: Any, server: Scripted, scheme: str) -> None:
    url = server.url.replace("http:", f"{scheme}:")
    made = service(idempotency, call, url, proxy=f"http://127.0.0.1:{free_port()}")
    assert [made.post().status_code for _ in range(2)] == [503, 503]
    assert server.seen == []


@pytest.mark.parametrize("said", [Say(407), Say(502), Cut()], ids=["407", "502", "cut"])
def test_a_proxy_that_makes_no_tunnel(idempotency: Idempotency, call: Any, said: Any) -> None:
    with scripted(said) as proxy:
        made = service(idempotency, call, "https://provider.example/", proxy=proxy.url)
        codes = {made.post().status_code for _ in range(2)}
    assert {one.method for one in proxy.seen} == {"CONNECT"}
    # httpx says of a proxy that hangs up no more than that the connection is gone.
    assert codes == {503} or (said == Cut() and call is not _requests)


def test_a_body_that_cannot_be_kept(idempotency: Idempotency, call: Any, server: Scripted) -> None:
    made = service(idempotency, call, server.url, max_body=3, sent={"content": b"too long"})
    assert [made.post().status_code for _ in range(2)] == [503, 503]
    assert server.seen == []


def test_a_body_that_can_hold_no_key(idempotency: Idempotency, call: Any, server: Scripted) -> None:
    made = service(idempotency, call, server.url, profile=SQUARE, sent={"content": b"no JSON"})
    assert [made.post().status_code for _ in range(2)] == [503, 503]
    assert server.seen == []


@pytest.mark.parametrize(
    "refused",
    [
        {"max_body": 3, "sent": {"content": b"too long"}},
        {"profile": SQUARE, "sent": {"content": b"no JSON"}},
        {"keys": "check", "strict": True},
    ],
    ids=["too large", "no JSON", "keyless"],
)
def test_is_no_word_about_a_call_before_it(
    idempotency: Idempotency, server: Scripted, refused: dict[str, Any]
) -> None:
    made = service(idempotency, _async, server.url, before=server.url, **refused)
    assert [made.post().json()["code"] for _ in range(2)] == ["outcome_unknown"] * 2
    assert len(server.seen) == 1


def test_a_request_that_cannot_be_sent_at_all_is_not_kept() -> None:
    keyed = Keyed()
    with Session(keyed=keyed) as session, scripted(MADE) as server:
        with pytest.raises(UnicodeEncodeError):
            session.post(server.url, json={}, headers={"X-Price": "5 \u20ac"})
        with pytest.raises(requests.exceptions.InvalidProxyURL):
            session.post(server.url, json={}, proxies={"http": "http://"})
        assert keyed.journal.pending() == [] and server.seen == []
