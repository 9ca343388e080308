"""No sentence about a URL repeats its password, wherever it is cut; files of SQLite are their owner's."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from lab import environment
from samekey import ConfigurationError, Idempotency

SECRET = "s3cr3tPW"
WRONG = [
    *(f"postgresql://u:{SECRET}@[::1/db", f"postgresql://u:{SECRET}%zz@h/db", f"postgresql:u:{SECRET}@h"),
    *(f"postgresql://u:a/{SECRET}@h:x/db", f"postgresql://u:{SECRET}@h/db?nonsense=1"),
    *(f"mysql://u:{SECRET}/x@h/db", f"mysql://u:a?{SECRET}@h:1/db", f"mysql://u:{SECRET}@h:bad/db"),
    *(f"mysql://u:{SECRET}@[h/db", f"mysql://u:{SECRET}@h/db?ssl_mode={SECRET}"),
    *(f"redis://u:a?{SECRET}@h/0", f"redis://u:{SECRET}@[h/0", f"redis://u:a#{SECRET}@h/0"),
    *(f"redis://:{SECRET}@h/x", f"foo://u:{SECRET}@h", f"u:{SECRET}@h/db", f"sqlite://u:{SECRET}@h/db"),
]


@pytest.mark.parametrize("url", WRONG)
def test_a_sentence_about_a_url_does_not_hold_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Idempotency(url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("url", [f"redis://u:a?{SECRET}@h/0", f"redis://u:{SECRET}@h:bad/0"])
def test_neither_does_one_about_the_cache(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Idempotency("sqlite:///:memory:", cache=url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_new_database_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    before = os.umask(0)
    try:
        idempotency = Idempotency(f"sqlite:///{path}")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(found.stat().st_mode) for found in tmp_path.iterdir()}
    assert path.exists() and modes == {0o600}
    idempotency.close()


def test_one_that_was_there_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    path.touch()
    path.chmod(0o640)
    Idempotency(f"sqlite:///{path}").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


CHILD = """
import sys
from samekey import Idempotency
idempotency = Idempotency("sqlite:///:memory:")
print(idempotency.engine.drivers.sync.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_kept_in_memory_is_removed_by_the_next() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdout is not None and child.stdin is not None
    folder = Path(child.stdout.readline().strip()).parent
    assert folder.parent == Path(tempfile.gettempdir()) and folder.exists()
    Idempotency("sqlite:///:memory:").close()
    assert folder.exists(), "its process lives"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    mine = Idempotency("sqlite:///:memory:")
    assert not folder.exists()
    mine.close()
