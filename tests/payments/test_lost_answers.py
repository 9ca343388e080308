"""A transfer whose answer was lost: unknown, and found out by the lookup or by the provider's own word."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2

from examples.provider import SIGNATURE, Entry, sign
from tests.chosen import whole
from tests.payments.running import SECRET, Service, unique

pytestmark = whole


def transfer() -> dict[str, Any]:
    return {"account": "DE89", "amount": 700, "reference": unique("transfer")}


def lost(service: Service, key: str, body: dict[str, Any]) -> None:
    """The money moves, and the connection is cut before the answer."""
    service.provider.fail("charge_then_drop", reference=body["reference"])
    answer = service.post("/transfers", key, body)
    assert (answer.status_code, answer.json()["code"]) == (409, "outcome_unknown")


def check_found_out(service: Service, key: str, body: dict[str, Any]) -> None:
    final = service.final("/transfers", key, body)
    (moved,) = service.moved(body["reference"])
    assert (final.status_code, final.json()["provider_id"]) == (201, moved.id)
    assert final.headers["Idempotent-Replayed"] == "true"
    assert service.get(f"/transfers/{final.json()['id']}").json() == final.json()


def test_the_lookup_finds_out(running: Service) -> None:
    key, body = unique("key"), transfer()
    running.provider.fail("webhook_lost", reference=body["reference"])
    lost(running, key, body)
    check_found_out(running, key, body)


def test_a_webhook_says_it(quiet: Service) -> None:
    """It comes after the next one, so the outcome is unknown when it comes; and no worker is there to ask."""
    key, body = unique("key"), transfer()
    quiet.provider.fail("webhook_reordered", reference=body["reference"])
    lost(quiet, key, body)
    again = quiet.post("/transfers", key, body)
    assert (again.status_code, again.json()["code"]) == (409, "outcome_unknown")
    assert quiet.post("/transfers", unique("key"), transfer()).status_code == 201
    check_found_out(quiet, key, body)


def test_each_event_counts_once_and_none_without_a_signature(quiet: Service) -> None:
    key, body = unique("key"), transfer()
    quiet.provider.fail("webhook_lost", times=None)
    lost(quiet, key, body)
    (moved,) = quiet.moved(body["reference"])
    forged = event(moved)
    assert send(quiet, forged, secret="guessed") == (401, None)
    assert send(quiet, forged, secret="") == (401, None)
    assert send(quiet, forged, secret=None) == (401, None)
    assert quiet.post("/transfers", key, body).json()["code"] == "outcome_unknown"
    # Not what was asked for: another transfer under the same key, from before it was used anew.
    assert send(quiet, event(moved, id="other", amount=1)) == (404, "not_found")
    assert send(quiet, event(moved, id="older", at=moved.at - 86400)) == (404, "not_found")
    # Not by whom, or not what, the operation was for.
    assert send(quiet, event(moved, id="of bob", customer="acct_bob")) == (404, "not_found")
    assert send(quiet, event(moved, id="a refund", type="refund.succeeded")) == (404, "not_found")
    assert send(quiet, event(moved, id="a capture", type="capture.succeeded")) == (200, "ignored")
    assert quiet.post("/transfers", key, body).json()["code"] == "outcome_unknown"
    assert send(quiet, event(moved)) == (200, "resolved")
    assert send(quiet, event(moved)) == (200, "duplicate")
    assert send(quiet, event(moved, id="another event")) == (200, "too_late")
    assert send(quiet, event(moved, id="stranger", key="nobody's")) == (404, "not_found")
    assert send(quiet, event(moved, id="of another kind", type="charge.succeeded")) == (200, "ignored")
    check_found_out(quiet, key, body)


def test_a_webhook_says_that_it_was_declined(quiet: Service) -> None:
    """Declined, and the answer was lost: the provider's ledger has nothing, only its event tells."""
    key, body = unique("key"), transfer()
    quiet.provider.fail("webhook_lost", times=None)
    quiet.provider.fail("error_before", reference=body["reference"])  # a 500 that could mean anything
    assert quiet.post("/transfers", key, body).json()["code"] == "outcome_unknown"
    (operation,) = quiet.transfers(body["reference"])
    assert operation["status"] == "pending"
    made = Entry(
        "de_1",
        downstream_key(quiet, operation["id"]),
        body["reference"],
        700,
        "transfer",
        time.time(),
        "acct_ann",
    )
    assert send(quiet, event(made, type="transfer.declined")) == (200, "resolved")
    final = quiet.post("/transfers", key, body)
    assert (final.status_code, final.json()["status"]) == (402, "declined")
    assert quiet.get(f"/transfers/{operation['id']}").json() == final.json()


def test_what_is_no_event_is_refused(quiet: Service) -> None:
    for body in (b"", b"{", b"[]", b"{}", b'{"id": 1, "type": "x", "data": {}}', b"\xff"):
        headers = {SIGNATURE: sign(SECRET, body, time.time())}
        answer = httpx2.post(f"{quiet.url}/webhooks/provider", content=body, headers=headers, timeout=60)
        assert answer.status_code == 400, body


def downstream_key(service: Service, operation_id: str) -> str:
    """What the service sent to the provider for an operation, as an operator finds it."""
    from samekey import Idempotency
    from samekey.drivers.run import run

    idempotency = Idempotency(service.environment["DATABASE_URL"])
    try:
        found = run(idempotency.engine.drivers.sync, lambda: idempotency.engine.keys.read_by_id(operation_id))
        assert found is not None
        return found[1].downstream_key()
    finally:
        idempotency.close()


def event(
    entry: Entry, id: str | None = None, type: str = "transfer.succeeded", **changes: Any
) -> dict[str, Any]:
    data = {
        "id": entry.id,
        "key": entry.key,
        "reference": entry.reference,
        "amount": entry.amount,
        "kind": entry.kind,
        "at": entry.at,
        "customer": entry.customer,
        **changes,
    }
    return {"id": id or f"evt_{entry.id}", "type": type, "data": data}


def test_an_event_without_a_signature_is_not_read_for_ever(quiet: Service) -> None:
    """Its body has no end; the answer comes all the same."""
    address = urlsplit(quiet.url)
    piece = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=30) as connection:
        connection.sendall(
            b"POST /webhooks/provider HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(piece * 32)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def send(
    service: Service, event: dict[str, Any], secret: str | None = SECRET, source: str = "provider"
) -> tuple[int, str | None]:
    """As the provider would; with another secret as somebody else would."""
    body = json.dumps(event).encode()
    headers = {} if secret is None else {SIGNATURE: sign(secret, body, time.time())}
    answer = httpx2.post(f"{service.url}/webhooks/{source}", content=body, headers=headers, timeout=60)
    return answer.status_code, answer.json().get("resolution")
