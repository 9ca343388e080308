"""The provider simulator: its ledger, its keys and its faults are what the other tests judge by."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from samekey.testing.provider import (
    FAULTS,
    Charge,
    Declined,
    Fault,
    Provider,
    ProviderClient,
    ProviderError,
    read_ledger,
)


def test_a_charge_is_in_the_ledger_before_its_answer(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    made = client.charge(450, key="k", reference="order-1")
    assert provider.charges() == [made] == [Charge("ch_1", "k", "order-1", 450)]
    assert client.find("k") == made
    assert client.find("other") is None


def test_the_same_key_charges_once(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: client.charge(450, key="k"), range(40)))
    assert len(set(made)) == len(provider.charges()) == 1
    assert provider.figures() == {"requests": 40, "charges": 1, "replays": 39}
    with pytest.raises(ProviderError, match="422") as refused:
        client.charge(451, key="k")
    assert refused.value.status == 422
    assert client.charge(450, key=None) != client.charge(450, key=None)


def test_deduplication_can_be_switched_off(tmp_path: Path) -> None:
    with Provider.start(tmp_path, deduplicate=False) as provider:
        client = ProviderClient(provider.url)
        assert client.charge(1, key="k") != client.charge(1, key="k")
        assert len(provider.charges()) == 2


def test_it_remembers_after_a_kill(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    first = client.charge(450, key="k")
    provider.kill9()
    with pytest.raises(ConnectionError):
        client.charge(450, key="k2")
    provider.ledger.write_bytes(provider.ledger.read_bytes() + b'{"id": "ch_2", "ke')  # torn by the crash
    assert provider.charges() == [first]
    provider.start_again()
    assert client.charge(450, key="k") == first
    second = client.charge(450, key="k2")
    assert provider.charges() == [first, second]


@pytest.mark.parametrize(
    ("fault", "error", "charged"),
    [
        ("decline", Declined, 0),
        ("error_before", ProviderError, 0),
        ("limit", ProviderError, 0),
        ("error_after", ProviderError, 1),
        ("charge_then_drop", ConnectionError, 1),
        ("charge_then_time_out", TimeoutError, 1),
    ],
)
def test_faults(provider: Provider, fault: Fault, error: type[Exception], charged: int) -> None:
    client = ProviderClient(provider.url, timeout=0.3)
    provider.fail(fault)
    with pytest.raises(error):
        client.charge(450, key="k")
    assert len(provider.charges()) == charged
    made = client.charge(450, key="k")  # it befalls one charge, and the key still counts
    assert provider.charges() == [made]


def test_faults_for_one_reference_and_until_further_notice(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    provider.fail("decline", times=None, reference="bad")
    provider.fail("delay", seconds=0.01)
    for _ in range(3):
        with pytest.raises(Declined):
            client.charge(1, key="k", reference="bad")
    client.charge(1, key="k2", reference="good")
    provider.recover()
    client.charge(1, key="k", reference="bad")
    assert [charge.reference for charge in provider.charges()] == ["good", "bad"]
    assert len(FAULTS) == 7


def test_nonsense_is_refused(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    with pytest.raises(ProviderError, match="no such fault"):
        provider.fail("meteorite")  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match="400"):
        client.call("POST", "/charges", {"reference": "no amount"})
    with pytest.raises(ProviderError, match="404"):
        client.call("GET", "/nothing")


def test_a_ledger_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "none") == []
    whole = json.dumps({"id": "ch_1", "key": None, "reference": "", "amount": 1})
    (tmp_path / "ledger").write_text(f"{whole}\n{whole[:10]}")
    assert read_ledger(tmp_path / "ledger") == [Charge("ch_1", None, "", 1)]
