"""Who waits for what is being asked of a store.

The engine asks in tasks of its own, which a cancelled caller does not interrupt (``engine/errands.py``). What
is on its way then goes on to its end; what has not been sent yet is not sent for somebody who has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class NotSent(asyncio.CancelledError):
    """Whoever wanted this has gone, and it was not sent."""


class Caller:
    """One caller. It is told about once: what is asked after that cleans up, and is sent."""

    __slots__ = ("_told", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._told = False

    def is_unwanted(self) -> bool:
        """Whether what is about to be sent is for nobody. True at most once."""
        if not self.gone or self._told:
            return False
        self._told = True
        return True


caller: ContextVar[Caller | None] = ContextVar("samekey_caller", default=None)


def leave_if_unwanted() -> None:
    """Raises ``NotSent`` if nobody waits any more for what is about to be sent."""
    who = caller.get()
    if who is not None and who.gone and who.is_unwanted():
        raise NotSent


_for_the_handler: ContextVar[bool] = ContextVar("samekey_for_the_handler", default=False)


@contextmanager
def for_the_handler() -> Iterator[None]:
    """Around statements of ours that a handler causes, on the connection that it is lent: they are refused as
    its own are once it has ended, also those of a thread or a task that it left behind."""
    token = _for_the_handler.set(True)
    try:
        yield
    finally:
        _for_the_handler.reset(token)


def is_handlers() -> bool:
    """Whether what is sent now is sent for a handler."""
    return _for_the_handler.get()
