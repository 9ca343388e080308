"""The payments service as it runs: an application, a provider that tells it by webhook, perhaps a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from examples.provider import Entry, Provider
from lab.processes import GuardedProcess, ServedApp, free_port, serve_asgi, wait_until

ROOT = Path(__file__).parent.parent.parent
TARGET = "examples.payments.app:idempotency"
SECRET, CARDS_SECRET = "whsec_of_the_tests", "whsec_of_cards"
ANN, BOB = "token-of-ann", "token-of-bob"
UNSETTLED = {202, 409, 503}
"""What a client retries."""

_names = count(1)


def unique(word: str) -> str:
    """A key or a reference that no other test of this process has."""
    return f"{word}-{os.getpid()}-{next(_names)}"


@dataclass(slots=True)
class Service:
    """One service on one database."""

    provider: Provider
    cards: Provider
    environment: dict[str, str]
    port: int
    directory: Path
    app: ServedApp | None = None
    worker: GuardedProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_app(self) -> None:
        self.app = serve_asgi(
            "examples.payments.app:app", self.environment, directory=ROOT, port=self.port, timeout=120
        )

    def start_worker(self, *options: str) -> None:
        """With short intervals: nobody shall wait for a minute in a test."""
        intervals = [
            "--completer-interval",
            "0.2",
            "--reconciler-interval",
            "0.2",
            "--sweeper-interval",
            "0.5",
        ]
        self.worker = GuardedProcess(
            [sys.executable, "-m", "samekey.cli", "worker", TARGET, "--lease", "5", *intervals, *options],
            log=self.directory / "worker.log",
            env={**os.environ, **self.environment},
            cwd=ROOT,
        )

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.end(grace=20)
        if self.app is not None:
            self.app.stop()

    # As a client

    def post(self, path: str, key: str | None, body: Any, token: str = ANN) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return httpx2.post(self.url + path, json=body, headers=headers, timeout=60)

    def get(self, path: str, token: str = ANN) -> httpx2.Response:
        return httpx2.get(self.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def final(self, path: str, key: str, body: Any, token: str = ANN) -> httpx2.Response:
        """Retries as a client does, until the answer is final."""
        last: list[httpx2.Response] = []

        def settled() -> bool:
            last[:] = [self.post(path, key, body, token)]
            return last[0].status_code not in UNSETTLED

        wait_until(settled, timeout=120, interval=0.05)
        return last[0]

    def paid(self, amount: int = 100) -> dict[str, Any]:
        """A payment that has succeeded."""
        body = {"amount": amount, "currency": "EUR", "reference": unique("paid")}
        answer = self.final("/payments", unique("key"), body)
        assert answer.status_code == 201, answer.text
        payment: dict[str, Any] = answer.json()
        return payment

    def transfers(self, reference: str) -> list[dict[str, Any]]:
        """The account's transfers of this reference."""
        found = self.get("/transfers").json()["transfers"]
        return [one for one in found if one["reference"] == reference]

    # As the auditor

    def moved(self, reference: str) -> list[Entry]:
        """What the providers' ledgers say of a reference."""
        entries = [*self.provider.entries(), *self.cards.entries()]
        return [entry for entry in entries if entry.reference == reference]

    def compare(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "samekey.cli", "ledger", "run", TARGET, "--json"],
            env={**os.environ, **self.environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@contextmanager
def service(
    url: str,
    directory: Path,
    *,
    lease: float = 60.0,
    window: float = 24 * 3600.0,
    call_timeout: float = 30.0,
) -> Iterator[Service]:
    """Two providers and an application. The worker is yours to start."""
    port = free_port()
    webhooks = f"http://127.0.0.1:{port}/webhooks"
    with (
        Provider.start(
            directory / "provider", webhook_url=f"{webhooks}/provider", webhook_secret=SECRET, window=window
        ) as provider,
        Provider.start(
            directory / "cards", webhook_url=f"{webhooks}/cards", webhook_secret=CARDS_SECRET, window=window
        ) as cards,
    ):
        environment = {
            "DATABASE_URL": url,
            "PROVIDER_URL": provider.url,
            "PROVIDER_SECRET": SECRET,
            "CARDS_URL": cards.url,
            "CARDS_SECRET": CARDS_SECRET,
            "PAYMENTS_LEASE": str(lease),
            "PAYMENTS_CALL_TIMEOUT": str(call_timeout),
        }
        found = Service(provider, cards, environment, port, directory)
        try:
            found.start_app()
            yield found
        finally:
            found.stop()
