"""Kinds of jobs that could not be begun in this process: no thread could be started for them.

They are given back untouched, and left to other workers for a growing pause; meanwhile this one says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ..core.backoff import Backoff

PAUSES: Final = Backoff(first=timedelta(seconds=2), longest=timedelta(seconds=60))
"""Before one job of such a kind is tried again here: threads may be free in a moment, or never."""
ENDURED: Final = 120.0
"""Seconds after which a process of our own ends instead: only a new one gets rid of threads that hang."""


@dataclass(slots=True)
class _Kind:
    since: float
    tries: int
    until: float


class Unable:
    """Which kinds are left to others, and until when, by this process's clock."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._why = ""

    def failed(self, kind: str, why: str) -> None:
        """One of them could not be begun."""
        now, self._why = time.monotonic(), why
        found = self._kinds.setdefault(kind, _Kind(now, 0, now))
        if now >= found.until:  # those that were taken together count once
            found.tries += 1
            found.until = now + PAUSES.pause_ms(found.tries, 1) / 1000

    def began(self, kind: str) -> None:
        self._kinds.pop(kind, None)

    def tries(self, kind: str) -> bool:
        """Whether one of them, and no more, is to be tried next."""
        return kind in self._kinds

    def rests(self, kind: str) -> float:
        """Seconds for which none of them is taken."""
        found = self._kinds.get(kind)
        return 0.0 if found is None else max(0.0, found.until - time.monotonic())

    @property
    def sentence(self) -> str:
        """What is wrong; empty if nothing is, or it was not tried for long because there is nothing to do."""
        now, forgotten = time.monotonic(), PAUSES.longest.total_seconds()
        kinds = sorted(kind for kind, found in self._kinds.items() if now < found.until + forgotten)
        if not kinds:
            return ""
        return f"Jobs cannot be begun here and are left to other workers: {', '.join(kinds)}. {self._why}"

    @property
    def lasts(self) -> bool:
        """Whether it will not get better by itself."""
        now = time.monotonic()
        return bool(self.sentence) and any(now - found.since > ENDURED for found in self._kinds.values())
