"""Workers and an application in which whatever a user wrote hangs, as the environment tells."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from samekey import Idempotency
from samekey.workers.service import Services, WorkerService

STORE, HANGS, KIND, MARKS = "ENDINGS_STORE", "ENDINGS_HANGS", "ENDINGS_KIND", "ENDINGS_MARKS"
OFTEN = timedelta(milliseconds=50)
FOR_EVER = 3600.0


def build() -> Idempotency:
    # A store that hangs is waited for until long after the test.
    idempotency = Idempotency(os.environ[STORE], timeout=600)
    hangs, kind = os.environ[HANGS].split(), os.environ[KIND]
    marks = Path(os.environ[MARKS])
    tell_looks(marks)

    def hang_in(name: str) -> Any:
        def sync(*_: Any) -> Any:
            (marks / name).touch()
            time.sleep(FOR_EVER)

        async def swallow(*_: Any) -> Any:
            """Does not let itself be cancelled."""
            (marks / name).touch()
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(FOR_EVER)

        async def block(*_: Any) -> Any:
            """Blocks the event loop."""
            (marks / name).touch()
            time.sleep(FOR_EVER)

        def lock(*_: Any) -> Any:
            """C code that keeps the interpreter's lock."""
            (marks / name).touch()
            re.match(r"(a+)+$", "a" * 64 + "b")

        return {"sync": sync, "async": swallow, "block": block, "lock": lock}[kind]

    if "outbox" in hangs:
        idempotency.job("job", timeout=FOR_EVER)(hang_in("outbox"))
    if "completer" in hangs:
        idempotency.phased("pay", max_run=timedelta(seconds=FOR_EVER))(phased(hang_in("completer")))
    if "reconciler" in hangs:
        idempotency.lookup()(hang_in("reconciler"))
    if "ledger" in hangs:
        idempotency.compare_ledgers(name="bank", ours=hang_in("ledger"), theirs=list)
    return idempotency


def phased(function: Any) -> Any:
    """With the arguments that a phased function must have."""

    def pay(op: Any, input: Any) -> Any:
        return function()

    async def pay_async(op: Any, input: Any) -> Any:
        return await function()

    return pay_async if inspect.iscoroutinefunction(function) else pay


def tell_looks(marks: Path) -> None:
    """Has every look of a service leave a mark while it is at it."""
    look = WorkerService._look

    async def told(self: WorkerService, one: Any) -> float:
        mark = marks / f"looking-{one.name}"
        mark.touch()
        try:
            return await look(self, one)
        finally:
            mark.unlink(missing_ok=True)

    WorkerService._look = told  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    services = Services(
        grace=timedelta(seconds=1),
        completer_interval=OFTEN,
        sweeper_interval=OFTEN,
        reaper_interval=OFTEN,
        reconciler_interval=OFTEN,
        reconciler_timeout=timedelta(seconds=FOR_EVER),
    )
    async with build().background(services):
        (Path(os.environ[MARKS]) / "running").touch()
        yield


app = Starlette(lifespan=lifespan)


def __getattr__(name: str) -> Any:
    if name != "idempotency":
        raise AttributeError(name)
    return build()
