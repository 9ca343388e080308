"""SDKs make an error of their own of whatever their transport raises: the proof inside is not lost, and only
proof is read out of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from lab.processes import free_port
from samekey import Idempotency, NotExecuted, OutcomeUnknown, current_operation
from samekey.outgoing import STRIPE, Outgoing, step
from samekey.outgoing.httpx import ProviderTransport
from samekey.outgoing.requests import ProviderAdapter
from tests.client.calls import MADE, Service
from tests.client.scripted import Cut, Hang, Say, scripted

Send = Callable[[str], Any]


SDK = '''
class APIConnectionError(Exception):
    pass


def raised_from(send, url):
    try:
        return send(url)
    except Exception as error:
        raise APIConnectionError("Unexpected error communicating with the provider") from error


def raised_meanwhile(send, url):
    try:
        return send(url)
    except Exception as error:
        _raise_its_own(error)


def _raise_its_own(error):
    raise APIConnectionError(f"A {type(error).__name__} was raised")


def raised_later(send, url):
    """A loop of retries that is used up."""
    try:
        return raised_from(send, url)
    except APIConnectionError as error:
        last = error
    raise last
'''
PROVIDER = replace(STRIPE, sdks=frozenset({"acme_sdk"}))
SDKS = ["raised_from", "raised_meanwhile", "raised_later"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A provider's SDK, and a package of the application's own that works as one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("acme_sdk", "shop_core"):
        (tmp_path / f"{name}.py").write_text(SDK)
    yield importlib.import_module("acme_sdk")
    for name in ("acme_sdk", "shop_core"):
        sys.modules.pop(name, None)


class APIConnectionError(Exception):
    """The application's own, whatever it is called."""


def by_requests(url: str) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", ProviderAdapter(Outgoing(PROVIDER, strict=True)))
        return session.post(url, data="amount=450", timeout=5)


def by_httpx(url: str) -> Any:
    with httpx.Client(transport=ProviderTransport(Outgoing(PROVIDER, strict=True))) as client:
        return client.post(url, content="amount=450")


def leased(idempotency: Idempotency, call: Callable[[], Any]) -> Service:
    @idempotency.leased
    def pay(_request: Any) -> JSONResponse:
        return JSONResponse({"charge": call().json()["id"]}, 201)

    return Service(idempotency, pay)


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("send", [by_requests, by_httpx])
def test_a_429_frees_the_key_through_an_sdk_too(
    idempotency: Idempotency, installed: Any, send: Send, sdk: str
) -> None:
    with scripted(Say(429), MADE) as provider:
        service = leased(idempotency, lambda: getattr(installed, sdk)(send, provider.url))
        assert service.post().status_code == 503
        assert service.post().status_code == 201
        assert len(provider.keys) == 1 and None not in provider.keys


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("send", [by_requests, by_httpx])
def test_and_so_does_a_connection_that_is_refused(
    idempotency: Idempotency, installed: Any, send: Send, sdk: str
) -> None:
    with scripted(MADE) as provider:
        urls = [f"http://127.0.0.1:{free_port()}", provider.url]
        service = leased(idempotency, lambda: getattr(installed, sdk)(send, urls.pop(0)))
        assert service.post().status_code == 503
        assert service.post().status_code == 201


def test_an_effect_that_nobody_can_look_up_is_called_again(idempotency: Idempotency, installed: Any) -> None:
    with scripted(Say(429), MADE) as provider:

        @idempotency.phased("pay", version=1)
        def pay(op: Any, _order: Any) -> Any:
            charge = op.effect("charge", lambda _: installed.raised_from(by_httpx, provider.url).json())
            return {"charge": charge["id"]}

        service = Service(idempotency, pay)
        assert service.post().status_code == 503
        assert service.post().json() == {"charge": "ch_1"}


@pytest.mark.parametrize("sdk", SDKS)
def test_what_may_have_arrived_is_unknown_through_an_sdk(
    idempotency: Idempotency, installed: Any, sdk: str
) -> None:
    with scripted(Cut(), MADE) as provider:
        service = leased(idempotency, lambda: getattr(installed, sdk)(by_requests, provider.url))
        first = service.post()
        assert first.status_code == 409
        assert service.post().json()["code"] == "outcome_unknown"
        assert len(provider.seen) == 1


