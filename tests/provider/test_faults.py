"""Every fault, against the real process: what it does to the answer, and what to the ledger."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest

from examples.provider import FAULTS, WEBHOOK_FAULTS, Declined, Fault, Provider, ProviderClient
from examples.provider import ProviderError as Error
from lab.processes import wait_until

TESTED: list[tuple[Fault, type[Exception], int]] = [
    ("error_before", Error, 0),
    ("failure_told", Error, 0),
    ("limit", Error, 0),
    ("error_after", Error, 1),
    ("charge_then_drop", ConnectionError, 1),
    ("charge_then_time_out", TimeoutError, 1),
    ("malformed", ConnectionError, 1),
]


@pytest.mark.parametrize(("fault", "error", "charged"), TESTED)
def test_the_same_key_is_safe_after_it(
    provider: Provider, fault: Fault, error: type[Exception], charged: int
) -> None:
    provider.fail(fault)
    # Long enough for an entry to be written on a slow machine, where the provider is silent on purpose.
    hasty = ProviderClient(provider.url, timeout=1.0 if fault == "charge_then_time_out" else 30.0)
    with pytest.raises(error):
        hasty.charge(450, key="k")
    client = ProviderClient(provider.url)
    if charged:
        wait_until(provider.charges)  # it may be late, where nobody waited for it
    else:
        assert client.find("k") is None
    made = client.charge(450, key="k")  # it befalls one request, and the key still counts
    assert provider.charges() == [made]


def test_a_delay_is_no_failure(provider: Provider) -> None:
    provider.fail("delay", seconds=0.05)
    made = ProviderClient(provider.url, timeout=30).transfer(450, key="k")
    assert provider.entries() == [made]


def test_a_decline_stays(provider: Provider) -> None:
    provider.fail("decline")
    client = ProviderClient(provider.url)
    for _ in range(2):
        with pytest.raises(Declined):
            client.refund(450, key="k")
    assert provider.entries() == []
    assert provider.figures()["declines"] == 1


def test_a_limit_says_when_to_come_again(provider: Provider) -> None:
    provider.fail("limit")
    connection = http.client.HTTPConnection(urlsplit(provider.url).netloc, timeout=30)
    connection.request("POST", "/charges", '{"amount": 1}')
    response = connection.getresponse()
    response.read()
    connection.close()
    assert (response.status, response.headers["Retry-After"]) == (429, "1")


def test_for_one_reference_and_until_further_notice(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    provider.fail("error_before", times=None, reference="bad")
    provider.fail("delay", seconds=0.01)
    for _ in range(3):
        with pytest.raises(Error):
            client.charge(1, key="k", reference="bad")
    client.charge(1, key="k2", reference="good")
    provider.recover()
    client.charge(1, key="k", reference="bad")
    assert [charge.reference for charge in provider.charges()] == ["good", "bad"]


def test_every_fault_has_a_test() -> None:
    assert {fault for fault, _, _ in TESTED} | {"delay", "decline"} == FAULTS - WEBHOOK_FAULTS
