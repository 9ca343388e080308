"""Documentation that cannot rot: its code is run, its tables are held against the code.

``python -m tests.test_docs`` writes the blocks that are generated anew.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import psycopg
import pytest
import typer.main
from cryptography.fernet import Fernet
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import samekey.testing
from lab.processes import serve_asgi, serve_wsgi, wait_until
from lab.torture.__main__ import app as torture
from samekey import (
    ConfigurationError,
    FingerprintRules,
    Idempotency,
    KeyRules,
    Outcome,
    OutcomeUnknown,
    Policy,
    current_operation,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.check import RULES
from samekey.cli.app import app as command_line
from samekey.core.problem import CODES
from samekey.core.states import diagram
from samekey.drivers.sqlite.driver import SQLiteDriver
from samekey.encryption import fernet
from samekey.engine.handler.rules import _AT_THE_EDGE, Rules
from samekey.errors import SignatureRefused
from samekey.stores.sql.queries import queries_for
from samekey.tenants import single_tenant
from samekey.workers.reconciler import Reconciler
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware
from tests.chosen import whole
from tests.matrix import rows as matrix
from tests.test_layers import ANY, LAYERS

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"(<!-- begin generated: (\w+) -->\n)(.*?)(<!-- end generated: \w+ -->)", re.DOTALL)
_ROW = re.compile(r"^\| `([\w-]+)`[^|]* \|", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return [code for found, code in _FENCE.findall(text) if found == language]


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    text = (ROOT / page).read_text()
    level = heading.split(" ", maxsplit=1)[0]
    start = text.index(f"{heading}\n") + len(heading)
    end = re.compile(rf"^#{{1,{len(level)}}} ", re.MULTILINE).search(text, start)
    return text[start : end.start() if end else None]


def rows(text: str) -> dict[str, list[str]]:
    """The table rows whose first cell is one `name`: the other cells by that name."""
    found = {}
    for line in text.splitlines():
        match = _ROW.match(line)
        if match:
            found[match[1]] = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[2:-1]]
    return found


# ------------------------------------------------------------------ what is generated


def migrate_output() -> str:
    with tempfile.TemporaryDirectory() as directory:
        run = subprocess.run(
            [sys.executable, "-m", "samekey.cli", "migrate", "sqlite:///app.db"],
            cwd=directory,
            env={name: value for name, value in os.environ.items() if not name.startswith("SAMEKEY_")},
            check=True,
            capture_output=True,
            text=True,
        )
    return f"```\n{run.stdout}```\n"


def outcome_table() -> str:
    return f"{matrix.table()}\n"


def layer_table() -> str:
    lines = ["| layer | may import | and of other people's | pure |", "|---|---|---|---|"]
    for name, layer in LAYERS.items():
        allowed, foreign = (
            "all" if names == ANY else ", ".join(f"`{one}`" for one in sorted(names)) or "nothing"
            for names in (layer.layers, layer.third_party)
        )
        pure = "" if layer.stdlib == ANY else "yes"
        lines.append(f"| `{name}` | {allowed} | {foreign} | {pure} |")
    return "\n".join(lines) + "\n"


def module_list() -> str:
    """Every file of the package, by what its own first sentence says."""
    source = ROOT / "src" / "samekey"
    folders: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py")):
        written = ast.get_docstring(ast.parse(path.read_text()))
        if path.name != "__init__.py" and written is not None:
            folder = str(path.parent.relative_to(source)).removeprefix(".")
            said = " ".join(written.split("\n\n")[0].split())
            folders.setdefault(folder, []).append(f"| `{path.stem}` | {said.replace('|', chr(92) + '|')} |")
    parts = []
    for folder, rows in folders.items():
        name = f"samekey/{folder}/" if folder else "samekey/"
        parts.append("\n".join([f"**`{name}`**", "", "| file | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def rule_table() -> str:
    lines = ["| id | severity | rule | where it stands |", "|---|---|---|---|"]
    lines += [f"| `{rule.id}` | {rule.severity} | {rule.says} | {rule.source} |" for rule in RULES.values()]
    return "\n".join(lines) + "\n"


GENERATORS: dict[str, Callable[[], str]] = {
    "states": lambda: f"```mermaid\n{diagram()}```\n",
    "outcomes": outcome_table,
    "migrate": migrate_output,
    "layers": layer_table,
    "modules": module_list,
    "rules": rule_table,
}


def generate(text: str) -> str:
    return _GENERATED.sub(lambda m: f"{m[1]}\n{GENERATORS[m[2]]()}\n{m[4]}", text)


def test_generated_blocks_are_up_to_date() -> None:
    seen: set[str] = set()
    for page in PAGES:
        text = page.read_text()
        seen.update(match[2] for match in _GENERATED.finditer(text))
        assert text == generate(text), f"{page.name} is old: run python -m tests.test_docs"
    assert seen == set(GENERATORS)


# ------------------------------------------------------------------ the README's applications

HEADERS = {"Authorization": "Bearer demo", "Idempotency-Key": '"coffee-1"'}


def assert_keeps_its_promises(url: str, path: str = "/payments") -> None:
    first = httpx2.post(f"{url}{path}", headers=HEADERS, json={"cents": 450})
    assert first.status_code == 201, first.text
    again = httpx2.post(f"{url}{path}", headers=HEADERS, json={"cents": 450})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    other = httpx2.post(f"{url}{path}", headers=HEADERS, json={"cents": 451})
    assert (other.status_code, other.json()["code"]) == (422, "reused")
    keyless = httpx2.post(f"{url}{path}", headers={"Authorization": "Bearer demo"}, json={"cents": 450})
    assert (keyless.status_code, keyless.json()["code"]) == (400, "missing")
    stranger = httpx2.post(f"{url}{path}", headers={**HEADERS, "Authorization": "no"}, json={"cents": 450})
    assert stranger.status_code == 401


def save(directory: Path, number: int) -> str:
    code = blocks("README.md", "python")[number]
    (directory / "payments.py").write_text(code)
    return code


def count(database: Path) -> int:
    import sqlite3

    connection = sqlite3.connect(database)
    try:
        return int(connection.execute("select count(*) from payments").fetchone()[0])
    finally:
        connection.close()


def test_the_first_application(tmp_path: Path) -> None:
    assert "FastAPI" in save(tmp_path, 0)
    with serve_asgi("payments:app", directory=tmp_path) as api:
        assert_keeps_its_promises(api.url)
        assert count(tmp_path / "payments.db") == 1
        # The key belongs to the payment; the transfer needs one of its own.
        refused = httpx2.post(f"{api.url}/transfers", headers=HEADERS, json={"cents": 450})
        assert refused.status_code == 422
        headers = {**HEADERS, "Idempotency-Key": "transfer-1"}
        first, again = (
            httpx2.post(f"{api.url}/transfers", headers=headers, json={"cents": 450}) for _ in range(2)
        )
        assert first.json()["reference"] == again.json()["reference"]
        assert again.headers["Idempotent-Replayed"] == "true"
        assert "rror" not in api.output().replace("Unprocessable", "")


def test_the_flask_application(tmp_path: Path) -> None:
    assert "Flask" in save(tmp_path, 1)
    with serve_wsgi("payments:app", directory=tmp_path) as api:
        assert_keeps_its_promises(api.url)
        assert count(tmp_path / "payments.db") == 1


@whole
def test_the_postgresql_application(tmp_path: Path, postgres_url: str) -> None:
    assert "DATABASE_URL" in save(tmp_path, 2)
    command = [sys.executable, "-m", "samekey.cli", "migrate", postgres_url]
    subprocess.run(command, check=True, capture_output=True)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        with serve_asgi("payments:app", {"DATABASE_URL": postgres_url}, directory=tmp_path) as api:
            assert_keeps_its_promises(api.url)
        assert connection.execute("select count(*) from payments").fetchone() == (1,)


def test_the_settings_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("README.md", "python")
    assert len(code) == 4, "a new block in the README needs a test here"
    names = run_block(code[3], {})
    assert names["idempotency"].engine.policy.ttl == timedelta(days=7)


# ------------------------------------------------------------------ the other pages' code

PRELUDE = """
import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
import httpx2, pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from samekey import FingerprintRules, Idempotency, KeyRules, Outcome, current_operation, ietf
from samekey import Declined, Executed, Response, StillUnknown
from samekey.core.claim import downstream_key
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Program
from samekey.tenants import by_state, by_user
from samekey.workers.service import Services
app = Starlette()
class CardDeclined(Exception): ...
"""
"""What the short examples take for granted, as any reader does."""


def run_block(code: str, names: dict[str, Any]) -> dict[str, Any]:
    before = dict(names)
    exec(compile(code, "<documentation>", "exec"), names)
    for name, value in names.items():
        if isinstance(value, Idempotency) and before.get(name) is not value:
            value.close()
    return names


@pytest.fixture
def names(sqlite_url: str) -> Iterator[dict[str, Any]]:
    """The names that a short example may use."""
    found: dict[str, Any] = {"__name__": "documentation"}
    exec(PRELUDE, found)
    with_key = {**HEADERS, "Content-Type": "application/json"}
    idempotency = Idempotency(sqlite_url)
    found |= {"idempotency": idempotency, "sqlite_url": sqlite_url, "headers": with_key}
    yield found
    idempotency.close()


SHOP = "single"
"""The tenant of ``single_tenant()``."""


def client_of(idempotency: Idempotency, **handlers: Any) -> TestClient:
    routes = [Route(f"/{name}", handler, methods=["POST"]) for name, handler in handlers.items()]
    app = Starlette(routes=routes)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return TestClient(app)


def test_examples_of_modes(names: dict[str, Any]) -> None:
    idempotency = names["idempotency"]
    names["provider"] = SimpleNamespace(charge=charge, find=find)
    names["prices"] = {"coffee": 450}
    for code in blocks("docs/modes.md", "python"):
        run_block(code, names)
    _execute(idempotency, "create table orders (item text)")
    client = client_of(idempotency, order=names["create_order"], charge=names["charge_card"])
    for path in ("/order", "/charge"):
        first, again = (client.post(path, headers={"Idempotency-Key": path}) for _ in range(2))
        assert (first.status_code, again.content) == (201, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
    found = idempotency.find(provider_id="ch_1", tenant=SHOP, source="cards")
    assert found is not None
    assert idempotency.find(downstream_key=CHARGED[0]) == found
    assert names["by_the_provider"](None, names["CardDeclined"]()) is Outcome.FAIL
    _finding_out(names)


def _finding_out(names: dict[str, Any]) -> None:
    """Three charges whose answer was lost: one is found by lookup, one told by webhook, one nobody knows."""
    idempotency: Idempotency = names["idempotency"]
    names["signed_by_provider"] = lambda body, headers: headers.get("x-signature") == "good"

    @idempotency.leased
    async def lose(request: Any) -> Any:
        operation = current_operation()
        CHARGED.append(operation.downstream_key())
        operation.source, operation.provider_id = "cards", request.headers["x-charge"]
        raise OutcomeUnknown("the answer was lost")

    client = client_of(idempotency, charges=lose, events=idempotency.exempt(names["provider_event"]))

    def ask(charge: str) -> Any:
        return client.post("/charges", headers={"Idempotency-Key": charge, "X-Charge": charge})

    for name in ("told", "found", "nowhere"):
        FOUND[name] = len(CHARGED)
        assert ask(name).json()["code"] == "outcome_unknown"

    def tell(signature: str) -> Any:
        event = {"id": "evt_1", "charge": "told", "account": SHOP, "created": time.time()}
        return client.post("/events", json=event, headers={"X-Signature": signature})

    with pytest.raises(SignatureRefused):
        tell("forged")
    assert ask("told").status_code == 409
    assert [tell("good").json()["resolution"] for _ in range(2)] == ["resolved", "duplicate"]
    assert (ask("told").status_code, ask("told").json()) == (201, {"charge": "told"})
    assert asyncio.run(Reconciler(idempotency.engine).run_once()) == 1
    assert (ask("found").status_code, ask("found").json()) == (201, {"charge": "ch_found"})
    assert ask("nowhere").status_code == 409


FOUND: dict[str, int] = {}


async def find(key: str, *, made_after: datetime) -> Any:
    is_it = key == CHARGED[FOUND["found"]] and made_after < datetime.now(UTC)
    return SimpleNamespace(id="ch_found", declined=False) if is_it else None


CHARGED: list[str] = []


async def charge(_cents: int, *, idempotency_key: str) -> Any:
    CHARGED.append(idempotency_key)
    return SimpleNamespace(id="ch_1")


def _execute(idempotency: Idempotency, sql: str) -> None:
    session = idempotency.engine.drivers.sync.open()
    session.connection.execute(sql)
    session.commit()


def test_examples_of_tenants(names: dict[str, Any]) -> None:
    for code in blocks("docs/tenants.md", "python"):
        run_block(code, names)
    by_account = names["by_account"]
    assert by_account({"state": {"account": SimpleNamespace(id=7)}}) == "account-7"
    assert by_account({}) is None
    client = TestClient(names["api"])
    key = {"Idempotency-Key": "k"}
    assert client.post("/payments", headers=key).status_code == 401
    allowed = {**key, "Authorization": "Bearer secret"}
    assert [client.post("/payments", headers=allowed).status_code for _ in range(2)] == [201, 201]
    assert client.post("/payments", headers=key).status_code == 401, "no replay without authentication"


def test_examples_of_settings(names: dict[str, Any]) -> None:
    for code in blocks("docs/settings.md", "python"):
        run_block(code, names)
    assert names["policy"].key.strict


def test_examples_of_limits(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Idempotency, "close", lambda self: None)  # they are used below
    for code in blocks("docs/limits.md", "python"):
        run_block(code, names)
    monkeypatch.undo()
    limited, fresh, secretive = names["limited"], names["fresh"], names["secretive"]
    assert limited.engine.policy.active_keys == 100_000
    assert fresh.engine.policy.max_age == timedelta(minutes=5)
    assert secretive.once(tenant="t", key="k", run=lambda: "a secret") == "a secret"
    session = secretive.engine.drivers.sync.open()
    rows = session.connection.execute("select answer_body, key from samekey_keys").fetchall()
    session.rollback()
    assert b"a secret" not in rows[0][0] and rows[0][1] == "k"
    unguessed = names["unguessed"]
    assert unguessed.once(tenant="t", key="k", run=lambda: 1) == 1
    for idempotency in (limited, fresh, secretive, unguessed):
        idempotency.close()


def test_a_lost_encryption_key_is_what_the_page_says(sqlite_url: str) -> None:
    runs = []

    async def handler(request: Any) -> Any:
        runs.append(request)
        return JSONResponse({})

    def ask() -> Any:
        idempotency = Idempotency(sqlite_url, encryption=fernet(Fernet.generate_key()))
        with client_of(idempotency, pay=idempotency.leased(handler)) as client:
            return client.post("/pay", headers={"Idempotency-Key": "k"})

    assert ask().status_code == 200
    refused = ask()
    assert (refused.status_code, refused.json()["code"], len(runs)) == (500, "result_unavailable", 1)


def test_examples_of_the_command_line(names: dict[str, Any]) -> None:
    """The worker inside an application does a job while the application serves."""
    idempotency: Idempotency = names["idempotency"]
    done: list[str] = []

    @idempotency.job("note")
    async def note(job: Any, payload: Any) -> str:
        done.append(payload)
        return "noted"

    @idempotency.deferred
    async def accept(request: Any) -> Any:
        operation = current_operation()
        await operation.connection.execute("create table if not exists notes (text text)")
        await operation.connection.execute("insert into notes values ('n')")
        await operation.enqueue("note", "n")
        return JSONResponse({}, status_code=202)

    for code in blocks("docs/cli.md", "python"):
        run_block(code, names)
    app = names["app"]
    app.router.routes.append(Route("/notes", accept, methods=["POST"]))
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    with TestClient(app) as client:
        headers = {"Idempotency-Key": "k"}
        assert client.post("/notes", headers=headers).status_code == 202
        wait_until(lambda: client.post("/notes", headers=headers).status_code == 200)
    assert done == ["n"]


def test_examples_of_architecture(names: dict[str, Any]) -> None:
    for code in blocks("docs/architecture.md", "python"):
        run_block(code, names)
    assert inspect.isgeneratorfunction(names["rename"])


@whole
def test_examples_of_testing(
    names: dict[str, Any], postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path, 0)
    store = names["idempotency"]
    _execute(store, "create table paid (label text)")
    driver = SQLiteDriver(":memory:")
    names |= {
        "database_url": postgres_url,
        "pay": pay,
        "count_payments": lambda label: _paid(store).count(label),
        "my_driver": driver,
        "tmp_path": tmp_path,
        "my_queries": queries_for("sqlite"),
    }
    for page in ("docs/lab.md", "docs/testing.md"):
        for code in blocks(page, "python"):
            run_block(code, names)
    assert len(_paid(store)) > 5, "the crashes were enumerated"
    assert hasattr(names["TestMyDriver"], "store")
    driver.close()


def pay(engine: Idempotency, key: str) -> None:
    """One payment through a small WSGI application."""
    from flask import Flask

    flask = Flask("pay")

    @flask.post("/pay")
    @engine.atomic(lease=0.1)
    def handler() -> str:
        current_operation().connection.execute("insert into paid values (?)", (key,))
        return "paid"

    flask.wsgi_app = WSGIMiddleware(  # type: ignore[method-assign]
        flask.wsgi_app, idempotency=engine, tenant=single_tenant()
    )
    client, headers = flask.test_client(), {"Idempotency-Key": key}
    try:
        # 409 as long as a dead process's lease has not run out.
        wait_until(lambda: client.post("/pay", headers=headers).status_code == 200)
    finally:
        engine.close()


def _paid(idempotency: Idempotency) -> list[str]:
    session = idempotency.engine.drivers.sync.open()
    found = [row[0] for row in session.connection.execute("select label from paid")]
    session.rollback()
    return found


RUN_HERE = {
    "README.md",
    "architecture.md",
    "cli.md",
    "lab.md",
    "limits.md",
    "modes.md",
    "settings.md",
    "tenants.md",
    "testing.md",
}
RUN_ELSEWHERE = {
    "check.md": "tests/check/test_reports.py",
    "clients.md": "tests/client/test_docs.py",
    "cors.md": "tests/frames/test_cors.py",
    "coverage.md": "tests/ops/test_coverage.py",
    "deferred.md": "tests/outbox/test_docs_deferred.py",
    "fastapi.md": "tests/frames/test_docs_frames.py",
    "flask.md": "tests/frames/test_docs_frames.py",
    "ledger.md": "tests/ops/test_ledger_cli.py",
    "litestar.md": "tests/frames/test_docs_frames.py",
    "metrics.md": "tests/ops/test_metrics.py",
    "once.md": "tests/phased/test_docs_phased.py",
    "operations.md": "tests/operator/test_operations_docs.py",
    "outgoing.md": "tests/client/test_docs_outgoing.py",
    "phased.md": "tests/phased/test_docs_phased.py",
    "rollout.md": "tests/ops/test_rollout.py",
    "spec.md": "tests/ops/test_spec.py",
    "starlette.md": "tests/frames/test_docs_frames.py",
    "django.md": "tests/django/test_page.py",
    "sqlalchemy.md": "tests/sqlalchemy/test_docs_sqlalchemy.py",
    "tutorial.md": "tests/payments/test_docs_tutorial.py",
}
"""Pages whose code is run by the tests of what they are about."""


def test_every_page_with_code_is_run() -> None:
    with_code = {page.name for page in PAGES if _has_python(page)}
    assert with_code <= RUN_HERE | RUN_ELSEWHERE.keys(), "who runs the code of the new page?"
    assert with_code >= RUN_HERE


@pytest.mark.parametrize("page", RUN_ELSEWHERE)
def test_pages_that_others_run_are_run(page: str) -> None:
    assert (ROOT / "docs" / page).is_file(), f"docs/{page} is not there"
    file = ROOT / RUN_ELSEWHERE[page]
    assert file.is_file(), f"{RUN_ELSEWHERE[page]} should run docs/{page}, and is not there"
    assert page in file.read_text(), f"{RUN_ELSEWHERE[page]} does not mention {page}"


def _has_python(page: Path) -> bool:
    return any(language == "python" for language, _ in _FENCE.findall(page.read_text()))


# ------------------------------------------------------------------ commands

OTHERS = {"curl", "gunicorn", "pip", "uvicorn"}
"""Programs that are not ours."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    for language, code in _FENCE.findall(page.read_text()):
        if language == "sh":
            for line in code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    _check_command(words)


