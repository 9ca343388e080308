"""A project's own tests work: Django's runner, its two kinds of cases, and its test clients."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab import environment
from tests.chosen import stores


@pytest.mark.parametrize("store", stores("memory", "postgres", "sqlite", "mariadb", first=2))
def test_a_project_runs_its_own_tests(store: str, request: pytest.FixtureRequest) -> None:
    url = "sqlite:///:memory:" if store == "memory" else request.getfixturevalue(f"{store}_url")
    command = [sys.executable, "-W", "error", "-m", "tests.django.own_tests", url]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "Ran 19 tests" in done.stderr) == (0, True), done.stdout + done.stderr
