"""What an auth flow sends on its own account is not the caller's operation, and passes untouched."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
import requests

import samekey.client.httpx2
import samekey.client.requests
from samekey.client import FileJournal, OperationChanged, Unsettled, operation

from .scripted import Cut, Say, Scripted, scripted
from .test_transports import BODY, keyed

TOKEN = Say(200, b'{"access_token": "new"}')


class Refreshing(httpx2.Auth):
    """As httpx's own documentation shows it."""

    requires_response_body = True

    def __init__(self, url: str) -> None:
        self.url = url

    def auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        request.headers["Authorization"] = "Bearer old"
        answer = yield request
        if answer.status_code == 401:
            said = yield httpx2.Request("POST", f"{self.url}/token", data={"refresh_token": "REFRESH-SECRET"})
            request.headers["Authorization"] = f"Bearer {said.json()['access_token']}"
            yield request


def check(server: Scripted, folder: Path) -> None:
    tokens = [one for one in server.seen if one.path == "/token"]
    assert tokens and all(one.key is None for one in tokens)
    paid = [one for one in server.seen if one.path == "/payments"]
    assert paid[-1].headers["authorization"] == "Bearer new" and len({one.key for one in paid}) == 1
    assert all(b"REFRESH-SECRET" not in path.read_bytes() for path in folder.glob("*.operation"))


@pytest.mark.parametrize("name", ["order 17", None])
def test_a_token_that_is_refreshed_on_the_way(tmp_path: Path, name: str | None) -> None:
    with scripted(Say(401, b""), TOKEN, Cut(), Say()) as server:
        client = samekey.client.httpx2.Client(
            keyed=keyed(journal=FileJournal(tmp_path)), trust_env=False, auth=Refreshing(server.url)
        )
        with client, operation(name) if name else nullcontext():
            assert client.post(f"{server.url}/payments", json=BODY).status_code == 201
    check(server, tmp_path)
    assert FileJournal(tmp_path).pending() == []


def test_a_token_that_is_refreshed_on_the_way_of_what_is_finished_later(tmp_path: Path) -> None:
    settings = keyed(attempts=1, journal=FileJournal(tmp_path))

    async def pay(server: Scripted) -> None:
        auth = Refreshing(server.url)
        async with samekey.client.httpx2.AsyncClient(keyed=settings, trust_env=False, auth=auth) as client:
            with pytest.raises(Unsettled), operation("order 17"):
                await client.post(f"{server.url}/payments", json=BODY)
            server.script[:] = [Say(401, b""), TOKEN, Say()]
            (one,) = client.pending()
            assert (await one.finish()).status_code == 201
            assert client.pending() == []

    with scripted(Cut()) as server:
        asyncio.run(pay(server))
    check(server, tmp_path)


@pytest.mark.parametrize("name", ["order 17", None])
def test_a_hook_of_requests_that_fetches_a_token_and_sends_a_copy(tmp_path: Path, name: str | None) -> None:
    def refresh(answer: Any, **options: Any) -> Any:
        if answer.status_code != 401:
            return answer
        asked = requests.Request("POST", f"{server.url}/token", data={"refresh_token": "REFRESH-SECRET"})
        answer.connection.send(asked.prepare(), **options)
        copy = answer.request.copy()
        copy.headers["Authorization"] = "Bearer new"
        return answer.connection.send(copy, **options)

    with scripted(Say(401, b""), TOKEN, Cut(), Say()) as server:
        session = samekey.client.requests.Session(keyed=keyed(journal=FileJournal(tmp_path)))
        session.trust_env = False
        session.hooks["response"].append(refresh)
        with session, operation(name) if name else nullcontext():
            assert session.post(f"{server.url}/payments", json=BODY).status_code == 201
    check(server, tmp_path)


def test_two_requests_of_the_callers_under_one_name_are_still_refused() -> None:
    with (
        scripted(Say()) as server,
        samekey.client.httpx2.Client(keyed=keyed(), trust_env=False) as client,
        operation("order 17"),
    ):
        client.post(f"{server.url}/payments", json=BODY)
        client.post(f"{server.url}/payments", json=BODY)
        with pytest.raises(OperationChanged):
            client.post(f"{server.url}/refunds", json=BODY)
    assert len(server.seen) == 2 and len(server.keys) == 1


def test_a_bare_transport_knows_the_first_request_and_refuses_another_under_its_name() -> None:
    transport = samekey.client.httpx2.KeyedTransport(keyed=keyed())
    with (
        scripted(Say(401, b""), Say()) as server,
        scripted(TOKEN) as elsewhere,
        httpx2.Client(transport=transport, trust_env=False) as client,
        operation("order 17"),
    ):
        client.post(f"{server.url}/payments", json=BODY)
        for other in (elsewhere, server):
            with pytest.raises(OperationChanged, match="Client or Session"):
                client.post(f"{other.url}/token", json={})
        assert client.post(f"{server.url}/payments", json=BODY).status_code == 201
    assert len(server.seen) == 2 and elsewhere.seen == []
