"""The files of SQLite: nobody else may read them, and those of ``:memory:`` do not outlive their process."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
from contextlib import suppress

if sys.platform != "win32":  # there, folders of killed processes stay until somebody removes them
    import fcntl

_PREFIX = "samekey-memory-"
_HELD = "held"


def make_private(path: str) -> None:
    """A file that is not there yet is made for its owner alone; SQLite gives its journals the same rights."""
    with suppress(OSError):  # it is there, or SQLite says better what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def private_folder() -> tuple[str, int]:
    """A folder for one process, and what holds it. Those of processes that were killed are removed."""
    for left in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*")):
        _remove_if_left(left)
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    first = os.path.join(folder, "new")
    held = os.open(first, os.O_CREAT | os.O_RDWR, 0o600)
    if sys.platform != "win32":
        fcntl.flock(held, fcntl.LOCK_EX)
    os.rename(first, os.path.join(folder, _HELD))  # from here on others may look whether it is held
    return folder, held


def _remove_if_left(folder: str) -> None:
    if sys.platform == "win32":
        return
    with suppress(OSError):  # another user's, being made, or held: its process lives
        held = os.open(os.path.join(folder, _HELD), os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)
