"""The jobs that real worker processes run: a charge at the provider, and poison of every kind.

A worker gets ``idempotency`` with its URLs from the environment; a test declares the same jobs on its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from examples.provider import ProviderClient
from samekey import Backoff, Idempotency, JobContext, Response
from samekey.workers import apart

STORE, PROVIDER, MARKS = "OUTBOX_TEST_STORE", "OUTBOX_TEST_PROVIDER", "OUTBOX_TEST_MARKS"
QUICK = Backoff(first=timedelta(milliseconds=10), longest=timedelta(milliseconds=10))


def declare(idempotency: Idempotency, provider_url: str = "", marks: Path | None = None) -> None:
    """All jobs. ``marks``: a directory in which a job says how far it is, by making files."""

    def mark(name: str) -> None:
        assert marks is not None
        (marks / name).touch()

    def wait_for(name: str) -> None:
        assert marks is not None
        while not (marks / name).exists():
            time.sleep(0.005)

    @idempotency.job("charge", backoff=QUICK, timeout=20)
    def charge(job: JobContext, reference: str) -> Response:
        made = ProviderClient(provider_url, timeout=2).charge(100, key=job.key, reference=reference)
        job.provider_id = made.id
        return Response(201, {"charge": made.id})

    @idempotency.job("charge_and_stop", backoff=QUICK, timeout=20)
    def charge_and_stop(job: JobContext, reference: str) -> Response:
        """Says that the provider has answered, then waits to be let on: here a worker is killed or paused."""
        answer = charge(job, reference)
        mark(f"charged-{job.attempts}")
        wait_for(f"go-on-{job.attempts}")
        return answer

    @idempotency.job("innocent", backoff=QUICK)
    async def innocent(job: JobContext, payload: Any) -> Any:
        # Long enough to be running when a neighbour kills the process.
        await asyncio.sleep(0.2)
        return payload

    @idempotency.job("quick", backoff=QUICK)
    async def quick(job: JobContext, payload: Any) -> Any:
        return payload

    @idempotency.job("exit", max_attempts=4, backoff=QUICK)
    async def exit_(job: JobContext, payload: Any) -> None:
        os._exit(9)

    @idempotency.job("kill", max_attempts=4, backoff=QUICK)
    def kill(job: JobContext, payload: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @idempotency.job("block", max_attempts=2, backoff=QUICK, timeout=0.5)
    async def block(job: JobContext, payload: Any) -> None:
        """Blocks the event loop: nothing in it can stop that."""
        time.sleep(3600)

    @idempotency.job("stubborn", backoff=QUICK, timeout=3600)
    async def stubborn(job: JobContext, payload: Any) -> None:
        """Does not let itself be cancelled."""
        mark(f"stubborn-{job.attempts}")
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    @idempotency.job("hang", backoff=QUICK, timeout=3600)
    def hang(job: JobContext, payload: Any) -> None:
        mark(f"hang-{job.attempts}")
        time.sleep(3600)

    @idempotency.job("hang_often", backoff=QUICK, timeout=0.05, max_attempts=50)
    def hang_often(job: JobContext, payload: Any) -> None:
        time.sleep(3600)

    @idempotency.job("sleep", backoff=QUICK, timeout=30)
    async def sleep(job: JobContext, seconds: float) -> str:
        apart.FAREWELL = 15.0  # to be given back, however slow the machine is
        mark(f"sleeping-{job.attempts}")
        await asyncio.sleep(seconds)
        return "rested"


def __getattr__(name: str) -> Any:
    if name != "idempotency":
        raise AttributeError(name)
    idempotency = Idempotency(os.environ[STORE])
    declare(idempotency, os.environ.get(PROVIDER, ""), Path(os.environ.get(MARKS, ".")))
    return idempotency
