"""The boundary of a handler: whether it has begun, runs, returned or raised.

Whoever calls the handler notes it here. The outcome of an operation is judged from this alone, once the
handler has ended. An edge that gave up waiting (a deadline around a thread, say) does not judge: it abandons
the run, and the caller of the handler finishes the operation when the handler really ends.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Any


class Place(StrEnum):
    """Where a run stands."""

    NOT_BEGUN = "not_begun"
    RUNNING = "running"
    RETURNED = "returned"
    RAISED = "raised"


class Boundary:
    """One run of one handler. Safe between threads."""

    __slots__ = ("_abandoned", "_lock", "arguments", "error", "place", "proof", "said", "sending", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = False
        self.place = Place.NOT_BEGUN
        self.value: Any = None
        """What the handler returned."""
        self.arguments: dict[str, Any] = {}
        """What it was called with, by name: a framework may let it set the status through one of them."""
        self.error: BaseException | None = None
        """What it raised."""
        self.said: int | None = None
        """The status that a bare ASGI or WSGI application gave by itself, without a framework."""
        self.sending = False
        """It is just sending, as a bare ASGI application does: what comes now is its own answer."""
        self.proof: BaseException | None = None
        """What was raised inside ``before_effect()``."""

    def enter(self, arguments: dict[str, Any] | None = None) -> None:
        """Right before the handler is called."""
        self.arguments = arguments or {}
        self.place = Place.RUNNING

    def returned(self, value: Any = None) -> bool:
        """True: nobody waits for the answer any more, so whoever called the handler finishes."""
        with self._lock:
            self.place, self.value = Place.RETURNED, value
            return self._abandoned

    def raised(self, error: BaseException) -> bool:
        """True as for ``returned``."""
        with self._lock:
            self.place, self.error = Place.RAISED, error
            return self._abandoned

    def abandon(self) -> bool:
        """The edge waits no longer. True: the handler still runs, and its caller will finish."""
        with self._lock:
            self._abandoned = self.place is Place.RUNNING
            return self._abandoned
