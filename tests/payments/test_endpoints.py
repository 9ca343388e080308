"""Each endpoint: the golden path, a retry, a mismatch, another tenant, a refusal."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from examples.provider import Fault
from tests.payments.running import BOB, Service, unique


def payment(**changes: Any) -> dict[str, Any]:
    return {"amount": 1250, "currency": "EUR", "reference": unique("payment"), **changes}


def refund(**changes: Any) -> dict[str, Any]:
    return {"amount": 40, "reference": unique("refund"), **changes}


def order(**changes: Any) -> dict[str, Any]:
    return {"item": "coffee", "quantity": 2, "reference": unique("order"), **changes}


def transfer(**changes: Any) -> dict[str, Any]:
    return {"account": "DE89 3704 0044", "amount": 700, "reference": unique("transfer"), **changes}


# --- payments: deferred


def test_a_payment(running: Service) -> None:
    key, body = unique("key"), payment()
    first = running.post("/payments", key, body)
    accepted = first.json()
    assert (first.status_code, accepted["status"], accepted["provider_id"]) == (202, "pending", None)
    assert first.headers["Location"] == f"/idempotency/{accepted['id']}"
    final = running.final("/payments", key, body)
    (charge,) = running.moved(body["reference"])
    assert (charge.kind, charge.amount) == ("charge", 1250)
    assert final.status_code == 201
    assert final.headers["Idempotent-Replayed"] == "true"
    assert final.json() == {
        "id": accepted["id"],
        "status": "succeeded",
        "amount": 1250,
        "currency": "EUR",
        "reference": body["reference"],
        "provider_id": charge.id,
    }
    assert running.post("/payments", key, body).content == final.content
    assert running.get(f"/payments/{accepted['id']}").json() == {**final.json(), "refunded": 0}
    status = running.get(first.headers["Location"]).json()
    assert (status["state"], status["answer"]["body"]) == ("completed", final.text)


def test_a_declined_payment(running: Service) -> None:
    key, body = unique("key"), payment()
    running.provider.fail("decline", reference=body["reference"])
    final = running.final("/payments", key, body)
    assert (final.status_code, final.json()["status"], final.json()["provider_id"]) == (402, "declined", None)
    assert running.post("/payments", key, body).content == final.content
    assert running.moved(body["reference"]) == []
    refused = running.post(f"/payments/{final.json()['id']}/refunds", unique("key"), refund())
    assert refused.status_code == 409


def test_whatever_happens_it_is_one_charge(running: Service) -> None:
    faults: tuple[Fault, ...] = ("charge_then_drop", "error_after", "malformed", "error_before", "limit")
    bodies = {unique("key"): payment() for _ in faults}
    for fault, (key, body) in zip(faults, bodies.items(), strict=True):
        running.provider.fail(fault, times=2, reference=body["reference"])
        assert running.post("/payments", key, body).status_code == 202
    for key, body in bodies.items():
        final = running.final("/payments", key, body)
        assert final.status_code == 201
        assert [entry.id for entry in running.moved(body["reference"])] == [final.json()["provider_id"]]


# --- refunds: phased


def test_a_refund(running: Service) -> None:
    paid = running.paid(100)
    path, key, body = f"/payments/{paid['id']}/refunds", unique("key"), refund()
    first = running.post(path, key, body)
    (moved,) = running.moved(body["reference"])
    assert (moved.kind, moved.amount) == ("refund", 40)
    assert first.status_code == 201
    assert first.json() == {
        "id": first.json()["id"],
        "payment": paid["id"],
        "status": "succeeded",
        "amount": 40,
        "reference": body["reference"],
        "provider_id": moved.id,
    }
    again = running.post(path, key, body)
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert running.get(path).json() == {"refunds": [first.json()]}
    assert running.get(f"/payments/{paid['id']}").json()["refunded"] == 40
    assert running.post(path, unique("key"), refund(amount=61)).status_code == 409
    assert running.post(path, unique("key"), refund(amount=60)).status_code == 201


def test_a_declined_refund_frees_what_it_had_reserved(running: Service) -> None:
    paid, body = running.paid(100), refund(amount=100)
    running.provider.fail("decline", reference=body["reference"])
    path = f"/payments/{paid['id']}/refunds"
    declined = running.post(path, unique("key"), body)
    assert (declined.status_code, declined.json()["status"]) == (402, "declined")
    assert running.get(f"/payments/{paid['id']}").json()["refunded"] == 0
    assert running.post(path, unique("key"), refund(amount=100)).status_code == 201


def test_whatever_happens_it_is_one_refund(running: Service) -> None:
    faults: dict[Fault, int] = {"charge_then_drop": 409, "error_after": 409, "malformed": 409, "limit": 503}
    path = f"/payments/{running.paid()['id']}/refunds"
    bodies = {unique("key"): refund(amount=10) for _ in faults}
    for (fault, status), (key, body) in zip(faults.items(), bodies.items(), strict=True):
        running.provider.fail(fault, reference=body["reference"])
        assert running.post(path, key, body).status_code == status
    for key, body in bodies.items():
        final = running.final(path, key, body)
        assert final.status_code == 201
        assert [entry.id for entry in running.moved(body["reference"])] == [final.json()["provider_id"]]


def test_no_refund_of_what_is_not_there(running: Service) -> None:
    paid = running.paid()
    for path in ("/payments/nothing/refunds", f"/payments/{'0' * 32}/refunds"):
        assert running.post(path, unique("key"), refund()).status_code == 404
    of_ann = f"/payments/{paid['id']}/refunds"
    assert running.post(of_ann, unique("key"), refund(), BOB).status_code == 404
    assert running.get(of_ann, BOB).status_code == 404
    assert running.get(of_ann).json() == {"refunds": []}


# --- orders: atomic


def test_an_order(running: Service) -> None:
    before = running.get("/stock").json()["stock"]["coffee"]
    key, body = unique("key"), order(quantity=3)
    first = running.post("/orders", key, body)
    assert (first.status_code, first.json()) == (201, {"id": first.json()["id"], **body})
    again = running.post("/orders", key, body)
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    assert running.get(f"/orders/{first.json()['id']}").json() == first.json()
    # Other tests of this process order coffee too, but none of them at this moment.
    assert running.get("/stock").json()["stock"]["coffee"] == before - 3


def test_what_is_sold_out_cannot_be_ordered(running: Service) -> None:
    key, body = unique("key"), order(item="cake", quantity=13)
    refused = running.post("/orders", key, body)
    assert refused.status_code == 409
    assert running.post("/orders", key, body).content == refused.content
    assert running.post("/orders", unique("key"), order(item="no such thing")).status_code == 409
    assert running.get("/stock").json()["stock"]["cake"] == 12


def test_text_is_taken_letter_by_letter(running: Service) -> None:
    """Whatever the database's collation says, and whatever its driver makes of signs that mean something."""
    for item in ("Tea", "tea ", " tea"):
        assert running.post("/orders", unique("key"), order(item=item)).status_code == 409
    for reference in (f"é'\\\"%s$1? {unique('sign')}", "😀" * 64):
        made = running.post("/orders", unique("key"), order(reference=reference)).json()
        assert made["reference"] == reference
        assert running.get(f"/orders/{made['id']}").json() == made


