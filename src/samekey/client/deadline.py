"""The deadline of one attempt, kept at the socket.

The sync libraries bound each read, and not all of them together: a server that sends a byte now and then is
listened to for ever. So their sockets are asked here, before each act, how much time there is.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

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

    def left(self, timeout: float | None, share: int = 1) -> float:
        """Seconds for the next act, no more than ``timeout``: a part of what there is, if so many acts have
        to share it. ``TimeoutError`` if there are none."""
        seconds = (self.until - time.monotonic()) / share
        if seconds <= 0:
            raise TimeoutError(LATE)
        return seconds if timeout is None else min(seconds, timeout)


T = TypeVar("T")


def to_one_of(host: str, port: int, connect: Callable[[str, int], T]) -> T:
    """Connects to the first address of a host that takes it. The libraries give each of them the whole time;
    so ``connect`` is told an address, and how many are left to share what there is."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return connect(host, 1)  # which fails in the library's own words
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    if len(addresses) < 2:
        return connect(host, 1)
    for position, address in enumerate(addresses[:-1]):
        try:
            return connect(address, len(addresses) - position)
        except Exception:  # noqa: S112  (the last one's is told)
            continue
    return connect(addresses[-1], 1)


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
