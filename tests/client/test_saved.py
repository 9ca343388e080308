"""What is saved of a request: no credentials, and none of the client's own headers."""

from __future__ import annotations

import base64

import pytest

import samekey.client.httpx2
from samekey.client import (
    Unsettled,
)

from .scripted import Cut, Say, scripted
from .test_transports import BODY, keyed, wire
from .wires import Wire

__all__ = ["wire"]


def test_credentials_in_the_url_are_not_saved() -> None:
    settings = keyed(attempts=1)
    with scripted(Cut()) as server:
        url = server.url.replace("http://", "http://me:secret@")
        with (
            samekey.client.httpx2.Client(keyed=settings, trust_env=False) as client,
            pytest.raises(Unsettled),
        ):
            client.post(f"{url}/payments", json=BODY, headers={"X-Api-Key": "secret", "X-Trace": "t"})
        (kept,) = settings.journal.pending()
    assert kept.url == f"{server.url}/payments" and b"secret" not in kept.encode()
    assert base64.b64encode(b"me:secret") not in kept.encode()
    assert ("X-Trace", "t") in kept.headers


SECRETS = (
    *("Ocp-Apim-Subscription-Key", "x-functions-key", "api_key", "X-Access-Key", "X-JWT-Assertion"),
    *("X-Signature", "Cookie", "Authorization"),
)


def test_neither_credentials_nor_the_clients_own_headers_are_saved_and_both_are_added_anew(
    wire: Wire,
) -> None:
    settings = keyed(attempts=1)
    own = {"X-Trace": "t", **dict.fromkeys(SECRETS, "SECRET")}
    with scripted(Cut()) as server:
        old = {"headers": {"X-Plain": "SECRET", "Content-Type": "application/json"}}
        with pytest.raises(Unsettled):
            wire.post(f"{server.url}/payments", b"{}", settings, headers=own, settings=old)
        (kept,) = settings.journal.pending()
        assert b"SECRET" not in kept.encode()
        assert {"x-trace", "content-type"} <= {name.lower() for name, _ in kept.headers}
        server.script[:] = [Say()]
        wire.finish_pending(
            keyed(journal=settings.journal), headers={"X-Plain": "new", "X-Access-Key": "new"}
        )
    finished = server.seen[-1].headers
    assert (finished["x-plain"], finished["x-access-key"], finished["x-trace"]) == ("new", "new", "t")
    assert finished["content-type"] == "application/json"
