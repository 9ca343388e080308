"""The deadline of one attempt, kept at the socket.

The sync libraries bound each read, and not all of them together: a server that sends a byte now and then is
listened to for ever. So their sockets are asked here, before each act, how much time there is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

LATE: Final = "The answer did not end within the deadline."


@dataclass(slots=True)
class Attempt:
    """One attempt: until when it may take, and what is known of it."""

    until: float
    """By the monotonic clock."""
    began: bool = False
    """Some of the request may have left this machine."""
    watched: bool = False
    """It is made on a connection that notes when it begins: else nothing was noted, and proves nothing."""

    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def left(self, timeout: float | None) -> float:
        """Seconds for the next act, no more than ``timeout``. ``TimeoutError`` if there are none."""
        seconds = self.until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError(LATE)
        return seconds if timeout is None else min(seconds, timeout)


_current: ContextVar[Attempt | None] = ContextVar("samekey_client_attempt", default=None)


@contextmanager
def attempting(seconds: float) -> Iterator[Attempt]:
    """What this thread sends inside is one attempt, which may take so long."""
    attempt = Attempt(time.monotonic() + seconds)
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)


def current() -> Attempt | None:
    """The attempt that this thread is making, if it is one of ours."""
    return _current.get()
