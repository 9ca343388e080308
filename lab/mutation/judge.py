"""One mutant before its tests: a child of a warm process runs them against the changed file."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import ROOT
from lab.mutation.changes import Mutant
from lab.mutation.reach import Reach

Verdict = Literal["killed", "hung", "survived", "not reached"]
MOST = 150
"""Tests for one mutant, at most; the quickest of those that reach it."""
NOTHING_RAN = 5
"""What pytest says where no test was chosen."""
PATIENCE = 60.0
"""Seconds for all of them. A mutant that hangs is noticed."""
WARM = (
    "pytest",
    "hypothesis",
    "fastapi",
    "starlette.testclient",
    "flask",
    "psycopg",
    "asyncpg",
    "pymysql",
    "redis",
    "httpx2",
)
"""What takes long to import, and is no part of the package."""


@dataclass(frozen=True, slots=True)
class Judged:
    mutant: Mutant
    verdict: Verdict
    tests: int


def warm_up() -> None:
    """Imports what every child would have to import."""
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    assert "samekey" not in sys.modules, "samekey is to be imported by the children, each with its mutant"


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the package that can be changed."""
    with tempfile.TemporaryDirectory(prefix="samekey-mutants-") as directory:
        source = Path(directory) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


def judge(mutant: Mutant, reach: Reach, source: Path) -> Judged:
    """Runs the tests that reach the mutant, and puts the file back."""
    tests = reach.tests_for(mutant.file, mutant.line, mutant.end_line)[:MOST]
    if not tests:
        return Judged(mutant, "not reached", 0)
    file = source / mutant.file
    original = file.read_text()
    file.write_text(mutant.apply(original))
    try:
        return Judged(mutant, _run(tests, source), len(tests))
    finally:
        file.write_text(original)


def check(reach: Reach, source: Path) -> None:
    """Without a mutant the tests pass; otherwise every mutant would count as noticed."""
    tests = sorted(reach.seconds, key=lambda test: reach.seconds[test])
    some = tests[:: max(1, len(tests) // MOST)]
    if _run([test for test in some if reach.seconds[test] < 1], source) != "survived":
        raise SystemExit(
            "The tests fail without any mutant; run them by themselves first, or --measure anew."
        )


def _run(tests: list[str], source: Path) -> Verdict:
    child = os.fork()
    if child == 0:
        _be_the_child(tests, source)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code == NOTHING_RAN:
                raise RuntimeError(f"None of {', '.join(tests)} was run: that says nothing of a mutant.")
            return "survived" if code == 0 else "killed"
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def _be_the_child(tests: list[str], source: Path) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(source), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(source), str(ROOT)))
    os.environ["SAMEKEY_TESTS"] = "all"  # whatever the run leaves out that this is a part of
    import pytest

    code: int = 1
    with suppress(BaseException):
        # What was imported before pytest is not rewritten; none of it is a test.
        told = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        quiet = [
            *told,
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--timeout",
            "30",
            "--no-header",
        ]
        code = int(pytest.main([*quiet, *tests]))
    os._exit(code)