# --- transfers: leased


def test_a_transfer(running: Service) -> None:
    key, body = unique("key"), transfer()
    first = running.post("/transfers", key, body)
    (moved,) = running.moved(body["reference"])
    assert (moved.kind, moved.amount) == ("transfer", 700)
    assert first.status_code == 201
    assert first.json() == {
        "id": first.json()["id"],
        "status": "succeeded",
        "amount": 700,
        "account": body["account"],
        "reference": body["reference"],
        "provider_id": moved.id,
    }
    assert running.post("/transfers", key, body).content == first.content
    assert running.get(f"/transfers/{first.json()['id']}").json() == first.json()
    assert len(running.moved(body["reference"])) == 1


def test_a_declined_transfer(running: Service) -> None:
    key, body = unique("key"), transfer()
    running.provider.fail("decline", reference=body["reference"])
    first = running.post("/transfers", key, body)
    assert (first.status_code, first.json()["status"]) == (402, "declined")
    assert running.post("/transfers", key, body).content == first.content
    assert running.moved(body["reference"]) == []


def test_a_transfer_that_was_not_looked_at_is_tried_again(running: Service) -> None:
    key, body = unique("key"), transfer()
    running.provider.fail("limit", reference=body["reference"])
    assert running.post("/transfers", key, body).status_code == 503
    assert running.post("/transfers", key, body).status_code == 201
    assert len(running.moved(body["reference"])) == 1