def _unguarded(url: str) -> Any:
    """A second provider, by a client that samekey knows nothing of."""
    with httpx.Client(timeout=0.2) as client:
        return client.post(url, content="amount=450")


def falls_back(refused: str, other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted:
        return _unguarded(other)


def falls_back_and_blames_the_first(refused: str, other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted as first:
        try:
            return _unguarded(other)
        except httpx.HTTPError:
            raise APIConnectionError("no provider") from first


def falls_back_inside_an_sdk(refused: str, other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted:
        try:
            return _unguarded(other)
        except httpx.HTTPError:
            raise APIConnectionError("no provider")  # noqa: B904


def says_that_it_does_not_know(refused: str, _other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted as error:
        raise OutcomeUnknown("who knows") from error


def _says_so() -> None:
    raise NotExecuted("says somebody")


def has_its_own_word(_refused: str, _other: str) -> Any:
    try:
        _says_so()
    except NotExecuted as error:
        raise APIConnectionError("") from error


def is_one_of_several(refused: str, other: str) -> Any:
    with step("hold"):
        by_httpx(other)
    with step("take"):
        try:
            return by_httpx(refused)
        except NotExecuted as error:
            raise APIConnectionError("no provider") from error


def acts_otherwise_and_raises(refused: str, other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted:
        _act(other)
        raise APIConnectionError("paid otherwise, and cannot go on")  # noqa: B904


def acts_otherwise_and_raises_from_it(refused: str, other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted as error:
        _act(other)
        raise APIConnectionError("paid otherwise, and cannot go on") from error


def acts_otherwise_and_says_later(refused: str, other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted as error:
        _act(other)
        raise HTTPException(503, "later") from error


def _act(url: str) -> None:
    with httpx.Client() as client:
        client.post(url, content="amount=450").raise_for_status()


def is_one_of_a_group(refused: str, _other: str) -> Any:
    try:
        return by_httpx(refused)
    except NotExecuted as error:
        raise ExceptionGroup("several", [RuntimeError()]) from error


@pytest.mark.parametrize(
    "call",
    [
        *(falls_back, falls_back_and_blames_the_first, falls_back_inside_an_sdk, says_that_it_does_not_know),
        *(has_its_own_word, is_one_of_several, is_one_of_a_group),
        *(acts_otherwise_and_raises, acts_otherwise_and_raises_from_it, acts_otherwise_and_says_later),
    ],
)
def test_an_error_that_tells_of_something_else_too_frees_no_key(idempotency: Idempotency, call: Any) -> None:
    acts = (is_one_of_several, acts_otherwise_and_raises, acts_otherwise_and_raises_from_it)
    answer = MADE if call in (*acts, acts_otherwise_and_says_later) else Hang()
    with scripted(Say(429)) as refused, scripted(answer) as other:
        service = leased(idempotency, lambda: call(refused.url, other.url))
        service.post()
        assert service.post().json()["code"] == "outcome_unknown"
        assert len(refused.seen) <= 1


def test_a_call_that_cannot_be_made_frees_no_key_after_another_was_asked_for(
    idempotency: Idempotency,
) -> None:
    """The first went out with our key, by an SDK that knows nothing of the transport."""
    with scripted(MADE) as provider:

        def pay_and_tell() -> Any:
            current_operation().downstream_key("pay")
            _act(provider.url)
            return by_httpx(provider.url)

        service = leased(idempotency, pay_and_tell)
        service.post()
        assert service.post().json()["code"] == "outcome_unknown"
        assert len(provider.seen) == 1


@pytest.mark.parametrize("way", SDKS)
def test_a_package_that_the_profile_does_not_name_frees_no_key(
    idempotency: Idempotency, installed: Any, way: str
) -> None:
    """It may have gone another way between catching and raising."""
    core = importlib.import_module("shop_core")
    with scripted(Say(429), MADE) as provider:
        service = leased(idempotency, lambda: getattr(core, way)(by_httpx, provider.url))
        service.post()
        assert service.post().json()["code"] == "outcome_unknown"
