"""The page's first example, run as its reader would: a test file of an application of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lab
from tests.chosen import whole
from tests.test_docs import blocks

PROVIDER = """
class Provider:
    def __init__(self):
        self.charges = 0
        self.when_charged = lambda: None

    def charge(self):
        self.charges += 1
        self.when_charged()
        return self.charges


provider = Provider()


@pytest.fixture(autouse=True)
def anew():
    provider.__init__()
"""


@whole
def test_the_first_example_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["samekey.testing.plugin"]\n')
    example = blocks("docs/testing.md", "python")[0].replace("def make_app", f"{PROVIDER}\n\ndef make_app", 1)
    (tmp_path / "test_shop.py").write_text(example)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "3 passed" in run.stdout, run.stdout
