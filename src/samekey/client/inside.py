"""A lock between the threads of one process, which nobody holds while the process is forked.

A child has a copy of each lock, file and connection as it was at that moment. If another thread of the parent
was at work, nobody in the child ever ends that: the lock is never free again, and SQLite believes for ever
that a transaction is open. So a fork waits until nobody is inside.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final
from weakref import WeakSet

LONGEST: Final = 10.0
"""Seconds for which a fork waits: whoever is inside may wait for a disk or a database that is gone."""


class Inside:
    """A lock that whoever holds it may take again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: Any) -> None:
        self._lock.release()

    def taken(self) -> bool:
        return self._lock.acquire(timeout=LONGEST)

    def anew(self) -> None:
        self._lock = threading.RLock()


_all: WeakSet[Inside] = WeakSet()
_waited_for: list[Inside] = []


def _before() -> None:
    _waited_for.extend(one for one in list(_all) if one.taken())


def _in_parent() -> None:
    while _waited_for:
        _waited_for.pop().__exit__()


def _in_child() -> None:
    _waited_for.clear()
    for one in list(_all):
        one.anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
