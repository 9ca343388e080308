"""Documentation that cannot rot: its code is run, its tables are held against the code.

``python -m tests.test_docs`` writes the blocks that are generated anew.
"""

from __future__ import annotations

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
import tomllib
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx2
import psycopg
import pytest
import typer.main
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

import samekey.core.outcome
import samekey.testing
from samekey import FingerprintRules, Idempotency, KeyRules, Outcome, Policy
from samekey.asgi import IdempotencyMiddleware
from samekey.cli.app import app as command_line
from samekey.core.problem import CODES
from samekey.core.states import diagram
from samekey.drivers.sqlite import SQLiteDriver
from samekey.engine.rules import Rules
from samekey.stores.sql.queries import queries_for
from samekey.tenants import single_tenant
from samekey.testing.processes import serve_asgi, serve_wsgi, wait_until
from samekey.wsgi import IdempotencyMiddleware as WSGIMiddleware

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
    lines = inspect.cleandoc(samekey.core.outcome.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|")) + "\n"


GENERATORS: dict[str, Callable[[], str]] = {
    "states": lambda: f"```mermaid\n{diagram()}```\n",
    "outcomes": outcome_table,
    "migrate": migrate_output,
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


def test_the_postgresql_application(tmp_path: Path, postgres_url: str) -> None:
    assert "DATABASE_URL" in save(tmp_path, 2)
    command = [sys.executable, "-m", "samekey.cli", "migrate", postgres_url]
    subprocess.run(command, check=True, capture_output=True)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("create table payments (id bigint generated always as identity, cents integer)")
        with serve_asgi("payments:app", {"DATABASE_URL": postgres_url}, directory=tmp_path) as api:
            assert_keeps_its_promises(api.url)
        assert connection.execute("select count(*) from payments").fetchone() == (1,)


def test_the_settings_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("README.md", "python")
    assert len(code) == 4, "a new block in the README needs a test here"
    names = run_block(code[3], {})
    assert names["idempotency"].policy.ttl == timedelta(days=7)


# ------------------------------------------------------------------ the other pages' code

PRELUDE = """
from datetime import timedelta
import httpx2, pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from samekey import FingerprintRules, Idempotency, KeyRules, Outcome, current_operation, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Program
from samekey.tenants import by_state, by_user
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


def client_of(idempotency: Idempotency, **handlers: Any) -> TestClient:
    routes = [Route(f"/{name}", handler, methods=["POST"]) for name, handler in handlers.items()]
    app = Starlette(routes=routes)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return TestClient(app)


def test_examples_of_modes(names: dict[str, Any]) -> None:
    idempotency = names["idempotency"]
    names["provider"] = SimpleNamespace(charge=charge)
    for code in blocks("docs/modes.md", "python"):
        run_block(code, names)
    _execute(idempotency, "create table orders (item text)")
    client = client_of(idempotency, order=names["create_order"], charge=names["charge_card"])
    for path in ("/order", "/charge"):
        first, again = (client.post(path, headers={"Idempotency-Key": path}) for _ in range(2))
        assert (first.status_code, again.content) == (201, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
    assert idempotency.find_by_provider_id("ch_1") is not None
    assert idempotency.find_by_downstream_key(CHARGED[0]) == idempotency.find_by_provider_id("ch_1")
    assert names["by_the_provider"](names["CardDeclined"]()) is Outcome.FAIL


CHARGED: list[str] = []


async def charge(_cents: int, *, idempotency_key: str) -> Any:
    CHARGED.append(idempotency_key)
    return SimpleNamespace(id="ch_1")


def _execute(idempotency: Idempotency, sql: str) -> None:
    session = idempotency.drivers.sync.open()
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


def test_examples_of_architecture(names: dict[str, Any]) -> None:
    for code in blocks("docs/architecture.md", "python"):
        run_block(code, names)
    assert inspect.isgeneratorfunction(names["rename"])


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
        "my_queries": queries_for("sqlite"),
    }
    for code in blocks("docs/testing.md", "python"):
        run_block(code, names)
    assert len(_paid(store)) > 5, "the crashes were enumerated"
    assert hasattr(names["TestMyDriver"], "store")
    driver.close()


def pay(engine: Idempotency, key: str) -> None:
    """One payment through a small WSGI application."""
    from flask import Flask

    from samekey import current_operation

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
    session = idempotency.drivers.sync.open()
    found = [row[0] for row in session.connection.execute("select label from paid")]
    session.rollback()
    return found


def test_every_page_with_code_is_run() -> None:
    tested = {"README.md", "modes.md", "tenants.md", "settings.md", "architecture.md", "testing.md"}
    assert {page.name for page in PAGES if _has_python(page)} == tested


def _has_python(page: Path) -> bool:
    return any(language == "python" for language, _ in _FENCE.findall(page.read_text()))


# ------------------------------------------------------------------ commands

OTHERS = {"curl", "pip", "uvicorn"}
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
    elif program == "samekey":
        command = _commands()[arguments[0]]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options
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


def _commands() -> dict[str, click.Command]:
    group = typer.main.get_command(command_line)
    return dict(group.commands)  # type: ignore[attr-defined]


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    documented = set(re.findall(r"^## samekey (\w+)$", text, re.MULTILINE))
    assert documented == set(_commands())
    for name, command in _commands().items():
        described = rows(section("docs/cli.md", f"## samekey {name}").replace("`URL`", "`url`"))
        parameters = {p.opts[-1]: p for p in command.params}
        assert described.keys() - {"--help"} == parameters.keys()
        for option, parameter in parameters.items():
            assert described[option][0] == f"`{parameter.envvar}`"


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


def test_every_option_of_a_decorator_is_documented(sqlite_url: str) -> None:
    described = rows(section("docs/settings.md", "## The decorators"))
    own = defaults(Rules).keys() - {"policy", "mode"}
    assert described.keys() == own | {"repeatable"}
    idempotency = Idempotency(sqlite_url)
    idempotency.leased(repeatable=True)  # it is there, though no field of the rules
    idempotency.close()


def test_only_what_the_middleware_reads_is_for_the_whole() -> None:
    """The fields that a decorator cannot change are marked, and no others."""
    marked = {
        name
        for name, cells in rows(section("docs/settings.md", "## Policy")).items()
        if "Only for the whole" in cells[-1]
    }
    assert marked == {"header", "methods", "max_body", "status_path"}


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
