"""docs/deferred.md cannot rot: its code is run, its commands and figures are those of the code."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from starlette.applications import Starlette
from starlette.routing import Route

from lab.torture.__main__ import app as torture
from lab.torture.outbox.command import figures
from lab.torture.outbox.run import Verdict
from samekey import Backoff, Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.cli.app import app as command_line
from samekey.drivers.postgres import listen
from samekey.engine.jobs import JobDefinition
from samekey.tenants import single_tenant
from samekey.workers import outbox, wake, watchdog
from samekey.workers.outbox import OutboxWorker
from tests.edges.callers import AsgiClient, LoopThread, Request

PAGE = (Path(__file__).parent.parent.parent / "docs" / "deferred.md").read_text()
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRELUDE = """
from starlette.responses import JSONResponse
from samekey import Idempotency, Response, current_operation
"""


def blocks(language: str) -> list[str]:
    return [code for found, code in _FENCE.findall(PAGE) if found == language]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: LoopThread) -> Iterator[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect("orders.db")
    connection.execute("create table orders (id integer primary key, cents integer, state text)")
    connection.close()
    found: dict[str, Any] = {"__name__": "documentation"}
    exec(PRELUDE, found)
    yield found
    loop.run(found["idempotency"].aclose())


def test_the_code_runs(names: dict[str, Any], loop: LoopThread) -> None:
    charged: list[tuple[int, str]] = []

    async def charge(cents: int, *, idempotency_key: str) -> Any:
        charged.append((cents, idempotency_key))
        return SimpleNamespace(id="ch_1")

    names["provider"] = SimpleNamespace(charge=charge)
    for code in blocks("python"):
        exec(compile(code, "<docs/deferred.md>", "exec"), names)
    idempotency: Idempotency = names["idempotency"]
    app = Starlette(routes=[Route("/orders", names["place_order"], methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    client = AsgiClient(app, loop)
    request = Request("POST", "/orders", ((b"idempotency-key", b"k"),), b'{"cents": 450}')
    first = client.send(request)
    assert (first.status, first.json()) == (202, {"order": 1})

    async def work() -> None:
        worker = OutboxWorker(idempotency.engine)
        assert await worker.run_once() == 1
        await worker.drain()

    loop.run(work())
    final = client.send(request)
    assert (final.status, final.json(), final.replayed) == (201, {"order": 1, "charge": "ch_1"}, True)
    assert len(charged) == 1
    connection = sqlite3.connect("orders.db")
    assert connection.execute("select cents, state from orders").fetchall() == [(450, "paid")]
    connection.close()


def test_the_commands_exist() -> None:
    group: Any = typer.main.get_command(command_line)
    torture_group: Any = typer.main.get_command(torture)
    lines = [line for code in blocks("sh") for line in code.splitlines()]
    lines += [
        line.removeprefix("$ ") for code in blocks("console") for line in code.splitlines() if line[0] == "$"
    ]
    assert len(lines) >= 4
    for line in lines:
        words = line.replace("python -m lab.torture", "torture").split()
        command = {"samekey": group, "torture": torture_group}[words.pop(0)]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_options_in_the_text_exist() -> None:
    group: Any = typer.main.get_command(command_line)
    torture_group: Any = typer.main.get_command(torture)
    commands = (group.commands["worker"], torture_group.commands["outbox"])
    known = {
        option
        for command in commands
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"`(--[a-z-]+)`", PAGE)) <= known


def test_the_figures_have_the_form_that_the_command_prints() -> None:
    """A real run's; here only their form can be compared."""
    (shown,) = blocks("console")
    verdict = Verdict(store="postgres", jobs=1, workers=1, seed=0, accepted=1, seconds=1.0)
    expected = figures(verdict).splitlines()
    printed = shown.splitlines()[-len(expected) :]
    assert [line.split()[0] for line in printed] == [line.split()[0] for line in expected]
    assert printed[-1] == expected[-1]
    assert "10,000 accepted of 10,000, on postgres" in shown


def test_the_numbers_are_those_of_the_code() -> None:
    definition = JobDefinition("n", print)
    assert (definition.max_attempts, definition.timeout.total_seconds()) == (10, 60)
    assert "| `max_attempts` | 10 |" in PAGE
    assert "| `timeout` | 60 s |" in PAGE
    assert definition.backoff == Backoff()
    assert (Backoff().first.total_seconds(), Backoff().longest.total_seconds()) == (1, 300)
    assert "`Backoff(first=1 s, longest=5 min)`" in PAGE
    assert (outbox.LEASE.total_seconds(), outbox.GRACE.total_seconds()) == (30, 30)
    assert "| `--lease` | 30 s |" in PAGE
    assert "| `--grace` | 30 s |" in PAGE
    assert (wake.FASTEST_POLL, wake.SLOWEST_POLL, wake.SAFETY_POLL, listen.PROOF_EVERY) == (0.05, 2, 30, 30)
    assert f"exit code {watchdog.STUCK}" in PAGE
