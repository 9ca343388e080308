"""SIGTERM ends every service within its grace time, whatever hangs: users' functions, sync and async, blocked
event loops, C code that keeps the interpreter's lock, a store that does not answer."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.processes import GuardedProcess, free_port, wait_until
from lab.proxy import FaultProxy
from samekey.workers.watchdog import STUCK
from tests.chosen import whole, without
from tests.outbox import hanging_app
from tests.outbox.test_stuck import Gate, abandon, lookups
from tests.outbox.workers import ROOT
from tests.outbox.world import Outbox

pytestmark = whole


LONG = 25.0
"""Seconds within which a process must have ended that has one of grace. What hangs, hangs for an hour."""
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])
SERVICES = ("outbox", "completer", "reconciler", "sweeper", "reaper", "ledger")


class Endings:
    """Processes in which something hangs."""

    def __init__(self, outbox: Outbox, marks: Path) -> None:
        self.outbox = outbox
        self.marks = marks

    def environment(self, hangs: str, kind: str, url: str | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            hanging_app.STORE: url or self.outbox.url,
            hanging_app.HANGS: hangs,
            hanging_app.KIND: kind,
            hanging_app.MARKS: str(self.marks),
        }

    @contextlib.contextmanager
    def worker(
        self, hangs: str, kind: str, url: str | None = None, *services: str
    ) -> Iterator[GuardedProcess]:
        """``samekey worker`` with one second of grace, and only these services."""
        chosen = services or (hangs,)
        off = [f"--no-{name}" for name in SERVICES if name not in chosen]
        process = GuardedProcess(
            [
                *(sys.executable, "-m", "samekey.cli", "worker", "tests.outbox.hanging_app:idempotency"),
                *("--grace", "1", "--completer-interval", "0.05", "--sweeper-interval", "0.05"),
                *("--reaper-interval", "0.05", "--reconciler-interval", "0.05"),
                *("--reconciler-timeout", "3600", *off),
            ],
            log=self.marks / "worker.log",
            env=self.environment(hangs, kind, url),
            cwd=ROOT,
        )
        try:
            yield process
        finally:
            process.kill9()

    def hangs(self, *names: str) -> None:
        wait_until(lambda: all((self.marks / name).exists() for name in names))

    def prepare(self, service: str) -> None:
        """Something for that service to do."""
        outbox, gate = self.outbox, Gate(self.outbox)
        if service == "outbox":
            outbox.idempotency.job("job")(lambda job, _: None)
            outbox.place("job")
        elif service == "completer":
            abandon(outbox, gate, "sync", count=1)
        elif service == "reconciler":
            lookups(outbox, gate, "sync", count=1)


@pytest.fixture
def endings(outbox: Outbox, tmp_path: Path) -> Endings:
    marks = tmp_path / "marks"
    marks.mkdir()
    return Endings(outbox, marks)


@KINDS
@pytest.mark.parametrize("service", ["outbox", "completer", "reconciler", "ledger"])
def test_sigterm_ends_a_worker_whose_functions_hang(endings: Endings, service: str, kind: str) -> None:
    endings.prepare(service)
    with endings.worker(service, kind) as worker:
        endings.hangs(service)
        worker.send(signal.SIGTERM)
        assert worker.wait(LONG) == 0, worker.output()


@without(outbox="mariadb")
@pytest.mark.parametrize(("kind", "code"), [("block", STUCK), ("lock", -signal.SIGKILL)])
@pytest.mark.parametrize("service", ["outbox", "completer", "reconciler", "ledger"])
def test_sigterm_ends_a_worker_that_cannot_even_hear_it(
    endings: Endings, service: str, kind: str, code: int
) -> None:
    """The event loop is blocked, or no thread of the process can run at all."""
    endings.prepare(service)
    with endings.worker(service, kind) as worker:
        endings.hangs(service)
        worker.send(signal.SIGTERM)
        assert worker.wait(LONG) == code, worker.output()
        told = {"block": "something blocks its event loop", "lock": "was killed. Something blocks it"}[kind]
        assert told in worker.output()


@contextlib.contextmanager
def store_that_can_hang(outbox: Outbox) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A URL of the store, and what makes it answer no more."""
    if outbox.dialect == "sqlite":
        holder = sqlite3.connect(
            outbox.url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
        )
        try:
            yield outbox.url, lambda: holder.execute("begin exclusive")
        finally:
            holder.close()
        return
    with FaultProxy.before(outbox.url) as proxy:
        yield proxy.url_for(outbox.url), proxy.stall


@pytest.mark.parametrize("service", ["outbox", "completer", "reconciler", "sweeper", "reaper"])
def test_sigterm_ends_a_worker_whose_store_hangs(endings: Endings, service: str) -> None:
    """Every look of every service, from here on, waits for the store for ten minutes."""
    with (
        store_that_can_hang(endings.outbox) as (url, stop_answering),
        endings.worker("", "sync", url, service) as worker,
    ):
        endings.hangs(f"looking-{service}")
        stop_answering()
        endings.hangs(f"looking-{service}")
        worker.send(signal.SIGTERM)
        assert worker.wait(LONG) == 0, worker.output()


@KINDS
def test_sigterm_ends_an_application_in_which_everything_hangs(endings: Endings, kind: str) -> None:
    """``background()`` in the lifespan of a real server, with every service at it."""
    for service in ("outbox", "completer", "reconciler"):
        endings.prepare(service)
    process = GuardedProcess(
        [
            *(sys.executable, "-m", "uvicorn", "tests.outbox.hanging_app:app", "--host", "127.0.0.1"),
            *("--port", str(free_port())),
        ],
        log=endings.marks / "app.log",
        env=endings.environment("outbox completer reconciler ledger", kind),
        cwd=ROOT,
    )
    try:
        endings.hangs("running", "outbox", "completer", "reconciler", "ledger")
        process.send(signal.SIGTERM)
        assert process.wait(LONG) in (0, -signal.SIGTERM), process.output()  # which uvicorn raises again
        assert "Application shutdown complete" in process.output()
    finally:
        process.kill9()


@pytest.mark.parametrize("when", ["at its start", "later"])
def test_sigterm_ends_an_application_whose_store_hangs(endings: Endings, when: str) -> None:
    with store_that_can_hang(endings.outbox) as (url, stop_answering):
        process = GuardedProcess(
            [
                *(sys.executable, "-m", "uvicorn", "tests.outbox.hanging_app:app", "--host", "127.0.0.1"),
                *("--port", str(free_port())),
            ],
            log=endings.marks / "app.log",
            env=endings.environment("", "sync", url),
            cwd=ROOT,
        )
        try:
            endings.hangs("running", *(["looking-sweeper"] if when == "later" else []))
            stop_answering()
            if when == "later":
                endings.hangs("looking-sweeper")
            process.send(signal.SIGTERM)
            wait_until(lambda: "Application shutdown complete" in process.output(), LONG)
            assert process.wait(LONG) in (0, -signal.SIGTERM), process.output()
        finally:
            process.kill9()
