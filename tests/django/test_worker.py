"""``manage.py samekey_worker``: it runs the project's own jobs, and ends when it is told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab import environment


@pytest.mark.timeout(150)
def test_the_worker_performs_what_a_view_has_put_off(each_url: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.django.worker_child", each_url],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["performed"]), ran.stderr
