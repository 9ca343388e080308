"""What samekey itself is worth by its own check: every shop, in every profile, and the reference service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.shop import PROFILE, PROFILES, SHOPS
from samekey.check import Budget, Endpoint, Report, check
from tests.chosen import whole
from tests.payments.running import ANN, BOB, Service, service
from tests.shop.served import Shop


def report_of(url: str, path: str, body: Any, profile: str) -> Report:
    endpoint = Endpoint(
        f"{url}{path}",
        body,
        headers=(("Authorization", f"Bearer {ANN}"),),
        other_headers=(("Authorization", f"Bearer {BOB}"),),
        count_url=f"{url}{path}",
    )
    return check(endpoint, profile, budget=Budget(rate=1000))


CASES = [
    pytest.param(name, profile, marks=() if (name, profile) == ("fastapi", "ietf") else whole)
    for name in SHOPS
    for profile in PROFILES
]


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_a_shop_is_flagged_with_nothing(
    name: str, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROFILE, profile)
    with Shop(name, f"sqlite:///{tmp_path / 'shop.db'}", [1], tmp_path) as shop:
        url = f"http://127.0.0.1:{shop.port}"
        report = report_of(url, "/orders", {"sku": "tea", "quantity": 2}, profile)
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert {"isolation.tenant", "loss.ran-again", "concurrency.mixed"} <= set(report.passed)


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("checked")
    with service(f"sqlite:///{directory / 'payments.db'}", directory) as found:
        found.start_worker()
        yield found


@whole
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/payments", {"amount": 100, "currency": "EUR", "reference": "check"}),
        ("/transfers", {"account": "acct_else", "amount": 100, "reference": "check"}),
        ("/purchases", {"card": "tok_check", "amount": 100, "reference": "check"}),
        ("/orders", {"item": "tea", "quantity": 1, "reference": "check"}),
        ("/payments/{id}/refunds", {"amount": 1, "reference": "check"}),
    ],
)
def test_the_reference_service_is_flagged_with_nothing(path: str, body: Any, payments: Service) -> None:
    if "{id}" in path:
        path = path.replace("{id}", payments.paid(1_000_000)["id"])
    report = report_of(payments.url, path, body, "ietf")
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert {"loss.ran-again", "concurrency.mixed"} <= set(report.passed)
    # Nobody refunds another account's payment, so that its refusal proves nothing about keys.
    assert ("isolation.tenant" in report.passed) == (not path.endswith("/refunds"))
