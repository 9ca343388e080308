"""``manage.py samekey_worker``: it runs the project's own jobs, and ends when it is told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab import environment


def child(module: str, url: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, url],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.timeout(150)
def test_the_worker_performs_what_a_view_has_put_off(each_url: str) -> None:
    ran = child("tests.django.worker_child", each_url)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["performed"]), ran.stderr


@pytest.mark.timeout(350)
def test_what_the_worker_calls_has_connections_of_its_own_and_gives_them_back(postgres_url: str) -> None:
    """No job writes in another one's transaction, a restart of the database harms none, and thirty sync jobs
    leave no connection behind."""
    ran = child("tests.django.worker_calls_child", postgres_url, timeout=300)
    assert "held" in ran.stdout.splitlines(), ran.stderr
