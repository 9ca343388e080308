"""What the provider does with money and keys: its ledger is what other tests judge by."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from examples.provider import Charge, Declined, Entry, Kind, Provider, ProviderClient, ProviderError
from examples.provider import read_ledger as read

KINDS: list[tuple[Kind, str]] = [("charge", "ch_1"), ("refund", "re_1"), ("transfer", "tr_1")]


@pytest.mark.parametrize(("kind", "number"), KINDS)
def test_an_entry_is_in_the_ledger_before_its_answer(provider: Provider, kind: Kind, number: str) -> None:
    client = ProviderClient(provider.url)
    began = time.time()
    made = client.move(kind, 450, key="k", reference="order-1")
    assert provider.entries() == [made]
    assert made == Entry(number, "k", "order-1", 450, kind, made.at)
    assert began - 1 <= made.at <= time.time() + 1
    assert client.find("k", kind) == made
    assert client.find("other", kind) is None
    assert provider.charges() == ([made] if kind == "charge" else [])


def test_the_same_key_charges_once(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: client.charge(450, key="k"), range(40)))
    assert len(set(made)) == len(provider.charges()) == 1
    figures = provider.figures()
    assert (figures["requests"], figures["charges"], figures["replays"]) == (40, 1, 39)
    assert client.charge(450, key=None) != client.charge(450, key=None)


def test_a_key_belongs_to_one_request(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    client.transfer(450, key="k", reference="r")
    others: list[tuple[Kind, int, str, dict[str, str]]] = [
        ("transfer", 451, "r", {}),
        ("transfer", 450, "s", {}),
        ("transfer", 450, "r", {"account": "another"}),
        ("refund", 450, "r", {}),
    ]
    for kind, amount, reference, more in others:
        with pytest.raises(ProviderError, match="422") as refused:
            client.move(kind, amount, key="k", reference=reference, **more)
        assert refused.value.status == 422
    provider.kill9()
    provider.start_again()  # it also knows that from the disk
    with pytest.raises(ProviderError, match="422"):
        client.move("transfer", 450, key="k", reference="r", account="another")
    assert len(provider.entries()) == 1


def test_deduplication_can_be_switched_off(tmp_path: Path) -> None:
    with Provider.start(tmp_path, deduplicate=False) as provider:
        client = ProviderClient(provider.url)
        assert client.charge(1, key="k") != client.charge(1, key="k")
        assert len(provider.charges()) == 2


def test_a_key_is_forgotten_after_the_window(tmp_path: Path) -> None:
    hour = 3600.0
    past = [Entry("ch_1", "old", "r", 5, "charge", time.time() - 2 * hour)]
    past.append(Entry("ch_2", "young", "r", 5, "charge", time.time()))
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in past))
    with Provider.start(tmp_path, window=hour) as provider:
        client = ProviderClient(provider.url)
        assert client.charge(5, key="young", reference="r") == past[1]
        assert client.find("old") == past[0]  # what it made can still be found
        assert client.charge(5, key="old", reference="r").id == "ch_3"
        assert len(provider.entries()) == 3


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


def test_a_refusal_is_kept_and_is_not_in_the_ledger(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    provider.fail("decline")
    for _ in range(2):
        with pytest.raises(Declined):
            client.charge(450, key="k")
    provider.kill9()
    provider.start_again()
    with pytest.raises(Declined):
        client.charge(450, key="k")
    with pytest.raises(ProviderError, match="422"):
        client.charge(451, key="k")
    assert provider.entries() == []
    assert client.charge(450, key="another").id == "ch_1"


def test_the_list_has_pages(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    assert list(client.entries()) == []
    made = [client.move(kind, n, key=f"{kind}-{n}", reference=f"r{n}") for n in range(3) for kind, _ in KINDS]
    assert list(client.entries(limit=4)) == list(client.entries(limit=9)) == made == provider.entries()
    page = client.call("GET", "/entries?limit=2&after=re_2")
    assert ([entry["id"] for entry in page["entries"]], page["more"]) == (["tr_3", "ch_4"], True)
    found = client.call("GET", "/refunds?reference=r1")["refunds"]
    assert [entry["id"] for entry in found] == ["re_5"]
    assert len(client.call("GET", "/transfers")["transfers"]) == 3
    assert client.call("GET", "/charges?key=charge-1&reference=other")["charges"] == []
    with pytest.raises(ProviderError, match="400"):
        client.call("GET", "/entries?after=nobody")


def test_nonsense_is_refused(provider: Provider) -> None:
    client = ProviderClient(provider.url)
    with pytest.raises(ProviderError, match="no such fault"):
        provider.fail("meteorite")  # type: ignore[arg-type]
    for body in ({"reference": "no amount"}, {"amount": "much"}, [1], 7):
        with pytest.raises(ProviderError, match="400"):
            client.call("POST", "/charges", body)
    for method, path in (("GET", "/nothing"), ("POST", "/entries"), ("DELETE", "/charges")):
        with pytest.raises(ProviderError, match="404"):
            client.call(method, path)
    assert provider.entries() == []


def test_a_ledger_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == []
    whole = json.dumps({"id": "ch_1", "key": None, "reference": "", "amount": 1})
    (tmp_path / "ledger").write_text(f"{whole}\n{whole[:10]}")
    assert read(tmp_path / "ledger") == [Charge("ch_1", None, "", 1)]


def test_the_command_says_what_it_takes() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "examples.provider", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for option in ("--port", "--ledger", "--window", "--latency", "--webhook-url", "--webhook-secret"):
        assert option in shown.stdout
