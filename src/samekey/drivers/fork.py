"""Forks: what a child must not share with its parent begins anew there, before the child has a second thread.

Connections, threads and locks do not cross a fork. Were that found out at the next use, two threads of the
child could find it out at once, and one be handed a connection of the parent's; or a lock that a thread of
the parent held would never be released.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What begins anew in a child."""

    def start_anew(self) -> None:
        """Forgets what is the parent's. Only one thread is there, and it must not wait."""


_here: WeakSet[Forked] = WeakSet()
_of_parent: list[object] = []


def anew_after_fork(one: Forked) -> None:
    """From now on it begins anew in every child."""
    _here.add(one)


def leave_to_parent(*things: object) -> None:
    """Connections of the parent's must not even be thrown away in the child: closing them would say goodbye
    on its socket, or drop its locks."""
    _of_parent.extend(things)


class Lock:
    """A lock that nobody holds in a child."""

    def __init__(self) -> None:
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _in_child() -> None:
    for one in list(_here):
        one.start_anew()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_in_child)
