"""The order example, as a user runs it: an app, a provider, and a worker that is killed half-way."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.provider import Provider
from lab.processes import GuardedProcess, ServedApp, serve_asgi, wait_until

ROOT = Path(__file__).parent.parent.parent


@dataclass(slots=True)
class Shop:
    api: ServedApp
    provider: Provider
    directory: Path
    environment: dict[str, str]

    def order(self, key: str, cents: int = 450) -> httpx2.Response:
        return httpx2.post(
            f"{self.api.url}/orders",
            headers={"Authorization": "Bearer demo", "Idempotency-Key": f'"{key}"'},
            json={"customer": "ann", "cents": cents},
        )

    def final(self, key: str, cents: int = 450) -> httpx2.Response:
        """Retries, as a client does, until the answer is final."""
        last: list[httpx2.Response] = []

        def settled() -> bool:
            last[:] = [self.order(key, cents)]
            return last[0].status_code != 202

        wait_until(settled, interval=0.05)
        return last[0]

    def worker(self) -> GuardedProcess:
        return GuardedProcess(
            [sys.executable, "-m", "samekey.cli", "worker", "examples.orders:idempotency", "--lease", "1"],
            log=self.directory / "worker.log",
            env={**os.environ, **self.environment},
            cwd=ROOT,
        )

    def rows(self) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.directory / "orders.db")
        try:
            return connection.execute("select cents, state from orders order by id").fetchall()
        finally:
            connection.close()


@pytest.fixture
def shop(tmp_path: Path, provider: Provider) -> Iterator[Shop]:
    environment = {"ORDERS_DATABASE": str(tmp_path / "orders.db"), "ORDERS_PROVIDER": provider.url}
    with serve_asgi("examples.orders:app", environment, directory=ROOT) as api:
        yield Shop(api, provider, tmp_path, environment)


def test_an_order_is_charged_once_whatever_happens(shop: Shop) -> None:
    first = shop.order("one")
    assert (first.status_code, first.json()["state"]) == (202, "placed")
    assert shop.rows() == [(450, "placed")]
    assert shop.order("one").headers["Location"] == first.headers["Location"]
    assert shop.order("bad", 0).status_code == 400
    assert shop.rows() == [(450, "placed")]

    # The provider charges and cuts the connection; the worker dies; another one finishes it.
    shop.provider.fail("charge_then_time_out")
    worker = shop.worker()
    wait_until(lambda: len(shop.provider.charges()) == 1)
    worker.kill9()
    worker = shop.worker()
    try:
        final = shop.final("one")
        (charge,) = shop.provider.charges()
        assert (final.status_code, final.json()) == (201, {"order": 1, "state": "paid", "charge": charge.id})
        assert final.headers["Idempotent-Replayed"] == "true"
        assert shop.order("one").content == final.content

        shop.provider.fail("decline")
        declined = shop.final("two", 900)
        assert (declined.status_code, declined.json()["state"]) == (402, "declined")
        assert shop.rows() == [(450, "paid"), (900, "declined")]
        assert len(shop.provider.charges()) == 1
        status = httpx2.get(
            f"{shop.api.url}{first.headers['Location']}", headers={"Authorization": "Bearer demo"}
        )
        assert status.json()["state"] == "completed"
        assert status.json()["answer"]["body"] == final.text
    finally:
        assert worker.end(grace=10) == 0
