"""The admin: what operators may see there, and the acts that the audit keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab import environment
from tests.chosen import stores


@pytest.mark.timeout(150)
@pytest.mark.parametrize("store", stores("postgres", "sqlite", "mariadb", first=1))
def test_pages_and_acts(store: str, request: pytest.FixtureRequest) -> None:
    """On every database: keys, dead letters and the audit are listed, filtered, searched and acted upon."""
    url = request.getfixturevalue(f"{store}_url")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.django.admin_child", url],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["seen to"]), ran.stderr
