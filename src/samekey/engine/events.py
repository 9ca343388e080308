"""What happens, told to whoever watches: metrics, traces, the user's own hooks.

Emitting never fails and never waits: an observer that raises is logged once and then left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ..drivers.fork import Lock

logger = logging.getLogger("samekey")

NAMES: Final = frozenset(
    {
        "request",  # a guarded handler was reached, with a key or without
        "reserve.created",  # a new operation was claimed
        "reserve.replay",  # a retry got the stored answer
        "reserve.in_progress",  # a duplicate met the first request
        "reserve.key_misuse",  # another request under a used key: a security signal
        "reserve.failed_retry",  # a retry runs a failed operation again
        "reserve.reused",  # a key was used again after its retention
        "reserve.unknown",  # a retry met an unknown outcome
        "store.error",  # the store could not be used; nothing was run
        "operation.finished",  # an operation ended; value: its duration in seconds
        "zombie_key",  # a lease ran out, and the sweeper or a retry moved its record
        "ttl_pruned",  # records past retention were reaped; value: how many
        "reconcile.scheduled",  # an outcome became unknown
        "reconcile.resolved",  # an unknown outcome was found out
        "reconcile.failed",  # a lookup failed or could not tell
        "dead_letter",  # the machine gave up on an operation or a job
        "worker.trouble",  # a background service failed and will look again
        "worker.hanging",  # a function of the user's hangs in a worker and cannot be stopped
        "outgoing.keyless",  # a call that changes something left without a key, or would have
        "ledger.difference",  # the ledgers differ; value: in how many entries
    }
)
"""The closed list of events."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``facts`` holds low-cardinality details, never a key."""

    name: str
    tenant: str | None = None
    value: float = 1
    facts: dict[str, str] = field(default_factory=dict)


Observer = Callable[[Event], None]


class Events:
    """Observers, in the order in which they were added."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()
        self._changing = Lock()

    @property
    def are_watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self._observers)

    def subscribe(self, observer: Observer) -> None:
        """From now on the observer hears every event."""
        with self._changing:
            self._observers = (*self._observers, observer)

    def emit(self, name: str, *, tenant: str | None = None, value: float = 1, **facts: str) -> None:
        if not self._observers:
            return
        assert name in NAMES, name
        event = Event(name, tenant, value, facts)
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                if self._leave_out(observer):
                    logger.exception("An observer of samekey's events failed and is left out from now on")

    def _leave_out(self, failed: Observer) -> bool:
        """False if it is out already: it may fail in several threads at once."""
        with self._changing:
            left = tuple(observer for observer in self._observers if observer is not failed)
            was_in, self._observers = len(left) < len(self._observers), left
            return was_in
