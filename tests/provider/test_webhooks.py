"""Webhooks of the provider: signed, sent until they are heard, and failing on demand."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from examples.provider import (
    WEBHOOK_FAULTS,
    Declined,
    Provider,
    ProviderClient,
    ProviderError,
    sign,
    verify_signature,
)
from lab.processes import LOOPBACK, free_port, wait_until
from tests.provider.conftest import SECRET, Receiver


def test_every_movement_of_money_is_told(telling: Provider, receiver: Receiver) -> None:
    client = ProviderClient(telling.url)
    made = [client.charge(1, key="a", reference="r"), client.refund(2, key="b"), client.transfer(3, key="c")]
    client.charge(1, key="a", reference="r")  # a replay is not told again
    telling.fail("decline")
    with pytest.raises(Declined):
        client.charge(4, key="d", reference="poor")
    wait_until(lambda: len(receiver.heard) == 4)
    events = {heard.event["type"]: heard.event for heard in receiver.heard}
    assert events.keys() == {"charge.succeeded", "refund.succeeded", "transfer.succeeded", "charge.declined"}
    for entry in made:
        assert events[f"{entry.kind}.succeeded"]["data"] == asdict(entry)
    # Numbers, as any other provider has them too.
    assert {name: event["id"] for name, event in events.items()} == {
        "charge.succeeded": "1",
        "refund.succeeded": "3",
        "transfer.succeeded": "5",
        "charge.declined": "2",
    }
    declined = events["charge.declined"]["data"]
    assert (declined["key"], declined["reference"], declined["amount"]) == ("d", "poor", 4)
    assert all(verify_signature(SECRET, heard.signature, heard.body) for heard in receiver.heard)
    wait_until(lambda: telling.figures()["webhooks"] == 4)


def test_it_is_sent_again_until_it_is_heard(telling: Provider, receiver: Receiver) -> None:
    receiver.statuses = [500, 404]
    ProviderClient(telling.url).charge(1, key="a")
    wait_until(lambda: telling.figures()["webhooks"] == 1)
    assert receiver.ids == ["1"] * 3


def test_a_receiver_that_is_not_there_does_no_harm(tmp_path: Path) -> None:
    url = f"http://{LOOPBACK}:{free_port()}/"
    with Provider.start(tmp_path, webhook_url=url, webhook_secret=SECRET) as provider:
        ProviderClient(provider.url).charge(1, key="a")
        assert len(provider.charges()) == 1
        assert provider.figures()["webhooks"] == 0


def test_lost(telling: Provider, receiver: Receiver) -> None:
    client = ProviderClient(telling.url)
    telling.fail("webhook_lost", reference="lost")
    client.charge(1, key="a", reference="lost")
    client.charge(1, key="b", reference="told")
    wait_until(lambda: telling.figures()["webhooks"] == 1)
    assert receiver.ids == ["3"]


def test_doubled(telling: Provider, receiver: Receiver) -> None:
    telling.fail("webhook_doubled")
    ProviderClient(telling.url).charge(1, key="a")
    wait_until(lambda: telling.figures()["webhooks"] == 2)
    assert receiver.ids == ["1"] * 2


def test_late(telling: Provider, receiver: Receiver) -> None:
    telling.fail("webhook_late", seconds=0.3)
    made = ProviderClient(telling.url).charge(1, key="a")
    wait_until(lambda: receiver.heard)
    assert time.time() >= made.at + 0.2  # two clocks: the sleep is by another one


def test_reordered(telling: Provider, receiver: Receiver) -> None:
    client = ProviderClient(telling.url)
    telling.fail("webhook_reordered")
    for key in ("a", "b", "c"):
        client.charge(1, key=key)
    wait_until(lambda: telling.figures()["webhooks"] == 3)
    assert sorted(receiver.ids) == ["1", "3", "5"]
    assert receiver.ids.index("1") > receiver.ids.index("3")


def test_again(telling: Provider, receiver: Receiver) -> None:
    telling.fail("webhook_again", seconds=0.01)
    ProviderClient(telling.url).charge(1, key="a")
    wait_until(lambda: telling.figures()["webhooks"] == 2)
    assert receiver.ids == ["1"] * 2


def test_strays_come_before_it_once_each(telling: Provider, receiver: Receiver) -> None:
    """Each is wrong about one thing: whose it is, which step, when."""
    telling.fail("webhook_strays")
    receiver.statuses = [404, 404, 404]
    made = ProviderClient(telling.url).move("capture", 1, key="a", reference="r", customer="ann")
    wait_until(lambda: telling.figures()["webhooks"] == 1)
    *strays, last = [heard.event for heard in receiver.heard]
    assert (last["id"], last["type"], last["data"]) == ("1", "capture.succeeded", asdict(made))
    assert made.customer == "ann"
    told = [(one["type"], one["data"]["customer"] == "ann", one["created"] == made.at) for one in strays]
    assert told == [
        ("capture.declined", False, True),
        ("authorisation.declined", True, True),
        ("capture.failed", True, False),
    ]
    assert {one["data"]["key"] for one in strays} == {"a"}
    assert len({one["id"] for one in strays} | {"1"}) == 4


def test_a_failure_is_told_late_and_its_event_has_a_number_of_its_own(
    telling: Provider, receiver: Receiver
) -> None:
    client = ProviderClient(telling.url)
    telling.fail("failure_told", seconds=0.05)
    with pytest.raises(ProviderError):
        client.transfer(1, key="a", reference="r")
    made = client.transfer(1, key="a", reference="r")  # the key is as good as new
    wait_until(lambda: telling.figures()["webhooks"] == 2)
    failed = next(heard.event for heard in receiver.heard if heard.event["type"] == "transfer.failed")
    assert (failed["id"], failed["data"]["key"]) == ("2", "a")
    assert failed["created"] <= made.at
    telling.kill9()
    telling.start_again()
    assert client.transfer(1, key="a", reference="r") == made  # and is not refused after a restart
    telling.fail("failure_told", seconds=0.01)
    with pytest.raises(ProviderError):
        client.transfer(1, key="b", reference="r")
    wait_until(lambda: "4" in receiver.ids)


def test_every_fault_of_webhooks_has_a_test() -> None:
    tested = {
        *("webhook_lost", "webhook_doubled", "webhook_again"),
        *("webhook_late", "webhook_reordered", "webhook_strays"),
    }
    assert tested == WEBHOOK_FAULTS


def test_a_signature_is_for_one_body_one_secret_and_a_while() -> None:
    header = sign(SECRET, b"body", at=1000.7)
    assert verify_signature(SECRET, header, b"body", now=1000)
    assert verify_signature(SECRET, header, b"body", 60, now=1060)
    refused = [
        verify_signature(SECRET, header, b"body", 60, now=1061),
        verify_signature(SECRET, header, b"body", 60, now=939),
        verify_signature(SECRET, header, b"other", now=1000),
        verify_signature("other", header, b"body", now=1000),
        verify_signature(SECRET, None, b"body", now=1000),
        verify_signature(SECRET, "", b"body", now=1000),
        verify_signature(SECRET, header.replace("t=1000", "t=1001"), b"body", now=1000),
        verify_signature(SECRET, header.upper(), b"body", now=1000),
        verify_signature(SECRET, f"{header},v1=00", b"body", now=1000),
        verify_signature(SECRET, "t=١٠٠٠,v1=" + "0" * 64, b"body", now=1000),
    ]
    assert not any(refused)
