"""Keys that have expired and are sent again, at every endpoint: new operations, and books that agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samekey import Idempotency
from samekey.core.record import Record
from samekey.drivers.run import run
from tests.payments.running import Service, service, unique


def expire(url: str) -> None:
    """All that is settled is past its retention, whether or not a reaper has been by."""
    idempotency = Idempotency(url)
    change = idempotency.engine.queries.build(
        "expire_all", "update {keys} set expires_at = 1 where state = 'completed'"
    )
    idempotency.engine.drivers.sync.execute(change())
    idempotency.close()


def operations(url: str) -> dict[str, Record]:
    idempotency = Idempotency(url)
    records = run(idempotency.engine.drivers.sync, lambda: idempotency.engine.store.finding.find(limit=100))
    idempotency.close()
    return {record.key: record for record in records}


def test_every_endpoint_survives_a_second_life_of_its_keys(fresh_url: str, tmp_path: Path) -> None:
    # The provider has forgotten the keys too, else it would give the first charge for the second payment.
    with service(fresh_url, tmp_path, window=0) as running:
        running.start_worker()
        paid = running.paid(1000)
        requests: dict[str, dict[str, Any]] = {
            "/payments": {"amount": 1250, "currency": "EUR", "reference": unique("payment")},
            f"/payments/{paid['id']}/refunds": {"amount": 40, "reference": unique("refund")},
            "/orders": {"item": "coffee", "quantity": 2, "reference": unique("order")},
            "/transfers": {"account": "DE89", "amount": 700, "reference": unique("transfer")},
        }
        keys = {path: unique("key") for path in requests}
        first = {path: running.final(path, keys[path], body) for path, body in requests.items()}
        assert {answer.status_code for answer in first.values()} == {201}, first
        former = operations(fresh_url)
        expire(fresh_url)
        second = {path: running.final(path, keys[path], body) for path, body in requests.items()}
        assert {answer.status_code for answer in second.values()} == {201}, {
            path: answer.text for path, answer in second.items()
        }
        now = operations(fresh_url)
        lives = {path: (now[key].life, now[key].id != former[key].id) for path, key in keys.items()}
        # The lookup knows what became of a transfer, so that is not made again.
        assert lives == {path: (1, False) if path == "/transfers" else (2, True) for path in keys}
        for path, answer in second.items():
            assert (answer.json()["id"] == first[path].json()["id"]) is (path == "/transfers")
        assert len(running.moved(requests["/transfers"]["reference"])) == 1
        assert_books_agree(running)


def assert_books_agree(running: Service) -> None:
    compared = running.compare()
    assert compared.returncode == 0, compared.stdout + compared.stderr
