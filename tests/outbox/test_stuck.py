"""What hangs holds a place, whatever it is, and no service is filled by it in silence."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from lab.processes import wait_until
from samekey import JobContext, OutcomeUnknown, Response
from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.core.backoff import Backoff
from samekey.evidence import Executed
from samekey.testing.crash import Crash
from samekey.workers import apart
from samekey.workers.ledger import LedgerCheck
from samekey.workers.service import Services, WorkerService
from samekey.workers.watchdog import STUCK
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.chosen import whole
from tests.edges.callers import AsgiClient, Client, WsgiClient
from tests.outbox.test_fairness import crowd, serving
from tests.outbox.world import NO_PAUSE, Outbox, order, tenant_of

pytestmark = whole


ROOT = Path(__file__).parent.parent.parent
OFTEN = timedelta(milliseconds=50)
SHORT = timedelta(milliseconds=100)
KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


@pytest.fixture(autouse=True)
def farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "FAREWELL", 0.02)


class Gate:
    """Where calls hang, sync and async, until they are let go; no cancellation gets them out."""

    def __init__(self, outbox: Outbox) -> None:
        self._loop = outbox.loop.loop
        self.entered = 0
        self.inside = 0
        self.most = 0
        self.open = threading.Event()

    def wait(self) -> None:
        self._enter()
        self.open.wait(60)
        self.inside -= 1

    async def wait_async(self) -> None:
        self._enter()
        while not self.open.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        self.inside -= 1

    def _enter(self) -> None:
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)


@pytest.fixture
def gate(outbox: Outbox) -> Iterator[Gate]:
    found = Gate(outbox)
    yield found
    found.open.set()


@KINDS
def test_jobs_that_hang_are_never_more_than_their_places(outbox: Outbox, gate: Gate, kind: str) -> None:
    """Async ones that swallow their cancellation too."""

    async def hang_async(job: JobContext, _: Any) -> None:
        await gate.wait_async()

    hang: Any = hang_async if kind == "async" else lambda job, _: gate.wait()
    outbox.idempotency.job("hung", timeout=0.05, backoff=NO_PAUSE, max_attempts=100)(hang)
    crowd(outbox, "hung", 30)
    with serving(outbox, concurrency=10) as service:
        wait_until(lambda: "outbox, hanging" in service.troubles)
        wait_until(lambda: gate.inside == 7)  # a thread may be let go of before it has come to the gate
        assert gate.most == sum(service.hanging.values()) == 7
        gate.open.set()
        wait_until(lambda: service.healthy and not service.hanging)


def lost() -> None:
    raise OutcomeUnknown("lost")


def lookups(outbox: Outbox, gate: Gate, kind: str, count: int = 12) -> None:
    """Unknown outcomes, and a lookup that hangs until the gate is open."""
    found = Executed({"found": 1})

    async def ask_async(_: Any) -> Executed:
        await gate.wait_async()
        return found

    def ask(_: Any) -> Executed:
        gate.wait()
        return found

    outbox.idempotency.lookup()(ask_async if kind == "async" else ask)
    for number in range(count):
        with pytest.raises(OutcomeUnknown):
            outbox.run(outbox.idempotency.once_async(tenant="t", key=f"k{number}", run=lost))
    outbox.ask("update {keys} set reconcile_after = 0 where state = 'unknown'")


def only(**options: Any) -> Services:
    """Services without those that a test does not need."""
    off = dict.fromkeys(("outbox", "completer", "sweeper", "reaper", "reconciler", "ledger"), False)
    return Services(**{**off, "grace": timedelta(0), **options})


class Serving:
    def __init__(self, outbox: Outbox, services: Services) -> None:
        self._outbox = outbox
        self.service = WorkerService(outbox.idempotency.engine, services)

    def __enter__(self) -> WorkerService:
        self._running = self._outbox.loop.start(self.service.run(handle_signals=False))
        return self.service

    def __exit__(self, *_: object) -> None:
        self._outbox.loop.loop.call_soon_threadsafe(self.service.stop)
        self._running.result(20)


@KINDS
def test_a_reconciler_full_of_lookups_that_hang_says_so_and_goes_on_when_they_end(
    outbox: Outbox, gate: Gate, kind: str
) -> None:
    lookups(outbox, gate, kind)
    services = only(
        reconciler=True,
        reconciler_interval=OFTEN,
        reconciler_timeout=SHORT,
        reconciler_backoff=Backoff(first=SHORT, longest=SHORT),
    )
    with Serving(outbox, services) as service:
        wait_until(lambda: "reconciler, hanging" in service.troubles)
        assert not service.healthy
        wait_until(lambda: sum(service.hanging.values()) == gate.inside == 8)
        gate.open.set()
        wait_until(lambda: outbox.ask("select distinct state from {keys}") == [("completed",)], 30)
        wait_until(lambda: service.healthy)


async def nothing(connection: Any) -> None: ...


def abandon(outbox: Outbox, gate: Gate, kind: str, count: int = 12) -> None:
    """Phased operations that died; resumed, they hang until the gate is open."""
    died = threading.Event()

    def pay(op: Any, input: Any) -> Response:
        op.transaction("one", lambda connection: None)
        if not died.is_set():
            raise Crash("here")
        gate.wait()
        return Response(201)

    async def pay_async(op: Any, input: Any) -> Response:
        await op.transaction("one", nothing)
        if not died.is_set():
            raise Crash("here")
        await gate.wait_async()
        return Response(201)

    limits: dict[str, Any] = {"lease": timedelta(seconds=0.5), "max_run": timedelta(seconds=0.5)}
    phased: Any = outbox.idempotency.phased("pay", **limits)(pay_async if kind == "async" else pay)
    client: Client
    if kind == "async":
        starlette = Starlette(routes=[Route("/orders", phased, methods=["POST"])])
        starlette.add_middleware(AsgiMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
        client = AsgiClient(starlette, outbox.loop)
    else:
        app = flask.Flask(__name__)
        app.add_url_rule("/orders", "pay", phased, methods=["POST"])
        app.config["PROPAGATE_EXCEPTIONS"] = True
        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, idempotency=outbox.idempotency, tenant=tenant_of
        )
        client = WsgiClient(app, outbox.threads)
    for number in range(count):
        with contextlib.suppress(Crash):
            client.send(order(f"k{number}"))
    died.set()
    assert outbox.ask("select distinct state from {keys} where mode = 'phased'") == [("in_progress",)]
    outbox.ask("update {keys} set locked_until = 0 where mode = 'phased'")


@KINDS
def test_a_completer_full_of_operations_that_hang_says_so_and_goes_on_when_they_end(
    outbox: Outbox, gate: Gate, kind: str
) -> None:
    abandon(outbox, gate, kind)
    services = only(completer=True, completer_interval=OFTEN)
    with Serving(outbox, services) as service:
        wait_until(lambda: "completer, hanging" in service.troubles, 30)
        assert not service.healthy
        wait_until(lambda: sum(service.hanging.values()) == gate.inside == 7)
        gate.open.set()
        wait_until(lambda: outbox.ask("select distinct state from {keys}") == [("completed",)], 30)
        wait_until(lambda: service.healthy)


def test_the_ledgers_functions_cannot_hold_the_process_nor_end_its_loop(tmp_path: Path) -> None:
    """One that hangs in its thread does not keep the interpreter; one that exits does not end the loop."""
    script = f"""
