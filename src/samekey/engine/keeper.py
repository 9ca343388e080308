"""The keeper: one thread per process that renews all live leases, and one that records what is late.

Threads of their own, so that blocking code in an async handler cannot starve them; started when they are
needed, so after any fork. Each lease is renewed only until its operation's longest run is over: a hung
handler is not kept alive for ever.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.program import Program
from ..core.record import Lease
from ..drivers.attendant import attending
from ..drivers.fork import anew_after_fork
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..errors import SamekeyError
from .late import LateOutcomes

logger = logging.getLogger("samekey")

BEATS_PER_LEASE = 3
"""Two renewals in a row may fail before a lease is lost."""
TRIES_PER_BEAT = 4
"""How often a renewal that failed is tried again before the next beat."""
SHORTEST_PAUSE = 0.05
AT_ONCE = 250
"""Leases in one statement: one that takes long, or fails, concerns no more of them."""

TRIED_FOR = 600.0
"""Seconds for which an outcome that could not be recorded is tried at least: nobody else knows it, and most
outages of a store are over by then. What waits is bounded by ``late.MOST``."""

Leases = Callable[[Sequence[Lease]], Program[set[str]]]


@dataclass(slots=True)
class _Watch:
    lease: Lease
    until: float
    due: float
    heard: float
    heard_wall: float
    """When the lease was last known to be ours, by two clocks: one stands still while its machine is
    suspended or paused, the other may be set."""

    @property
    def beat(self) -> float:
        return self.lease.duration_ms / 1000 / BEATS_PER_LEASE

    def try_again(self) -> None:
        self.due = time.monotonic() + max(SHORTEST_PAUSE, self.beat / TRIES_PER_BEAT)


class Keeper:
    """Renews leases from ``watch`` until ``forget``. Safe in threads and after a fork.

    ``renew`` gives the attempts that it has renewed; what it leaves out is lost, or locked by somebody for
    the moment. ``held`` tells which: it gives the attempts that are still there.
    """

    def __init__(
        self,
        driver: Driver,
        renew: Leases,
        held: Leases,
        heard: Callable[[bool, float], None] = lambda _there, _asked: None,
    ) -> None:
        self._driver = driver
        self._heard = heard
        """Told after each renewal whether the store answered, and when it was asked, in the keeper's own
        thread."""
        self._renew = renew
        self._held = held
        self._late = LateOutcomes(driver)
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        self._wake = threading.Condition()
        self._watched: dict[str, _Watch] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wakes_at = math.inf

    def watch(self, lease: Lease, max_run_ms: int) -> None:
        """Keeps the lease alive until it is forgotten or its longest run is over.

        ``StoreBusy`` if no thread can be started that would: then nothing may run under the lease.
        """
        now = time.monotonic()
        watch = _Watch(lease, now + max_run_ms / 1000, now, now, time.time())
        watch.due += watch.beat
        with self._wake:
            self._thread, new = attending(self._thread, self._run, "samekey-keeper")
            self._watched[lease.attempt] = watch
            self._stopping = False
            if not new and watch.due < self._wakes_at:
                # Only then: waking the thread for every operation would cost more than the operation.
                self._wake.notify()
        self._late.attend()

    def remaining(self, lease: Lease) -> float:
        """Seconds for which the lease is certainly still ours; 0 if it is lost or not known."""
        with self._wake:
            watch = self._watched.get(lease.attempt)
            held = 0.0 if watch is None else _held_for(lease) - gone_by(watch.heard, watch.heard_wall)
        return max(0.0, held)

    def forget(self, lease: Lease) -> None:
        with self._wake:
            self._watched.pop(lease.attempt, None)
            if self._is_over:
                self._wake.notify()

    def record_later(
        self,
        lease: Lease,
        factory: Callable[[], Program[Any]],
        otherwise: Callable[[], Program[Any]] | None = None,
    ) -> None:
        """Tries an outcome again for a while. The lease is not renewed for it: once it has ended, the outcome
        is unknown to others, and still the truth.

        ``otherwise`` is what is recorded if the store refuses that for good.
        """
        self._late.record(factory, max(TRIED_FOR, lease.duration_ms / 1000), otherwise)

    def give_back_later(self, factory: Callable[[], Program[bool]]) -> None:
        """Gives back a claim that may have landed though nobody heard of it; nothing runs under it."""
        self._late.give_back(factory)

    def stop(self) -> None:
        """Ends the threads. What still runs then, perhaps in another application that shares the engine,
        is renewed until it has ended, and the thread ends with the last of it."""
        with self._wake:
            thread, self._stopping = self._thread, True
            waited_for = thread is not None and self._is_over
            self._wake.notify()
        if thread is not None and waited_for:
            thread.join(timeout=10)
        self._late.stop()

    @property
    def _is_over(self) -> bool:
        return self._stopping and not self._watched

    def _run(self) -> None:
        me, outlived = threading.current_thread(), False
        while True:
            with self._wake:
                pause = self._pause()
                self._wakes_at = math.inf if pause is None else time.monotonic() + pause
                if not self._is_over:
                    self._wake.wait(pause)
                if self._thread is not me:
                    return
                if self._is_over:
                    self._thread = None
                    break
                due = self._due()
                outlived = self._stopping
            for start in range(0, len(due), AT_ONCE):
                self._renew_together(due[start : start + AT_ONCE])
        if outlived:
            self._driver.close()  # whoever stopped us has closed it, and we have opened it again

    def _pause(self) -> float | None:
        """Until the next beat; None while there is nothing to keep."""
        if not self._watched:
            return None
        due = min(watch.due for watch in self._watched.values())
        return max(SHORTEST_PAUSE, due - time.monotonic())

    def _due(self) -> list[_Watch]:
        """What has to be renewed now, most urgent first, and what would have to be soon."""
        now = time.monotonic()
        for attempt in [a for a, watch in self._watched.items() if watch.until <= now]:
            del self._watched[attempt]
            logger.error("Something has run longer than it may; its lease is no longer renewed")
        watches = sorted(self._watched.values(), key=lambda watch: watch.due)
        if not watches or watches[0].due > now:
            return []
        return [watch for watch in watches if watch.due <= now + watch.beat / 2]

    def _renew_together(self, watches: list[_Watch]) -> None:
        asked, asked_wall = time.monotonic(), time.time()
        answer = self._ask(self._renew, watches)
        renewed = answer or set()
        with self._wake:
            for watch in watches:
                if watch.lease.attempt in renewed:
                    watch.due = asked + watch.beat
                    watch.heard, watch.heard_wall = asked, asked_wall
                else:
                    watch.try_again()
        left = [watch for watch in watches if watch.lease.attempt not in renewed]
        held = self._ask(self._held, left) if left and answer is not None else None
        if held is None:
            return
        with self._wake:
            for watch in left:
                # One that is held is locked by somebody just now, and still ours.
                if watch.lease.attempt not in held and watch.lease.attempt in self._watched:
                    del self._watched[watch.lease.attempt]
                    logger.warning("A lease was lost: somebody else has taken the operation")

    def _ask(self, program: Leases, watches: list[_Watch]) -> set[str] | None:
        """None if the store did not answer."""
        asked = time.monotonic()
        try:
            answer = run(self._driver, lambda: program([watch.lease for watch in watches]))
        except Exception as error:
            said = error if isinstance(error, SamekeyError) else repr(error)
            logger.warning("samekey could not renew its leases and will try again: %s", said)
            self._heard(False, asked)
            return None
        self._heard(True, asked)
        return answer


def gone_by(since: float, since_wall: float) -> float:
    """Seconds since then, at most: by the clock that has gone further."""
    return max(time.monotonic() - since, time.time() - since_wall)


def _held_for(lease: Lease) -> float:
    """A little less than the lease: it began at the store before we heard of it."""
    return lease.duration_ms / 1000 * 0.95
