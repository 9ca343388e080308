"""What samekey itself is worth by its own check: every shop, in every profile, and the reference service."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.shop import SHOPS, NoSuchShop, module_of
from lab.processes import GuardedProcess  # noqa: F401
from samekey import Policy, ietf, stripe, stripe_v2
from samekey.check import Budget, Endpoint, Report, check, serving_asgi, serving_wsgi
from tests.chosen import whole
from tests.payments.running import ANN, BOB, Service, service, unique

PROFILES: dict[str, Callable[..., Policy]] = {"ietf": ietf, "stripe": stripe, "stripe_v2": stripe_v2}


def report_of(url: str, path: str, body: Any, profile: str, count: str, tokens: tuple[str, str]) -> Report:
    ann, bob = tokens
    endpoint = Endpoint(
        f"{url}{path}",
        body,
        headers=(("Authorization", f"Bearer {ann}"),),
        other_headers=(("Authorization", f"Bearer {bob}"),),
        count_url=f"{url}{count}",
    )
    return check(endpoint, profile, budget=Budget(rate=1000))


@contextmanager
def serving_shop(name: str, url: str) -> Iterator[str]:
    shop = module_of(name)
    shop.prepare(url)
    with {"asgi": serving_asgi, "wsgi": serving_wsgi}[SHOPS[name]](shop.make(url)) as address:
        yield address


ALWAYS = {("fastapi", "ietf")}
CASES = [
    pytest.param(name, profile, marks=() if (name, profile) in ALWAYS else whole)
    for name in SHOPS
    for profile in PROFILES
    if not name.startswith(("django", "drf"))  # these have one process each: one set of settings
]


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_a_shop_is_flagged_with_nothing(
    name: str, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        shop = module_of(name)
    except NoSuchShop as error:
        pytest.skip(str(error))
    monkeypatch.setattr(shop, "policy", functools.partial(PROFILES[profile], lease=3))
    with serving_shop(name, f"sqlite:///{tmp_path / 'shop.db'}") as url:
        report = report_of(url, "/orders", {"sku": "tea", "quantity": 2}, profile, "/orders", ("ann", "bob"))
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
        ("/orders", {"item": "coffee", "quantity": 1}),
    ],
)
def test_the_reference_service_is_flagged_with_nothing(path: str, body: Any, payments: Service) -> None:
    report = report_of(payments.url, path, body, "ietf", path, (ANN, BOB))
    assert [(finding.id, finding.detail) for finding in report.findings] == []
    assert unique(path)
