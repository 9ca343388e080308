"""The provider as its owner sees it: start, fail, pause, kill, and look into the ledger."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, Self

from lab import environment
from lab.processes import LOOPBACK, GuardedProcess, ProcessFailed, free_port, wait_until

from .client import ProviderClient
from .faults import FOR_EVER, Fault
from .ledger import Entry, Kind, read_ledger

DAY: Final = 24 * 3600.0
"""The window in which most providers recognise an idempotency key."""


class Provider:
    """One provider in a process of its own. A context manager; leaving it ends the process."""

    def __init__(
        self, directory: Path, port: int, process: GuardedProcess, options: list[str], secret: str
    ) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.ledger = directory / "ledger.jsonl"
        self._directory = directory
        self._port = port
        self._process = process
        self._options = options
        self._secret = secret
        self._control = ProviderClient(self.url)

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        deduplicate: bool = True,
        latency: float = 0.0,
        window: float = DAY,
        webhook_url: str | None = None,
        webhook_secret: str = "",
        port: int | None = None,
    ) -> Self:
        """A new process that keeps its ledger in ``directory``, and goes on with one that is there.

        ``latency``: seconds between an entry and its answer, in which a caller may die. ``window``: seconds
        for which it recognises a key. ``webhook_url``: where it tells what happened, signed with
        ``webhook_secret``.
        """
        port = free_port() if port is None else port
        options = ["--latency", str(latency), "--window", str(window)]
        if not deduplicate:
            options.append("--no-deduplication")
        if webhook_url is not None:
            options += ["--webhook-url", webhook_url]
        process = _launch(directory, port, options, webhook_secret)
        return cls(directory, port, process, options, webhook_secret)

    @property
    def pid(self) -> int:
        return self._process.pid

    def entries(self) -> list[Entry]:
        """What the ledger says, whether or not the process lives."""
        return read_ledger(self.ledger)

    def charges(self) -> list[Entry]:
        """The charges among them."""
        return [entry for entry in self.entries() if entry.kind == "charge"]

    def fail(
        self,
        fault: Fault,
        *,
        times: int | None = 1,
        seconds: float = FOR_EVER,
        reference: str | None = None,
        kind: Kind | None = None,
    ) -> None:
        """Lets a fault befall the next requests: ``times`` of them (None: all), or those of a reference or a
        kind.

        ``seconds`` is how long ``delay``, ``webhook_late``, ``webhook_again`` and ``failure_told`` take, and
        how long ``charge_then_time_out`` is silent.
        """
        self._control.call(
            "POST",
            "/faults",
            {"fault": fault, "times": times, "seconds": seconds, "reference": reference, "kind": kind},
        )

    def recover(self) -> None:
        """Forgets all faults."""
        self._control.call("DELETE", "/faults")

    def figures(self) -> dict[str, int]:
        """Since its start: ``requests`` to move money; ``charges``, ``refunds``, ``transfers`` and
        ``declines`` made; ``replays`` of a known key; ``webhooks`` delivered.
        """
        found: dict[str, int] = self._control.call("GET", "/figures")
        return found

    def kill9(self) -> None:
        self._process.kill9()

    def start_again(self) -> None:
        """After ``kill9``: on the same port, with what the ledger says."""
        self._process = _launch(self._directory, self._port, self._options, self._secret)

    def stop(self) -> None:
        """Ends the process; the ledger stays. May be repeated."""
        self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _launch(directory: Path, port: int, options: list[str], secret: str) -> GuardedProcess:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "examples.provider", "--port", str(port)]
    process = GuardedProcess(
        [*command, "--ledger", str(directory / "ledger.jsonl"), *options],
        log=directory / "provider.log",
        # The secret is not an argument: those can be read by every user of the machine.
        env=environment(PROVIDER_SECRET=secret),
    )
    try:
        wait_until(lambda: not process.running or _answers(port))
    except TimeoutError:
        process.kill9()
    if not process.running:
        raise ProcessFailed(f"The provider did not start:\n{process.output()}")
    return process


def _answers(port: int) -> bool:
    try:
        ProviderClient(f"http://{LOOPBACK}:{port}", timeout=1).call("GET", "/figures")
    except OSError:
        return False
    return True