import asyncio, logging, sys, threading
from datetime import timedelta
from samekey import Idempotency
from samekey.workers.service import Services
logging.basicConfig()
idempotency = Idempotency("sqlite:///{tmp_path / "s.db"}")
began = threading.Event()
def hang():
    began.set()
    threading.Event().wait()
async def leave():
    raise SystemExit(5)
idempotency.compare_ledgers(name="hangs", ours=hang, theirs=lambda: [])
idempotency.compare_ledgers(name="exits", ours=leave, theirs=lambda: [])
idempotency.compare_ledgers(name="report", ours=lambda: [], theirs=lambda: [], report=lambda _: sys.exit(3))
async def app():
    async with idempotency.background(Services(grace=timedelta(0))) as service:
        await asyncio.to_thread(began.wait)
        while len(service.troubles) < 2:
            await asyncio.sleep(0.01)
        print(sorted(service.troubles), service.healthy)
    print("left", service.hanging)
asyncio.run(app())
print("ended")
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert told.returncode == 0, told.stderr
    first, left, ended = told.stdout.splitlines()
    assert first == "['comparison of exits', 'comparison of report'] False"
    assert (left, ended) == ("left {'our entries of hangs': 1}", "ended")


def test_a_comparison_that_takes_too_long_says_which_side(outbox: Outbox, gate: Gate) -> None:
    check = LedgerCheck(
        outbox.idempotency.engine, lambda: [], gate.wait, name="bank", timeout=timedelta(seconds=0.05)
    )
    with pytest.raises(TimeoutError, match=r"their entries of bank took longer than 0\.05 s"):
        outbox.run(check.run_once())
    assert check.apart.hanging == {"their entries of bank": 1}


def test_a_worker_process_whose_lookups_all_hang_ends_to_be_started_again(
    outbox: Outbox, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups(outbox, gate, "sync")
    services = only(reconciler=True, reconciler_interval=OFTEN, reconciler_timeout=SHORT)
    service = WorkerService(outbox.idempotency.engine, services)
    service._own_process = True

    async def story() -> int:
        await service._run_loops()
        return service._exit_code

    assert outbox.run(asyncio.wait_for(story(), 30)) == STUCK
