"""A limit on status look-ups per caller, so that ids cannot be guessed by the million.

It is kept in memory, per process: it guards against guessing, not against load.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..drivers.fork import Lock

MAX_CALLERS = 10_000
"""Callers remembered at a time; beyond that the window begins anew for all."""


class LookupLimit:
    """At most ``per_minute`` look-ups of each caller in a running minute."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = Lock()
        self._minute = -1
        self._used: dict[str, int] = {}

    def exceeded(self, caller: str) -> bool:
        """Counts one look-up; True if it is one too many."""
        if self._per_minute is None:
            return False
        minute = int(self._clock() // 60)
        with self._lock:
            if minute != self._minute or len(self._used) >= MAX_CALLERS:
                self._minute, self._used = minute, {}
            used = self._used.get(caller, 0) + 1
            self._used[caller] = used
        return used > self._per_minute