def _check_command(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        for target in arguments:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    elif program == "samekey" or arguments[:2] == ["-m", "lab.torture"]:
        group: Any = typer.main.get_command(torture)
        command = _named_by(arguments) if program == "samekey" else group.commands[arguments[2]]
        options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert given <= options, " ".join(words)
    elif program == ".venv/bin/python":
        assert arguments[0] == "-m"
        assert pkgutil.resolve_name(arguments[1])
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in re.findall(r"\.\[(\w+)\]", " ".join(arguments)):
            assert extra in extras
    else:
        assert program in OTHERS, program
        if program != "curl":
            assert shutil.which(program, path=str(Path(sys.executable).parent)), program


Command = Any
"""A command of click; which click, is typer's business."""


def _commands() -> dict[str, Command]:
    """Every command by its full name, those of groups included: ``ledger compare``."""
    found: dict[str, Command] = {}

    def descend(command: Command, path: tuple[str, ...]) -> None:
        below: dict[str, Command] | None = getattr(command, "commands", None)
        if below is None:
            found[" ".join(path)] = command
        else:
            for name, child in below.items():
                descend(child, (*path, name))

    descend(typer.main.get_command(command_line), ())
    return found


def _named_by(arguments: list[str]) -> Command:
    commands = _commands()
    for words in (2, 1):
        named = " ".join(arguments[:words])
        if named in commands:
            return commands[named]
    raise AssertionError(f"there is no command {' '.join(arguments[:2])!r}")


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\bsamekey {re.escape(name)}(?![\w-])", text) is not None


def _documents(text: str, name: str, command: Command) -> set[str]:
    """What a page leaves out of a command: itself, or arguments and options (by their rows in a table)."""
    if not _mentions(text, name):
        return {f"samekey {name}"}
    # Arguments in capitals, as the help has them, or in small letters, as the code has them.
    return {shown for shown in map(_shown, command.params) if f"`{shown}`".lower() not in text.lower()}


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]").upper()
    return str(parameter.opts[-1])


