"""Keys that have expired and are sent again, at every endpoint: new operations, and books that agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.processes import wait_until
from samekey import Idempotency
from samekey.core.program import Statement
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.run import run
from tests.chosen import whole
from tests.payments.running import Service, service, unique

pytestmark = whole


def expire(url: str) -> None:
    """All that is settled is past its retention, whether or not a reaper has been by."""
    idempotency = Idempotency(url)
    change = idempotency.engine.queries.build(
        "expire_all",
        "update {keys} set expires_at = {now} - 1 where state in ('completed', 'failed_retryable')",
    )
    idempotency.engine.drivers.sync.execute(Statement(change, {"now": None}))
    idempotency.close()


def reap(url: str) -> None:
    """What has expired is cleared away, but for the fact that somebody must be asked."""
    command = [sys.executable, "-m", "samekey.cli", "reap", "--url", url]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def operations(url: str) -> dict[str, Record]:
    idempotency = Idempotency(url)
    records = run(idempotency.engine.drivers.sync, lambda: idempotency.engine.store.finding.find(limit=100))
    idempotency.close()
    return {record.key: record for record in records}


def bodies(running: Service) -> dict[str, dict[str, Any]]:
    """One request for each endpoint, by its path."""
    paid = running.paid(1000)
    return {
        "/payments": {"amount": 1250, "currency": "EUR", "reference": unique("payment")},
        f"/payments/{paid['id']}/refunds": {"amount": 40, "reference": unique("refund")},
        "/purchases": {"card": "4242", "amount": 300, "reference": unique("purchase")},
        "/orders": {"item": "coffee", "quantity": 2, "reference": unique("order")},
        "/transfers": {"account": "DE89", "amount": 700, "reference": unique("transfer")},
    }


@pytest.mark.parametrize("window", [24 * 3600.0, 0.0], ids=["recognised", "forgotten"])
@pytest.mark.parametrize("reaped", [False, True], ids=["still there", "reaped"])
def test_a_late_retry_moves_no_money_again(
    fresh_url: str, tmp_path: Path, window: float, reaped: bool
) -> None:
    """Whether or not the providers recognise their keys: what is in our books is not made anew. An order is
    in our own database alone, so its key is as good as new."""
    with service(fresh_url, tmp_path, window=window) as running:
        running.start_worker()
        requests = bodies(running)
        keys = {path: unique("key") for path in requests}
        first = {path: running.final(path, keys[path], body) for path, body in requests.items()}
        assert {answer.status_code for answer in first.values()} == {201}, first
        former = operations(fresh_url)
        expire(fresh_url)
        if reaped:
            reap(fresh_url)
        second = {path: running.final(path, keys[path], body) for path, body in requests.items()}
        assert {answer.status_code for answer in second.values()} == {201}, {
            path: answer.text for path, answer in second.items()
        }
        now = operations(fresh_url)
        for path, key in keys.items():
            again = path == "/orders"
            assert (now[key].id != former[key].id) is again, path
            assert (second[path].json()["id"] != first[path].json()["id"]) is again, path
            assert (second[path].content == first[path].content) is not again, path
            assert ("Idempotent-Replayed" in second[path].headers) is not again, path
        moved = {path: len(running.moved(body["reference"])) for path, body in requests.items()}
        assert moved == {path: {"/orders": 0, "/purchases": 2}.get(path, 1) for path in requests}
        assert_books_agree(running)


def test_a_key_that_moved_money_is_not_used_for_anything_else(fresh_url: str, tmp_path: Path) -> None:
    with service(fresh_url, tmp_path) as running:
        running.start_worker()
        requests = bodies(running)
        keys = {path: unique("key") for path in requests}
        running.provider.fail("decline", reference=requests["/transfers"]["reference"])
        for path, body in requests.items():
            expected = 402 if path == "/transfers" else 201
            assert running.final(path, keys[path], body).status_code == expected
        expire(fresh_url)
        others: dict[str, dict[str, Any]] = {
            path: {**body, "reference": unique("other")} for path, body in requests.items()
        }
        second = {path: running.final(path, keys[path], body) for path, body in others.items()}
        assert {path: answer.status_code for path, answer in second.items()} == {
            path: 201 if path == "/orders" else 422 for path in requests
        }
        assert all(not running.moved(body["reference"]) for body in others.values())
        assert_books_agree(running)


def test_a_key_whose_request_was_refused_has_a_second_life(fresh_url: str, tmp_path: Path) -> None:
    """A refund of more than there is left nothing in the books, so its key may be used for another one."""
    with service(fresh_url, tmp_path) as running:
        running.start_worker()
        paid, key = running.paid(1000), unique("key")
        path = f"/payments/{paid['id']}/refunds"
        refused = running.post(path, key, {"amount": 1001, "reference": unique("refund")})
        assert (refused.status_code, "left" in refused.text) == (409, True)
        former = operations(fresh_url)[key]
        expire(fresh_url)
        body: dict[str, Any] = {"amount": 1000, "reference": unique("refund")}
        assert running.final(path, key, body).status_code == 201
        now = operations(fresh_url)[key]
        assert (now.id != former.id, now.life) == (True, 2)
        assert len(running.moved(body["reference"])) == 1
        assert_books_agree(running)


def test_what_was_never_done_leaves_no_row_behind(fresh_url: str, tmp_path: Path) -> None:
    """The provider has told that an attempt came to nothing, and the client comes back late."""
    with service(fresh_url, tmp_path, lease=1.0, call_timeout=1.0) as running:
        key, reference = unique("key"), unique("transfer")
        body = {"account": "DE89", "amount": 700, "reference": reference}
        running.provider.fail("failure_told", reference=reference, seconds=0.01)
        assert running.post("/transfers", key, body).status_code == 409
        wait_until(lambda: operations(fresh_url)[key].state is State.FAILED_RETRYABLE, timeout=60)
        (never,) = running.transfers(reference)
        expire(fresh_url)
        again = running.final("/transfers", key, body)
        assert (again.status_code, again.json()["id"] != never["id"]) == (201, True)
        assert running.transfers(reference) == [again.json()]
        assert len(running.moved(reference)) == 1


def assert_books_agree(running: Service) -> None:
    compared = running.compare()
    assert compared.returncode == 0, compared.stdout + compared.stderr
