"""The application dies in the middle of a refund; nobody retries; the worker's completer finishes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lab.processes import pause, resume, wait_until
from tests.chosen import whole
from tests.payments.running import Service, service, unique

pytestmark = whole


@pytest.mark.parametrize(
    ("fresh_url", "called"),
    [("sqlite", False), ("postgres", True)],
    indirect=["fresh_url"],
    ids=["before the call", "after the call"],
)
def test_a_refund_is_finished_without_its_client(fresh_url: str, tmp_path: Path, called: bool) -> None:
    with service(fresh_url, tmp_path, lease=2) as found:
        found.start_worker("--no-completer")
        paid = found.paid(100)
        assert found.worker is not None and found.app is not None
        found.worker.end(grace=20)
        key = unique("key")
        body: dict[str, Any] = {"amount": 40, "reference": unique("refund")}
        path = f"/payments/{paid['id']}/refunds"
        if called:
            found.provider.fail("charge_then_time_out", reference=body["reference"])
        else:
            pause(found.provider.pid)  # it accepts a connection, and never reads from it
        with ThreadPoolExecutor(1) as client:
            answer = client.submit(found.post, path, key, body)
            wait_until(lambda: reserved(found, path), timeout=120)
            if called:
                wait_until(lambda: found.moved(body["reference"]), timeout=120)
            found.app.kill9()
            with pytest.raises(httpx2.TransportError):
                answer.result(120)
        if not called:
            # With it goes what the dead application may have left in the provider's socket.
            found.provider.kill9()
            found.provider.start_again()
            assert found.moved(body["reference"]) == []
        found.start_app()
        found.start_worker()
        wait_until(lambda: settled(found, path), timeout=120)
        (moved,) = found.moved(body["reference"])
        final = found.post(path, key, body)
        assert (final.status_code, final.json()["provider_id"]) == (201, moved.id)
        assert final.headers["Idempotent-Replayed"] == "true"
        assert found.get(f"/payments/{paid['id']}").json()["refunded"] == 40
        compared = found.compare()
        assert compared.returncode == 0, compared.stdout + compared.stderr


def reserved(found: Service, path: str) -> bool:
    """Its first phase is done, its second is not."""
    return [one["status"] for one in found.get(path).json()["refunds"]] == ["pending"]


def settled(found: Service, path: str) -> bool:
    return [one["status"] for one in found.get(path).json()["refunds"]] == ["succeeded"]


def test_a_transfer_dies_with_its_process_and_is_found_out(postgres_url: str, tmp_path: Path) -> None:
    with service(postgres_url, tmp_path, lease=2) as found:
        key = unique("key")
        body: dict[str, Any] = {"account": "DE89", "amount": 7, "reference": unique("transfer")}
        found.provider.fail("webhook_lost")
        found.provider.fail("charge_then_time_out")
        with ThreadPoolExecutor(1) as client:
            answer = client.submit(found.post, "/transfers", key, body)
            wait_until(lambda: found.moved(body["reference"]), timeout=120)
            assert found.app is not None
            found.app.kill9()
            with pytest.raises(httpx2.TransportError):
                answer.result(120)
        found.start_app()
        found.start_worker()
        final = found.final("/transfers", key, body)
        (moved,) = found.moved(body["reference"])
        assert (final.status_code, final.json()["provider_id"]) == (201, moved.id)
        assert final.headers["Idempotent-Replayed"] == "true"


def test_a_provider_that_was_resumed_goes_on(quiet: Service) -> None:
    """The pause that the test above relies on: it holds a call up, and loses nothing."""
    pause(quiet.provider.pid)
    with ThreadPoolExecutor(1) as client:
        key = unique("key")
        body: dict[str, Any] = {"account": "DE89", "amount": 7, "reference": unique("transfer")}
        answer = client.submit(quiet.post, "/transfers", key, body)
        wait_until(lambda: quiet.transfers(body["reference"]), timeout=120)
        assert quiet.moved(body["reference"]) == []
        resume(quiet.provider.pid)
        assert answer.result(120).status_code == 201
