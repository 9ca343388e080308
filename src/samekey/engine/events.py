"""What happens, told to whoever watches: metrics, traces, the user's own hooks.

Emitting never fails and never waits: an observer that raises is logged once and then left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

logger = logging.getLogger("samekey")

NAMES: Final = frozenset(
    {
        "reserve.created",  # a new operation was claimed
        "reserve.replay",  # a retry got the stored answer
        "reserve.in_progress",  # a duplicate met the first request
        "reserve.key_misuse",  # another request under a used key: a security signal
        "reserve.failed_retry",  # a retry runs a failed operation again
        "reserve.reused",  # a key was used again after its retention
        "reserve.unknown",  # a retry met an unknown outcome
        "store.error",  # the store could not be used; nothing was run
        "operation.finished",  # an operation ended; value: its duration in seconds
        "zombie_key",  # a lease ran out and the sweeper moved its record
        "ttl_pruned",  # records past retention were reaped; value: how many
        "reconcile.scheduled",  # an outcome became unknown
        "reconcile.resolved",  # an unknown outcome was found out
        "reconcile.failed",  # a lookup failed or could not tell
        "dead_letter",  # the machine gave up on an operation or a job
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
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> None:
        """From now on the observer hears every event."""
        self._observers.append(observer)

    def emit(self, name: str, *, tenant: str | None = None, value: float = 1, **facts: str) -> None:
        if not self._observers:
            return
        assert name in NAMES, name
        event = Event(name, tenant, value, facts)
        for observer in list(self._observers):
            try:
                observer(event)
            except Exception:
                self._observers.remove(observer)
                logger.exception("An observer of samekey's events failed and is left out from now on")
