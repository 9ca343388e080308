"""Forks: nothing of SQLite may be open when a process forks.

SQLite remembers which files this process has open, and which locks it has on them. A fork copies what it
remembers and not the locks: a child would believe that it has them and take none. Once the parent has gone,
the next process that closes the file deletes the WAL under the child, and what the child records from then on
is seen by nobody else. And a write lock that a thread of the parent had would never be free in the child.

So idle connections are closed before a fork, and none is opened until it is over. A file that is open all
the same, because a transaction uses it or by a connection of the application's own, is refused in the child.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet

from ...errors import StoreUnreachable

LONGEST: Final = 1.0
"""Seconds for which a fork waits for single statements: they take milliseconds, or wait for a lock."""
_MOMENT: Final = 0.001
_MOST_FILES: Final = 65_536

File = tuple[int, int]
"""Device and inode."""


class Closes(Protocol):
    """What has connections to SQLite."""

    def close_idle(self) -> bool:
        """Closes what nobody uses. Whether a statement still runs that is over in a moment."""


_all: WeakSet[Closes] = WeakSet()


class Opening:
    """Held by whoever opens a connection, and while the process is forked: none is opened in its middle."""

    lock = threading.RLock()


_kept: list[Callable[[], None]] = []
"""What ends our hold of it after a fork."""
inherited: dict[File, list[int]] = {}
"""The files that were open at the fork of which this process is the child."""


def closed_before_fork(one: Closes) -> None:
    """From now on what it has idle is closed before every fork."""
    _all.add(one)


def refuse_if_inherited(path: str) -> None:
    """``StoreUnreachable`` where SQLite's memory of this file is the parent's."""
    try:
        found = os.stat(path)
    except OSError:
        return
    file = (found.st_dev, found.st_ino)
    if any(_file(number) == file for number in inherited.get(file, ())):
        raise StoreUnreachable(
            f"This process was forked while {path} was open in its parent: SQLite would lock nothing here, "
            "and what is recorded could be lost. Fork while no operation runs and no connection of your own "
            "to this file is open, or start the process anew (multiprocessing's 'spawn')."
        )


def _file(number: int) -> File | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _numbers() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except (OSError, ValueError):
        return list(range(min(os.sysconf("SC_OPEN_MAX"), _MOST_FILES)))


def _before() -> None:
    if not _all:
        return
    if Opening.lock.acquire(timeout=LONGEST):
        _kept.append(Opening.lock.release)
    until = time.monotonic() + LONGEST
    while sum(one.close_idle() for one in list(_all)) and time.monotonic() < until:
        time.sleep(_MOMENT)


def _in_parent() -> None:
    while _kept:
        _kept.pop()()


def _in_child() -> None:
    Opening.lock = threading.RLock()
    _kept.clear()
    inherited.clear()
    for number in _numbers():
        file = _file(number)
        if file is not None:
            inherited.setdefault(file, []).append(number)


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
