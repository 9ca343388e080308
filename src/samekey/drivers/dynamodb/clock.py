"""The clock of a store that has none: this node's, held to the time that DynamoDB's answers are dated with.

DynamoDB cannot use its own clock in a write, so leases and expiry are counted by the time that a client
sends. Nodes disagree about the time. But every answer carries a ``Date``, and that is a bound: when the
request was sent, DynamoDB's clock did not yet show a second more than that; when the answer had come, it
showed at least that. Our clock is moved into these bounds, and no further. One that is right is never
moved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial

logger = logging.getLogger("samekey")

TOLERATED = 5.0
"""Seconds that this node's own clock may be wrong before somebody is told. It is not used, but requests are
signed with it, and AWS refuses those that are minutes off."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)
ticks = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""Seconds that pass evenly, also while the machine sleeps where the system can tell."""


def _wall() -> float:
    return time.time()


class Clock:
    """Milliseconds since 1970, as DynamoDB sees them, to within a second and the time of one request."""

    def __init__(self, own: Callable[[], float] | None = None, ticks: Callable[[], float] = ticks) -> None:
        self._own = own or _wall
        self.ticks = ticks
        self._offset: float | None = None
        """What ticks must be given to show the time."""
        self._told = False

    @property
    def proven(self) -> bool:
        """Whether any answer has been seen. Before that nothing may be decided by this clock."""
        return self._offset is not None

    def now(self) -> int:
        seconds = self._own() if self._offset is None else self.ticks() + self._offset
        return int(seconds * 1000)

    def prove(self, date: str | None, sent: float, received: float) -> None:
        """Takes the date of an answer into account; ``sent`` and ``received`` are ticks."""
        own = self._own() - self.ticks()
        offset = own if self._offset is None else self._offset
        try:
            shown = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            self._offset = offset
            self._tell("This DynamoDB endpoint does not date its answers, so this node's own clock counts.")
            return
        earliest, latest = shown - received, shown + 1 - sent
        self._offset = min(max(offset, earliest), latest)
        wrong = max(earliest - own, own - latest)
        if wrong > TOLERATED:
            self._tell(
                f"This node's clock is wrong by {wrong:.0f} s. samekey goes by DynamoDB's, but AWS refuses "
                "requests that are signed minutes early or late. Have the clock synchronised."
            )

    def _tell(self, sentence: str) -> None:
        if not self._told:
            self._told = True
            logger.warning("%s", sentence)
