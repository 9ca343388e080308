"""Which tests reach which line, and how long each takes: measured once, and kept beside the code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import ROOT, environment

KEPT = ROOT / ".mutation"
TESTS = (
    "core",
    "law",
    "stores",
    "engine",
    "matrix",
    "edges",
    "phased",
    "operator",
    "outbox",
    "cancellation",
    "redis",
)
LONGEST = 3.0
"""Seconds. What takes longer watches whole processes, which do not see a mutant."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Tests by the lines that they enter."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]

    def tests_for(self, file: str, first: int, last: int) -> list[str]:
        """The tests that enter these lines, the quickest first. Where none does (a line that runs when the
        module is imported), those that enter the file at all."""
        by_line = self.lines.get(file, {})
        tests = {test for line in range(first, last + 1) for test in by_line.get(line, ())}
        if not tests:
            tests = {test for found in by_line.values() for test in found}
        return sorted(tests, key=lambda test: self.seconds[test])


def measure(workers: int) -> Reach:
    """Runs the tests once, traced. Minutes."""
    KEPT.mkdir(exist_ok=True)
    for old in (*KEPT.glob("data.*"), *KEPT.glob("seconds.*")):
        old.unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "lab.mutation.tracing"]
    command += ["--timeout", "120", *(f"tests/{folder}" for folder in TESTS)]
    told = environment(SAMEKEY_REACH=str(KEPT), CI="")
    result = subprocess.run(command, cwd=ROOT, env=told, check=False)
    if result.returncode not in {0, 1}:
        raise SystemExit(f"The tests could not be run (code {result.returncode}); nothing was measured.")
    return read()


def read() -> Reach:
    """What has been measured."""
    import coverage

    seconds: dict[str, float] = {}
    for part in KEPT.glob("seconds.*.json"):
        seconds |= json.loads(part.read_text())
    if not seconds:
        raise SystemExit("Nothing has been measured yet: run it with --measure first.")
    quick = {test for test, time in seconds.items() if time <= LONGEST}
    lines: dict[str, dict[int, list[str]]] = {}
    package = str(ROOT / "src") + os.sep
    for part in KEPT.glob("data.*"):
        data = coverage.CoverageData(basename=str(part))
        data.read()
        for file in data.measured_files():
            if not file.startswith(package):
                continue
            into = lines.setdefault(file.removeprefix(package), {})
            for line, tests in data.contexts_by_lineno(file).items():
                into.setdefault(line, []).extend(test for test in tests if test in quick)
    return Reach(seconds, lines)


def files_of(parts: Sequence[str]) -> list[str]:
    """The files of the package that are named: folders, or single files."""
    source = ROOT / "src"
    found: list[Path] = []
    for part in parts:
        place = source / "samekey" / part
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [str(path.relative_to(source)) for path in found]
