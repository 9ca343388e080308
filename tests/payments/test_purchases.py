"""Purchases: two steps at another provider, each with a key, a lookup and events of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from examples.provider import Entry, Fault, Kind
from tests.chosen import some
from tests.payments.running import CARDS_SECRET, Service, unique
from tests.payments.test_lost_answers import event, lost, send, transfer


def purchase() -> dict[str, Any]:
    return {"card": "4242", "amount": 300, "reference": unique("purchase")}


def by_kind(service: Service, body: dict[str, Any]) -> dict[str, Entry]:
    """What the provider has of a purchase; one of each kind at most."""
    entries = service.moved(body["reference"])
    found: dict[str, Entry] = {entry.kind: entry for entry in entries}
    assert len(found) == len(entries), entries
    return found


def test_money_is_set_aside_and_then_taken(running: Service) -> None:
    key, body = unique("key"), purchase()
    answer = running.final("/purchases", key, body)
    made = by_kind(running, body)
    assert answer.status_code == 201
    assert answer.json() == {
        **body,
        "id": answer.json()["id"],
        "status": "succeeded",
        "authorisation": made["authorisation"].id,
        "provider_id": made["capture"].id,
    }
    assert made["authorisation"].key != made["capture"].key
    assert running.final("/purchases", key, body).content == answer.content
    assert running.get(f"/purchases/{answer.json()['id']}").json() == answer.json()
    assert answer.json() in running.get("/purchases").json()["purchases"]


@pytest.mark.parametrize("kind", ["authorisation", "capture"])
def test_either_step_may_be_declined(running: Service, kind: Kind) -> None:
    key, body = unique("key"), purchase()
    running.cards.fail("decline", reference=body["reference"], kind=kind)
    answer = running.final("/purchases", key, body)
    assert (answer.status_code, answer.json()["status"]) == (402, "declined")
    assert set(by_kind(running, body)) == (set() if kind == "authorisation" else {"authorisation"})
    assert running.compare().returncode == 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    some(
        product(
            ("charge_then_drop", "error_before", "error_after", "malformed"), ("authorisation", "capture")
        ),
        lambda fault, kind: (fault, kind) == ("charge_then_drop", "capture"),
    ),
)
def test_whatever_happens_it_is_one_of_each(running: Service, fault: Fault, kind: Kind) -> None:
    key, body = unique("key"), purchase()
    running.cards.fail(fault, reference=body["reference"], kind=kind)
    running.cards.fail("webhook_strays", reference=body["reference"], times=2)
    answer = running.final("/purchases", key, body)
    made = by_kind(running, body)
    assert (answer.status_code, answer.json()["provider_id"]) == (201, made["capture"].id)
    assert answer.json()["authorisation"] == made["authorisation"].id
    assert running.compare().returncode == 0


def test_events_are_about_one_step_of_one_provider(quiet: Service) -> None:
    """The capture's answer is lost, and no worker is there to go on: whatever is said about the other step,
    or with a number that the other provider has used, is not about this."""
    quiet.provider.fail("webhook_lost", times=None)
    quiet.cards.fail("webhook_lost", times=None)
    transfer_key, transferred = unique("key"), transfer()
    lost(quiet, transfer_key, transferred)
    (moved,) = quiet.moved(transferred["reference"])
    key, body = unique("key"), purchase()
    quiet.cards.fail("charge_then_drop", reference=body["reference"], kind="capture", times=1)
    assert quiet.post("/purchases", key, body).status_code in (409, 503)
    made = by_kind(quiet, body)
    authorised, captured = made["authorisation"], made["capture"]

    def told(entry: Entry, kind: str, id: str, **changes: Any) -> tuple[int, str | None]:
        said = event(entry, id=id, type=f"{kind}.succeeded", **changes)
        return send(quiet, said, CARDS_SECRET, "cards")

    assert told(captured, "authorisation", "wrong step") == (404, "not_found")
    assert told(authorised, "capture", "wrong step too") == (404, "not_found")
    assert told(captured, "capture", "of bob", customer="acct_bob") == (404, "not_found")
    assert told(captured, "transfer", "another's") == (200, "ignored")
    assert told(authorised, "authorisation", "done") == (200, "too_late")
    # One number, two providers: both count.
    number = unique("event")
    assert send(quiet, event(moved, id=number)) == (200, "resolved")
    assert told(captured, "capture", number) == (200, "kept")
    assert told(captured, "capture", number) == (200, "duplicate")
    assert send(quiet, event(moved, id=number)) == (200, "duplicate")
    answer = quiet.final("/purchases", key, body)
    assert (answer.status_code, answer.json()["provider_id"]) == (201, captured.id)
    assert by_kind(quiet, body) == made


def test_a_secret_is_for_one_provider(quiet: Service) -> None:
    entry = Entry("ca_1", "k", "r", 1, "capture", 0.0, "acct_ann")
    assert send(quiet, event(entry, type="capture.succeeded"), source="cards") == (401, None)
    assert send(quiet, event(entry), CARDS_SECRET) == (401, None)


ASK = """
import asyncio, sys
from examples.payments import purchases
from examples.payments.service import idempotency
from samekey.core.effects import asked_about
from samekey.drivers.run import run
engine = idempotency.engine
_, record = run(engine.drivers.sync, lambda: engine.keys.read_by_id(sys.argv[1]))
effects = run(engine.drivers.sync, lambda: engine.store.finding.effects(record.id))
print(asyncio.run(purchases.look_up(asked_about(record, effects))))
"""


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("capture", "error_before"), ("authorisation", "error_after")],
    ids=["capture", "auth"],
)
def test_the_lookup_asks_about_the_step_that_was_begun(quiet: Service, kind: Kind, fault: Fault) -> None:
    """Money that was set aside is never taken for money that was taken; and what was set aside is found."""
    key, body = unique("key"), purchase()
    quiet.cards.fail("webhook_lost", reference=body["reference"], times=9)
    quiet.cards.fail(fault, reference=body["reference"], kind=kind, times=9)
    quiet.post("/purchases", key, body)
    made = by_kind(quiet, body)
    assert set(made) == {"authorisation"}
    found = [
        one for one in quiet.get("/purchases").json()["purchases"] if one["reference"] == body["reference"]
    ]
    said = subprocess.run(
        [sys.executable, "-c", ASK, found[0]["id"]],
        env={**os.environ, **quiet.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    if kind == "capture":
        assert "StillUnknown" in said
    else:
        assert "Executed" in said and made["authorisation"].id in said
