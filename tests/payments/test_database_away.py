"""The database is away, or a statement is cut off in the middle: 503, never a 500, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy, cut_after, cut_before
from lab.torture.service.links import MySQLProxy
from tests.chosen import whole
from tests.payments.running import Service, service, unique

pytestmark = whole


@pytest.fixture(
    scope="module", params=[("postgres", FaultProxy), ("mariadb", MySQLProxy)], ids=lambda one: one[0]
)
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, FaultProxy]]:
    name, kind = request.param
    url = request.getfixturevalue(f"{name}_server").create_database()
    with (
        kind.before(url) as proxy,
        service(proxy.url_for(url), tmp_path_factory.mktemp("proxied")) as found,
    ):
        yield found, proxy


@pytest.fixture
def away(proxied: tuple[Service, FaultProxy]) -> Iterator[tuple[Service, FaultProxy]]:
    yield proxied
    proxied[1].clear()
    proxied[1].accept()
    # Its circuit breaker may be open for some seconds.
    wait_until(lambda: proxied[0].get("/payments").status_code == 200, timeout=120)


def order() -> dict[str, Any]:
    return {"item": "tea", "quantity": 1, "reference": unique("order")}


def transfer() -> dict[str, Any]:
    return {"account": "DE89", "amount": 700, "reference": unique("transfer")}


def test_nothing_is_done_without_it(away: tuple[Service, FaultProxy]) -> None:
    found, proxy = away
    proxy.refuse()
    proxy.cut_all()
    for path in ("/payments", "/orders", "/transfers", "/stock"):
        answer = found.get(path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    for path, body in (("/orders", order()), ("/transfers", transfer())):
        assert found.post(path, unique("key"), body).status_code == 503
        assert found.moved(body["reference"]) == []


def test_an_order_that_is_cut_off_can_be_sent_again(away: tuple[Service, FaultProxy]) -> None:
    found, proxy = away
    before = found.get("/stock").json()["stock"]["tea"]
    key, body = unique("key"), order()
    proxy.on_statement("update stock.*", cut_before)
    assert found.post("/orders", key, body).status_code == 503
    assert found.final("/orders", key, body).status_code == 201
    assert found.get("/stock").json()["stock"]["tea"] == before - 1


def test_a_transfer_is_not_begun_without_its_row(away: tuple[Service, FaultProxy]) -> None:
    found, proxy = away
    key, body = unique("key"), transfer()
    proxy.on_statement("insert into transfers.*", cut_before)
    assert found.post("/transfers", key, body).status_code == 503
    assert found.moved(body["reference"]) == []
    assert found.final("/transfers", key, body).status_code == 201
    assert len(found.moved(body["reference"])) == 1


def test_a_transfer_that_is_not_in_our_books_is_unknown(away: tuple[Service, FaultProxy]) -> None:
    """The money has moved. The provider's word comes again by webhook, and settles the row too."""
    found, proxy = away
    key, body = unique("key"), transfer()
    found.provider.fail("webhook_reordered", reference=body["reference"])
    proxy.on_statement("update transfers.*", cut_after)
    cut = found.post("/transfers", key, body)
    assert (cut.status_code, cut.json()["code"]) == (409, "outcome_unknown")
    assert found.post("/transfers", unique("key"), transfer()).status_code == 201  # and lets the webhook go
    final = found.final("/transfers", key, body)
    assert final.status_code == 201
    (moved,) = found.moved(body["reference"])
    assert final.json()["provider_id"] == moved.id
    assert found.get(f"/transfers/{final.json()['id']}").json() == final.json()
