"""Who may import whom: the layers of the architecture, read from the source with ``ast``.

Imports point one way, ``core ← stores``, ``core ← drivers``, everything else above them. A new package under
``src/samekey`` must be given a row in ``LAYERS`` before this test lets it in.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import samekey

ROOT = Path(samekey.__file__).parent
ANY = frozenset({"*"})


@dataclass(frozen=True)
class Layer:
    """What a layer may import: other layers, third-party packages, and of the standard library."""

    layers: frozenset[str]
    third_party: frozenset[str] = frozenset()
    stdlib: frozenset[str] = ANY


PURE = frozenset(
    {
        "__future__",
        "collections",
        "dataclasses",
        "decimal",  # exact amounts; its default context is never used
        "datetime",  # timedelta; the calls that read a clock are looked for below
        "email",  # formatdate of a given time
        "enum",
        "errno",
        "functools",
        "hashlib",
        "hmac",
        "http",  # HTTPStatus
        "itertools",
        "json",
        "math",
        "re",
        "types",
        "typing",
        "warnings",  # a questionable policy is said aloud when it is made, at start-up
        "zlib",
    }
)
"""What the core may use: no clock, no randomness, no I/O, no logging, no threads. No exceptions."""

LAYERS = {
    "errors": Layer(frozenset(), stdlib=PURE),
    # What every log record passes.
    "logs": Layer(frozenset()),
    "core": Layer(frozenset({"errors"}), frozenset({"rfc8785", "http_sf"}), PURE),
    # Programs ask nothing of the machine; their SQL is read from files of this package.
    "stores": Layer(frozenset({"core", "errors"}), stdlib=PURE | {"importlib"}),
    "drivers": Layer(
        frozenset({"core", "errors"}),
        frozenset({"asyncpg", "psycopg", "pymysql", "redis", "botocore", "aiobotocore"}),
    ),
    "response": Layer(frozenset({"core", "errors"}), stdlib=PURE),
    "evidence": Layer(frozenset({"core", "response", "errors"}), stdlib=PURE | {"base64"}),
    "encryption": Layer(frozenset({"drivers", "errors"}), frozenset({"cryptography"})),
    # No database driver: all I/O on a database is in drivers.
    "engine": Layer(frozenset({"core", "stores", "drivers", "response", "evidence", "errors"})),
    "tenants": Layer(frozenset({"errors"}), stdlib=PURE | {"uuid"}),
    # The other end of the wire: no store, no engine, no server.
    "client": Layer(
        frozenset({"core", "errors"}),
        frozenset({"httpx", "httpx2", "anyio", "requests", "urllib3", "psycopg"}),
    ),
    # Calls to providers: the client's transports, told the operation.
    "outgoing": Layer(frozenset({"client", "core", "engine", "errors"}), frozenset({"httpx", "httpx2"})),
    # No framework: what the edges know of one, they find in the application that they wrap.
    # What users make: the engine with decorators, and with the workers beside it.
    "idempotency": Layer(
        frozenset(
            {"core", "stores", "drivers", "engine", "workers", "response", "evidence", "errors", "sqlalchemy"}
        )
    ),
    # Imported by users, and by Idempotency(engine) when it is given one.
    "sqlalchemy": Layer(frozenset({"engine", "drivers", "errors"}), frozenset({"sqlalchemy"})),
    "sqlmodel": Layer(frozenset({"sqlalchemy"}), frozenset({"sqlmodel"})),
    "edges": Layer(frozenset({"idempotency", "engine", "core", "errors", "tenants"})),
    "asgi": Layer(frozenset({"edges"})),
    "wsgi": Layer(frozenset({"edges"})),
    # An integration: a Django app, with an edge of its own, on the alias' own connection.
    "django": Layer(ANY, frozenset({"asgiref", "django", "rest_framework"})),
    # One framework each, for those who have it: nothing else of samekey imports these.
    "litestar": Layer(
        frozenset({"core", "edges", "idempotency", "openapi", "tenants", "errors"}), frozenset({"litestar"})
    ),
    "fastapi": Layer(
        frozenset({"core", "edges", "engine", "idempotency", "openapi", "tenants", "errors"}),
        frozenset({"fastapi"}),
    ),
    "flask": Layer(
        frozenset({"core", "edges", "idempotency", "openapi", "errors"}), frozenset({"flask", "werkzeug"})
    ),
    "openapi": Layer(frozenset({"edges", "errors", "idempotency", "ops", "tenants"}), frozenset({"django"})),
    "workers": Layer(frozenset({"engine", "core", "stores", "drivers", "response", "evidence", "errors"})),
    "ops": Layer(ANY, frozenset({"opentelemetry", "prometheus_client", "rich"})),
    # It knows nothing of samekey's own way of doing it: it looks at any server, from outside.
    "check": Layer(frozenset({"errors"}), frozenset({"uvicorn"})),
    "samekey": Layer(frozenset({"core", "engine", "idempotency", "response", "evidence", "errors", "logs"})),
    "cli": Layer(ANY, frozenset({"typer", "rich"})),
    "testing": Layer(ANY, ANY),
}
"""By the first name below ``samekey``; ``samekey`` itself is ``__init__.py``, the public names."""

MAY_IMPORT_EDGES = {
    "asgi",
    "wsgi",
    "django",
    "fastapi",
    "flask",
    "litestar",
    "openapi",
    "edges",
    "cli",
    "ops",
    "testing",
}

MODULES = sorted(ROOT.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """``samekey.core.states`` is of the layer ``core``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, wherever in the file, relative imports resolved."""
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                # "from . import x" may name a module; the longer name tells its layer.
                full = f"{base}.{alias.name}"
                yield node.lineno, full if base == "samekey" else base


def violations(path: Path) -> list[str]:
    own = layer_of(module_name(path))
    assert own in LAYERS, f"{own} has no row in LAYERS"
    rule = LAYERS[own]
    found = []
    for line, name in imports_of(path):
        top = name.partition(".")[0]
        if top == "samekey":
            other = layer_of(name)
            ok = other == own or other in rule.layers or rule.layers == ANY
        elif top in sys.stdlib_module_names:
            ok = top in rule.stdlib or rule.stdlib == ANY
        else:
            ok = top in rule.third_party or rule.third_party == ANY
        if not ok:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    return found


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 20
    names = {name for path in MODULES for _, name in imports_of(path)}
    assert {"samekey.core.states", "samekey.core.claim", "rfc8785", "asyncpg", "sqlite3"} <= names


def test_every_module_belongs_to_a_layer() -> None:
    unknown = {layer_of(module_name(path)) for path in MODULES} - set(LAYERS)
    assert not unknown, f"give {', '.join(sorted(unknown))} a row in LAYERS: what may it import?"


def test_imports_point_one_way() -> None:
    assert not {str(path.relative_to(ROOT)): found for path in MODULES if (found := violations(path))}


def test_nothing_imports_the_edges_but_the_public_modules() -> None:
    users = {
        layer_of(module_name(path))
        for path in MODULES
        if any(layer_of(name) == "edges" for _, name in imports_of(path) if name.startswith("samekey."))
    }
    assert users <= MAY_IMPORT_EDGES


def test_the_table_has_no_circles() -> None:
    """A layer is below another, or above it, or beside it; never both below and above."""

    def below(layer: str, path: tuple[str, ...] = ()) -> None:
        assert layer not in path, " → ".join([*path, layer])
        for other in LAYERS[layer].layers - ANY:
            below(other, (*path, layer))

    for layer in LAYERS:
        below(layer)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import os", "imports os"),
        ("import time as t", "imports time"),
        ("from random import random", "imports random"),
        ("import secrets", "imports secrets"),
        ("import logging", "imports logging"),
        ("from socket import socket", "imports socket"),
        ("import asyncio", "imports asyncio"),
        ("import orjson", "imports orjson"),
        ("from ..engine import flow", "imports samekey.engine"),
        ("from .. import drivers", "imports samekey.drivers"),
        ("from samekey.stores.sql import keys", "imports samekey.stores.sql"),
        ("def f():\n    import os.path", "imports os.path"),
    ],
)
def test_this_test_would_notice(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = tmp_path / "samekey" / "core"
    core.mkdir(parents=True)
    (core / "offender.py").write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path / "samekey")
    assert [line.rpartition(" imports ")[2] for line in violations(core / "offender.py")] == [
        sentence.removeprefix("imports ")
    ]


# --- purity that imports do not show -------------------------------------------------------------

CLOCKS = {"now", "utcnow", "today", "fromtimestamp", "time", "monotonic"}
EFFECTS = {"open", "input", "exec", "eval", "breakpoint", "__import__"}


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if layer_of(module_name(path)) in {"core", "errors"}],
    ids=lambda path: path.name,
)
def test_the_core_reads_no_clock_and_opens_nothing(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                assert node.func.attr not in CLOCKS, f"line {node.lineno} reads a clock"
            if isinstance(node.func, ast.Name):
                assert node.func.id not in EFFECTS, f"line {node.lineno} calls {node.func.id}"
                # Without a time of its own, formatdate would take the clock's.
                assert node.func.id != "formatdate" or node.args, f"line {node.lineno} reads a clock"


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert not [str(path.relative_to(ROOT)) for path in silent], "these have no docstring"


OTHER_END = {"client", "check"}
"""The other end of the wire: nobody reads these beside the engine, so each has its own words."""
NAMED_BY_OTHERS = {
    "sqlalchemy",
    "sqlmodel",
    "django",
    "litestar",
    "flask",
    "fastapi",
    "httpx",
    "httpx2",
    "requests",
}
"""What stands in for a library's own class has that class's name (Client, Session)."""


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if NAMED_BY_OTHERS & set(parts):
            continue
        house = parts[0] if parts[0] in OTHER_END else "samekey"
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault((house, node.name), []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# --- what importing samekey brings along ---------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    ["samekey", "samekey.asgi", "samekey.wsgi", "samekey.tenants", "samekey.client", "samekey.outgoing"],
)
def test_importing_brings_no_framework_and_no_database_driver_but_sqlite3(module: str) -> None:
    script = (
        "import sys, json\n"
        "before = set(sys.modules)\n"
        f"import {module}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in json.loads(shown.stdout)}
    foreign = loaded - set(sys.stdlib_module_names) - {"samekey"}
    # The two of pyproject.toml, and what http-sf needs itself.
    assert foreign <= {"rfc8785", "http_sf", "typing_extensions"}
    assert "sqlite3" in loaded


def test_the_public_names_are_all_there() -> None:
    assert len(set(samekey.__all__)) == len(samekey.__all__)
    for name in samekey.__all__:
        assert getattr(samekey, name)
