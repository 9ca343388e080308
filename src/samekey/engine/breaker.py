"""The circuit breaker: a store that is down is left alone for a while, and answered for at once.

Closed, it counts failures in a row. At ``THRESHOLD`` it opens: every use fails without touching the store.
After a pause that grows with each failure, one use is let through; if it succeeds, the breaker closes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from ..drivers.fork import Lock
from ..drivers.places import NoPlace
from ..errors import SamekeyError, StoreBusy, StoreUnavailable, StoreUnreachable

THRESHOLD = 5
"""Failures in a row: one is an accident, five are an outage."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Seconds. A store that is back is used again within this time, without anybody's help."""


class Breaker:
    """Use it around each use of the store: ``with breaker: …``. Safe in threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._failures = 0
        self._retry_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self._retry_at is not None

    def __enter__(self) -> None:
        if not self.is_open:
            return
        with self._lock:
            now, retry_at = self._clock(), self._retry_at
            if retry_at is None:  # closed while we waited for the lock
                return
            if now < retry_at:
                raise StoreUnreachable(
                    f"The store failed {self._failures} times in a row and is left alone for "
                    f"{retry_at - now:.1f} s more. Retry with the same key."
                )
            # This use is the probe; the others keep failing until it is back.
            self._retry_at = now + LONGEST_PAUSE

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreBusy):
            with self._lock:
                self._failures += 1
                if self._failures >= THRESHOLD:
                    pause = min(FIRST_PAUSE * 2 ** (self._failures - THRESHOLD), LONGEST_PAUSE)
                    self._retry_at = self._clock() + pause
        elif self._failures and (error is None or _said_by_store(error)):
            # It answered, if only to say no: it is there.
            with self._lock:
                self._failures = 0
                self._retry_at = None


def _said_by_store(error: BaseException) -> bool:
    """Not what never reached it, for want of a place, nor what a signal or the application raised."""
    return isinstance(error, SamekeyError) and not isinstance(error, NoPlace)
