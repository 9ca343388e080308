"""The processes of the demo: service, worker and provider, in a temporary directory, on loopback ports.

Each can be killed and started again on its own, and its data can be looked at from outside. Whatever starts
here ends with the ``Stage``, and with the demo's process whatever becomes of that.
"""

import json
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from examples.provider import Entry, Provider
from lab.processes import (
    GuardedProcess,
    ProcessFailed,
    ServedApp,
    free_port,
    serve_asgi,
    wait_until,
)
from samekey.cli.target import FoundKey, OperatorStore, open_store

ROOT = Path(__file__).parent.parent.parent
TARGET = "examples.payments.app:idempotency"
PATIENCE = 60.0
"""Seconds for anything on this stage; on a quick machine nothing takes more than three."""
LEASE = 2.0
"""Seconds. In earnest it is a minute; here nobody wants to wait that long after a kill -9."""
CALL_TIMEOUT = 30.0
"""Seconds for a call to the provider: the tour kills whoever waits for one, before it gives up by itself."""


@dataclass(frozen=True, slots=True)
class Account:
    """One of the service's two customers."""

    id: str
    token: str


ANN = Account("acct_ann", "token-of-ann")
BOB = Account("acct_bob", "token-of-bob")


class Stage:
    """A context manager. ``forgetful`` is a provider that does not recognise idempotency keys."""

    def __init__(self, directory: Path, *, forgetful: bool = False) -> None:
        self.directory = directory
        self.database = directory / "payments.db"
        self.database_url = f"sqlite:///{self.database}"
        self._forgetful = forgetful
        self._holds = directory / "holds"
        self._workers = 0
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ending:  # what has started also ends if the next one does not start
            self._start(ending)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _start(self, ending: ExitStack) -> None:
        self._holds.mkdir()
        secret = secrets.token_hex(16)
        # The provider must know where its webhooks go before there is somebody to receive them.
        port = free_port()
        self.provider = ending.enter_context(
            Provider.start(
                self.directory / "provider",
                deduplicate=not self._forgetful,
                webhook_url=f"http://127.0.0.1:{port}/webhooks/provider",
                webhook_secret=secret,
            )
        )
        # Nobody buys anything with a card here; but the books are compared with every provider's.
        cards = ending.enter_context(Provider.start(self.directory / "cards"))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SAMEKEY_")},
            "DATABASE_URL": self.database_url,
            "PROVIDER_URL": self.provider.url,
            "PROVIDER_SECRET": secret,
            "CARDS_URL": cards.url,
            "PAYMENTS_ACCOUNTS": json.dumps({one.token: one.id for one in (ANN, BOB)}),
            "PAYMENTS_LEASE": str(LEASE),
            "PAYMENTS_CALL_TIMEOUT": str(CALL_TIMEOUT),
            "DEMO_HOLDS": str(self._holds),
            "SAMEKEY_JOB_LEASE": str(LEASE),
            "SAMEKEY_GRACE": "1",
            "SAMEKEY_COMPLETER_INTERVAL": "0.2",
            "SAMEKEY_SWEEPER_INTERVAL": "0.2",
            "SAMEKEY_RECONCILER_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
            # A proxy for the rest of the world has no business on loopback.
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        self.worker = self._new_worker()
        ending.callback(self._end_worker)
        self.service = self._new_service(port)
        ending.callback(self._end_service)
        self._await_worker()
        self._store = ending.enter_context(self._opened())

    @contextmanager
    def _opened(self) -> Iterator[OperatorStore]:
        with open_store(self.database_url, "samekey", timeout=PATIENCE) as store:
            yield store

    @property
    def url(self) -> str:
        return self.service.url

    # Killing, and starting again

    def kill_service(self) -> None:
        self.service.kill9()

    def restart_service(self) -> None:
        self.service = self._new_service(self.service.port)

    def kill_worker(self) -> None:
        self.worker.kill9()

    def restart_worker(self) -> None:
        self.worker = self._new_worker()
        self._await_worker()

    @contextmanager
    def no_worker(self) -> Iterator[None]:
        """It is ended for a while. Paused, it could be in the middle of a write, and lock out everybody."""
        self._end_worker()
        try:
            yield
        finally:
            self.restart_worker()

    @contextmanager
    def order_held(self, reference: str) -> Iterator[None]:
        """Stops the order of this reference after its row was written and before the commit."""
        hold = self._holds / reference
        hold.touch()
        try:
            yield
        finally:
            hold.unlink(missing_ok=True)

    def order_is_held(self, reference: str) -> bool:
        return (self._holds / f"{reference}.here").exists()

    def set_right(self) -> None:
        """Everything runs and nothing is planned to fail, whatever a step has left behind."""
        self.provider.recover()
        for _ in self.revive():
            pass

    def revive(self) -> Iterator[str]:
        """Starts what does not run any more, and says so."""
        if not self.service.running:
            self.restart_service()
            yield f"the service is started again (process {self.service.pid})"
        if not self.worker.running:
            self.restart_worker()
            yield f"a worker is started again (process {self.worker.pid})"

    # Looking from outside

    def rows(self, query: str, *arguments: Any) -> list[Any]:
        """What is committed in the service's database."""
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(query, arguments).fetchall()

    def entries(self, reference: str) -> list[Entry]:
        """What the provider's ledger, its own file, has under a reference."""
        return [entry for entry in self.provider.entries() if entry.reference == reference]

    def look_up(self, account: Account, key: str) -> FoundKey:
        """A key's record and timeline, from the audit table: what ``samekey keys show`` shows."""
        return self._store.by_key(account.id, key)

    def compare_ledgers(self) -> tuple[int, str]:
        """``samekey ledger run``: its exit code, and its report as JSON."""
        ran = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "samekey.cli", "ledger", "run", TARGET, "--json"],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return ran.returncode, ran.stdout

    # Starting and ending

    def _end_worker(self) -> None:
        self.worker.end()  # whichever it is by then

    def _end_service(self) -> None:
        self.service.stop()

    def _new_service(self, port: int) -> ServedApp:
        options = ["--log-level", "warning"]
        return serve_asgi(
            "examples.demo.held:app",
            self.environment,
            directory=ROOT,
            port=port,
            options=options,
            timeout=PATIENCE,
        )

    def _new_worker(self) -> GuardedProcess:
        self._workers += 1
        return GuardedProcess(
            [sys.executable, "-m", "samekey.cli", "worker", TARGET],
            log=self.directory / f"worker-{self._workers}.log",
            cwd=ROOT,
            env=self.environment,
        )

    def _await_worker(self) -> None:
        worker = self.worker
        wait_until(lambda: not worker.running or "is running" in worker.output(), PATIENCE)
        if not worker.running:
            raise ProcessFailed(f"The worker did not start:\n{worker.output()}")