# --- all of them


def test_a_key_belongs_to_one_request(running: Service) -> None:
    paid = running.paid()
    requests: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("/payments", payment(), {"amount": 1251}),
        (f"/payments/{paid['id']}/refunds", refund(), {"amount": 41}),
        ("/orders", order(), {"quantity": 3}),
        ("/transfers", transfer(), {"account": "DE00"}),
    ]
    for path, body, change in requests:
        key = unique("key")
        assert running.post(path, key, body).status_code in (201, 202)
        refused = running.post(path, key, {**body, **change})
        assert (refused.status_code, refused.json()["code"]) == (422, "reused")
        # Another account's key is another key.
        assert running.post(path, key, {**body, **change}, BOB).status_code in (201, 202, 404)


def test_nobody_sees_anything_of_another_account(running: Service) -> None:
    paid = running.paid()
    ordered = running.post("/orders", unique("key"), order()).json()
    sent = running.post("/transfers", unique("key"), transfer()).json()
    for path in (f"/payments/{paid['id']}", f"/orders/{ordered['id']}", f"/transfers/{sent['id']}"):
        assert running.get(path).status_code == 200
        assert running.get(path, BOB).status_code == 404
    assert running.get(f"/idempotency/{sent['id']}", BOB).status_code == 404
    for name, mine in (("payments", paid), ("orders", ordered), ("transfers", sent)):
        assert mine["id"] in {one["id"] for one in running.get(f"/{name}").json()[name]}
        assert mine["id"] not in {one["id"] for one in running.get(f"/{name}", BOB).json()[name]}


@pytest.mark.parametrize(
    "sent", [b"", b"token-of-ann", b"Basic token-of-ann", b"Bearer token-of-eve", b"Bearer \xff"]
)
def test_a_token_is_needed(quiet: Service, sent: bytes) -> None:
    headers = [(b"Authorization", sent), (b"Idempotency-Key", unique("key").encode())]
    for path in ("/payments", f"/payments/{'0' * 32}/refunds", "/orders", "/transfers"):
        assert httpx2.post(quiet.url + path, headers=headers, json={}).status_code == 401
        assert httpx2.get(quiet.url + path, headers=headers).status_code == 401
    assert httpx2.get(f"{quiet.url}/idempotency/{'0' * 32}", headers=headers).status_code == 401


def test_lists_have_pages(running: Service) -> None:
    for path, body in (("orders", order), ("transfers", transfer)):
        for _ in range(3):
            assert running.post(f"/{path}", unique("key"), body()).status_code == 201
    running.paid()
    running.paid()
    for name in ("payments", "orders", "transfers"):
        everything = running.get(f"/{name}").json()[name]
        paged, after = [], ""
        while page := running.get(f"/{name}?limit=2{after}").json()[name]:
            paged += page
            after = f"&after={page[-1]['id']}"
        assert paged == everything


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/payments", payment(amount=0)),
        ("/payments", payment(amount=1_000_001)),
        ("/payments", payment(amount=1.5)),
        ("/payments", payment(amount=True)),
        ("/payments", payment(amount="5")),
        ("/payments", payment(currency="USD")),
        ("/payments", payment(reference="")),
        ("/payments", payment(reference="x" * 65)),
        ("/payments", payment(reference="a\x00b")),
        ("/payments", payment(tip=5)),
        ("/orders", order(quantity=0)),
        ("/transfers", transfer(account="\n")),
        ("/transfers", []),
        (f"/payments/{'0' * 32}/refunds", refund(amount=-1)),
    ],
)
def test_what_makes_no_sense_is_refused_and_not_remembered(quiet: Service, path: str, body: Any) -> None:
    key = unique("key")
    refused = quiet.post(path, key, body)
    assert refused.status_code == 422
    assert "Idempotent-Replayed" not in quiet.post(path, key, body).headers


def test_a_key_is_needed(quiet: Service) -> None:
    for path, body in (("/payments", payment()), ("/orders", order()), ("/transfers", transfer())):
        refused = quiet.post(path, None, body)
        assert (refused.status_code, refused.json()["code"]) == (400, "missing")


def test_metrics_need_no_token(running: Service) -> None:
    shown = httpx2.get(f"{running.url}/metrics")
    assert shown.status_code == 200
    assert "api_idempotency_reserve_created_count_total" in shown.text
