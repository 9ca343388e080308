"""The pages of Starlette, FastAPI, Flask and Litestar: their code is run as it stands there, and served."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.testclient import TestClient

from lab import environment
from lab.processes import LOOPBACK, free_port
from tests.chosen import whole
from tests.frames.curled import serve_and_ask_twice
from tests.test_docs import ROOT, blocks

PAGES = ["starlette.md", "fastapi.md", "flask.md", "litestar.md"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the page, which its test imports."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    yield module
    module.idempotency.close()


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "<documentation>", "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_ends_at_a_tested_endpoint(page: str, shop: ModuleType) -> None:
    service, test, *_ = blocks(f"docs/{page}", "python")
    run(service, shop.__dict__)
    names: dict[str, Any] = {}
    run(test, names)
    names["test_a_retry_gets_the_first_answer"]()


@whole
@pytest.mark.parametrize("page", [*PAGES, "sqlalchemy.md"])
def test_the_page_ends_at_a_running_endpoint(page: str, tmp_path: Path) -> None:
    """By the page's own commands, but for the port: its server, and its request, twice."""
    (tmp_path / "shop.py").write_text(blocks(f"docs/{page}", "python")[0])
    serve, _, ask = blocks(f"docs/{page}", "sh")[1].partition("\n")
    port = free_port()
    place = f"{LOOPBACK}:{port}"
    server, *arguments = shlex.split(serve)
    where = ["--bind", place] if server == "gunicorn" else ["--host", LOOPBACK, "--port", str(port)]
    command = [sys.executable, "-m", server, *arguments, *where]
    environ = {**environment(), "PYTHONPATH": f"{tmp_path}:{environment().get('PYTHONPATH', '')}"}
    serve_and_ask_twice(command, ask, place, tmp_path, environ)


@whole
def test_the_page_runs_behind_a_server_that_loads_it_before_it_forks(tmp_path: Path) -> None:
    """A connection that the module has left open would be refused in each worker."""
    (tmp_path / "shop.py").write_text(blocks("docs/flask.md", "python")[0])
    _, _, ask = blocks("docs/flask.md", "sh")[1].partition("\n")
    place = f"{LOOPBACK}:{free_port()}"
    command = [
        sys.executable,
        *("-m", "gunicorn", "--preload", "-w", "2", "--bind", place, "shop:create_app()"),
    ]
    environ = {**environment(), "PYTHONPATH": f"{tmp_path}:{environment().get('PYTHONPATH', '')}"}
    serve_and_ask_twice(command, ask, place, tmp_path, environ)


@whole
@pytest.mark.parametrize("page", [*PAGES, "sqlalchemy.md"])
def test_the_page_installs_what_its_steps_need(page: str, tmp_path: Path) -> None:
    """Its test, and its look at all routes, with nothing else than the page's own line brings."""
    (install, *_) = blocks(f"docs/{page}", "sh")
    packages = " ".join(shlex.split(install)[2:])
    service, test, *_ = blocks(f"docs/{page}", "python")
    (tmp_path / "shop.py").write_text(service)
    (tmp_path / "test_shop.py").write_text(test)
    commands = [["pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]]
    if page != "sqlalchemy.md":
        app = "shop:create_app()" if page == "flask.md" else "shop:app"
        commands.append(["samekey.cli", "coverage", app])
    environ = {**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ["PYTHONPATH"] = f"{tmp_path}:{ROOT / 'src'}:{ROOT}"
    for command in commands:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.frames.only", packages, *command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_the_pages_install_can_be_installed() -> None:
    """Every extra that a page names is there."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")):
        for extras in re.findall(r"(?:samekey|\.)\[([\w,-]+)\]\"?'?", page.read_text()):
            assert set(extras.split(",")) <= known.keys(), (page.name, extras)


def test_a_router_of_guarded_routes(shop: ModuleType) -> None:
    service, _, dependency, router = blocks("docs/fastapi.md", "python")
    for code in (service, dependency, router):
        run(code, shop.__dict__)
    shop.app.dependency_overrides = {}
    with TestClient(shop.app) as client:
        assert client.get("/payments/7").json() == {"order": 7}
        assert client.post("/payments/7?amount=3").status_code == 400  # a key is required
        sent = {"Authorization": "Bearer token-of-ann", "Idempotency-Key": "gift"}
        first, again = (client.post("/gifts", json={"sku": "tea"}, headers=sent) for _ in range(2))
        assert (first.status_code, again.json()) == (201, first.json())
        assert again.headers["Idempotent-Replayed"] == "true"
