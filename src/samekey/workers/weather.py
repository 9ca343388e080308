"""The weather: when the store answered and when it did not, as a worker has seen it.

While a store is away nobody can renew a lease, so a lease that ran out then says nothing about its holder. It
says something once there has been good weather for a whole lease since, in sum: whoever lives has renewed by
then, however often the store was away in between. Only sums count: short outages that come again and again
put a dead worker's jobs off by as long as they last, and no longer.
"""

from __future__ import annotations

import threading

LEASES_BEFORE = 9
"""How long an outage before its start a process reckons with, in leases: a longer one is rare, and what
nobody has renewed for so long must be taken in the end, also by processes that live for less than a lease."""


SLOW, AT_LEAST = 1 / 24, 0.5
"""An answer that takes longer than this part of a lease, and than so many seconds, counts as an outage."""
GRANTED = 1 / 6
"""The part of a lease that is waited for after its end in the best of weathers: a holder whose renewal failed
tries again after half of that, and a stall that ends with the lease is seen by nobody else."""


class Weather:
    """Of one store. Times are seconds of a clock that never goes back. Safe in threads.

    ``began``: when a process began that has not seen what was before: as far as it knows, an outage.
    """

    def __init__(self, lease: float, began: float | None = None) -> None:
        self._lease = lease
        self._lock = threading.RLock()
        self._bad: list[tuple[float, float]] = (
            [] if began is None else [(began - LEASES_BEFORE * lease, began)]
        )
        """Outages, oldest first, as far back as they matter."""
        self._since: float | None = None
        """When the outage began that is not over."""
        self._good: float | None = None
        """When the store answered last."""

    def good(self, now: float, asked: float | None = None) -> None:
        """The store has answered. One that took long to has been away from before it was ``asked``: a stall
        is no error, and nobody could renew anything in it either."""
        with self._lock:
            if asked is not None and now - asked > max(self._lease * SLOW, AT_LEAST):
                self.bad(asked)
            if self._since is not None:
                self._bad.append((self._since, now))
                self._since = None
                self.patience(now)  # which forgets what is too long ago
            self._good = now

    def bad(self, now: float) -> None:
        """It has not. It has been away since some moment between its last answer and now, as likely
        before the middle as after it; a guess that always errs to one side would add up."""
        with self._lock:
            if self._since is None:
                earliest = now - self._lease / 3  # those who hold leases ask more often than that
                answered = earliest if self._good is None else max(earliest, self._good)
                self._since = (answered + now) / 2

    def patience(self, now: float) -> float:
        """How long ago a lease must have run out for its holder to be given up: zero in lasting good weather,
        else as far back as makes a lease of good weather in sum."""
        with self._lock:
            outages = [*self._bad, *([] if self._since is None else [(self._since, now)])]
            missing, until = self._lease, now
            for place in range(len(outages) - 1, -1, -1):
                began, ended = outages[place]
                calm = until - ended
                if calm >= missing:
                    del self._bad[: place + 1]
                    return 0.0 if place == len(outages) - 1 else now - until + missing
                missing -= calm
                until = began
            return now - until + missing if outages else 0.0