def test_the_commands_of_groups_are_found() -> None:
    assert {"migrate", "worker", "ledger compare"} <= _commands().keys()


@pytest.mark.parametrize("name", _commands())
def test_every_command_and_option_is_documented(name: str) -> None:
    """On one page: a command that is spread over several cannot be read."""
    command = _commands()[name]
    left_out = {page.name: _documents(page.read_text(), name, command) for page in DOCS}
    page, missing = min(left_out.items(), key=lambda item: (f"samekey {name}" in item[1], len(item[1])))
    assert not missing, f"no page documents all of `samekey {name}`; {page} lacks {sorted(missing)}"
    assert _mentions((ROOT / "docs/cli.md").read_text(), name), f"cli.md does not lead to `samekey {name}`"


def test_every_section_of_a_command_is_exact() -> None:
    """Where cli.md has a section of its own, its table is that of the command, and no more."""
    sections = re.findall(r"^## samekey ([\w ]+)$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE)
    assert {"migrate", "worker"} <= set(sections)
    for name in sections:
        text = section("docs/cli.md", f"## samekey {name}")
        described = {row: cells for row, cells in rows(text).items() if row != "--help"}
        parameters = {_shown(parameter): parameter for parameter in _commands()[name].params}
        assert described.keys() == parameters.keys(), name
        for shown, parameter in parameters.items():
            assert described[shown][0] == f"`{parameter.envvar}`", f"{name} {shown}"
            assert described[shown][1], f"{name} {shown} says nothing"


# ------------------------------------------------------------------ tables against the code


def spelled(value: object) -> str | None:
    """A default as the tables write it; None where they may say it in words."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, timedelta):
        seconds = int(value.total_seconds())
        for size, unit in ((3600, "h"), (60, "min")):
            if seconds > size and seconds % size == 0:
                return f"{seconds // size} {unit}"
        return f"{seconds} s"
    if isinstance(value, int):
        return f"{value // 2**20} MiB" if value and value % 2**20 == 0 else str(value)
    if isinstance(value, str):
        return None if value.startswith("https:") else f'`"{value}"`'
    return None


def defaults(kind: Any) -> dict[str, object]:
    return {f.name: f.default for f in dataclasses.fields(kind) if f.init}


@pytest.mark.parametrize(
    ("kind", "heading"),
    [(Policy, "## Policy"), (KeyRules, "## KeyRules"), (FingerprintRules, "## FingerprintRules")],
)
def test_every_setting_is_documented_with_its_default(kind: Any, heading: str) -> None:
    described = rows(section("docs/settings.md", heading))
    assert described.keys() == defaults(kind).keys()
    for name, default in defaults(kind).items():
        assert all(described[name]), f"{name} has no default or no reason"
        expected = None if default is dataclasses.MISSING else spelled(default)
        assert expected in (None, described[name][0]), name


@pytest.mark.parametrize(
    ("function", "heading"),
    [
        (Idempotency.__init__, "## Idempotency"),
        (IdempotencyMiddleware.__init__, "## The middleware"),
        (WSGIMiddleware.__init__, "## The middleware"),
    ],
)
def test_every_argument_is_documented(function: Callable[..., Any], heading: str) -> None:
    names = inspect.signature(function).parameters.keys() - {"self", "app"}
    described = rows(section("docs/settings.md", heading))
    assert described.keys() == names
    assert all(cell for cells in described.values() for cell in cells)


@pytest.mark.parametrize(
    ("functions", "heading"),
    [
        ([Idempotency.phased], "## Phased"),
        ([Idempotency.job], "## Jobs"),
        ([Idempotency.once, Idempotency.once_async], "## Once"),
    ],
)
def test_every_option_of_its_own_is_documented(functions: list[Callable[..., Any]], heading: str) -> None:
    described = rows(section("docs/settings.md", heading))
    for function in functions:
        parameters = dict(inspect.signature(function).parameters)
        assert described.keys() == parameters.keys() - {"self", "options"}
        for name, parameter in parameters.items():
            if name in described and parameter.default is not inspect.Parameter.empty:
                expected = spelled(parameter.default)
                assert expected in (None, described[name][0]) or described[name][0] in (
                    f"{parameter.default} s",  # a time-out in seconds
                    "`Backoff()`",
                ), name


def test_every_option_of_a_decorator_is_documented(sqlite_url: str) -> None:
    described = rows(section("docs/settings.md", "## The decorators"))
    own = defaults(Rules).keys() - {"policy", "mode"}
    assert described.keys() == own | {"repeatable"}
    idempotency = Idempotency(sqlite_url)
    idempotency.leased(repeatable=True)  # it is there, though no field of the rules
    try:
        for option in own:
            for mode in ("atomic", "leased", "phased", "deferred"):
                said = described[option][1]
                assert _takes(idempotency, mode, option) == (said.startswith("all") or mode in said), option
    finally:
        idempotency.close()


def _takes(idempotency: Idempotency, mode: str, option: str) -> bool:
    """Whether a decorator takes an option at all; one that has no effect is refused."""
    value = {"on_error": "retry", "on_4xx": "commit", "strict": True}.get(option)
    options: dict[str, Any] = {option: True if option == "required" else value}
    try:
        if mode == "phased":
            idempotency.phased("name", **options)
        else:
            getattr(idempotency, mode)(**options)
    except ConfigurationError:
        return False
    return True


def test_only_what_the_middleware_reads_is_for_the_whole() -> None:
    """The fields that a decorator cannot change are marked, and no others."""
    marked = {
        name
        for name, cells in rows(section("docs/settings.md", "## Policy")).items()
        if "Only for the whole" in cells[-1]
    }
    # The first two have a column or a sentence of their own; the last is read by the status resource.
    assert marked == (_AT_THE_EDGE - {"profile", "required_at_edge"}) | {"lookups_per_minute"}


def test_the_codes_are_those_of_the_code() -> None:
    described = rows(section("docs/http.md", "## Codes"))
    assert {code: cells[0] for code, cells in described.items()} == dict(CODES)
    assert all(cell for cells in described.values() for cell in cells)
    quoted = set(re.findall(r"`(\w+)`", section("docs/http.md", "## What a request gets")))
    unsent = {code for code, cells in described.items() if "not sent by this version" in cells[2]}
    assert quoted >= CODES.keys() - unsent


def test_every_module_for_tests_is_documented() -> None:
    modules = {module.name for module in pkgutil.iter_modules(samekey.testing.__path__)}
    public = {name for name in modules if "_" not in name}  # the others are parts of one of these
    text = (ROOT / "docs/testing.md").read_text()
    assert set(re.findall(r"^## samekey\.testing\.(\w+)$", text, re.MULTILINE)) == public


def test_every_option_of_the_torture_is_documented() -> None:
    """It is no command of the package, so it has a page of its own."""
    text = (ROOT / "docs/torture.md").read_text()
    group: Any = typer.main.get_command(torture)
    assert set(group.commands) == {"service", "outbox"}
    for name, command in group.commands.items():
        assert f"python -m lab.torture {name}" in text
        missing = {shown for shown in map(_shown, command.params) if f"`{shown}" not in text} - {"--help"}
        assert not missing, name


# ------------------------------------------------------------------ links and words


def anchors(page: Path) -> set[str]:
    """The anchors that a Markdown viewer makes of headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_all_pages_can_be_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"(docs/{page.name})" in text for page in DOCS)


if __name__ == "__main__":
    warnings.simplefilter("error")
    for path in PAGES:
        path.write_text(generate(path.read_text()))
