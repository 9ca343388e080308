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
        assert events[f"{entry.kind}.succeeded"]["id"] == f"evt_{entry.id}"
    declined = events["charge.declined"]["data"]
    assert (declined["key"], declined["reference"], declined["amount"]) == ("d", "poor", 4)
    assert all(verify_signature(SECRET, heard.signature, heard.body) for heard in receiver.heard)
    wait_until(lambda: telling.figures()["webhooks"] == 4)


def test_it_is_sent_again_until_it_is_heard(telling: Provider, receiver: Receiver) -> None:
    receiver.statuses = [500, 404]
    ProviderClient(telling.url).charge(1, key="a")
    wait_until(lambda: telling.figures()["webhooks"] == 1)
    assert receiver.ids == ["evt_ch_1"] * 3


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
    assert receiver.ids == ["evt_ch_2"]


def test_doubled(telling: Provider, receiver: Receiver) -> None:
    telling.fail("webhook_doubled")
    ProviderClient(telling.url).charge(1, key="a")
    wait_until(lambda: telling.figures()["webhooks"] == 2)
    assert receiver.ids == ["evt_ch_1"] * 2


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
    assert sorted(receiver.ids) == ["evt_ch_1", "evt_ch_2", "evt_ch_3"]
    assert receiver.ids.index("evt_ch_1") > receiver.ids.index("evt_ch_2")


def test_every_fault_of_webhooks_has_a_test() -> None:
    tested = {"webhook_lost", "webhook_doubled", "webhook_late", "webhook_reordered"}
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
