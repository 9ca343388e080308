"""The keeper: one thread per process that renews all live leases and records what could not be recorded.

A thread of its own, so that blocking code in an async handler cannot starve it; started at the first lease,
so after any fork. Each lease is renewed only until its operation's longest run is over: a hung handler is
not kept alive for ever.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.program import Program
from ..core.record import Lease
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..errors import SamekeyError

logger = logging.getLogger("samekey")

BEATS_PER_LEASE = 3
"""Two renewals in a row may fail before a lease is lost."""
SHORTEST_PAUSE = 0.05


@dataclass(slots=True)
class _Watch:
    lease: Lease
    until: float
    due: float
    held_until: float
    """When the lease ends if nothing more is heard, by this process's clock and on the safe side."""


@dataclass(slots=True)
class _Late:
    """An outcome that could not be recorded while the store was away."""

    factory: Callable[[], Program[Any]]
    until: float


class Keeper:
    """Renews leases from ``watch`` until ``forget``. Safe in threads and after a fork."""

    def __init__(self, driver: Driver, renew: Callable[[Sequence[Lease]], Program[set[str]]]) -> None:
        self._driver = driver
        self._renew = renew
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._wake = threading.Condition()
        self._watched: dict[str, _Watch] = {}
        self._late: list[_Late] = []
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wakes_at = math.inf

    def watch(self, lease: Lease, max_run_ms: int) -> None:
        """Keeps the lease alive until it is forgotten or its longest run is over."""
        now = time.monotonic()
        beat = lease.duration_ms / 1000 / BEATS_PER_LEASE
        watch = _Watch(lease, now + max_run_ms / 1000, now + beat, now + _held_for(lease))
        self._add(lambda: self._watched.update({lease.attempt: watch}), watch.due)

    def remaining(self, lease: Lease) -> float:
        """Seconds for which the lease is certainly still ours; 0 if it is lost or not known."""
        with self._wake:
            watch = self._watched.get(lease.attempt)
            return 0.0 if watch is None else max(0.0, watch.held_until - time.monotonic())

    def forget(self, lease: Lease) -> None:
        with self._wake:
            self._watched.pop(lease.attempt, None)

    def record_later(self, lease: Lease, factory: Callable[[], Program[Any]]) -> None:
        """Tries an outcome again until the lease would have ended; the lease is not renewed for it."""
        until = time.monotonic() + lease.duration_ms / 1000
        self._add(lambda: self._late.append(_Late(factory, until)), 0.0)

    def stop(self) -> None:
        """Ends the thread. Leases that are still live then run out by themselves."""
        with self._wake:
            thread, self._thread = self._thread, None
            self._stopping = True
            self._wake.notify()
        if thread is not None and self._pid == os.getpid():
            thread.join(timeout=10)

    def _add(self, change: Callable[[], None], due: float) -> None:
        if self._pid != os.getpid():
            self._start_anew()
        with self._wake:
            change()
            self._stopping = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="samekey-keeper", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                # Only then: waking the thread for every operation would cost more than the operation.
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                pause = self._pause()
                self._wakes_at = math.inf if pause is None else time.monotonic() + pause
                if not self._stopping:
                    self._wake.wait(pause)
                if self._told_to_stop():
                    return
            try:
                self._renew_due()
                self._record_late()
            except SamekeyError as error:
                logger.warning("samekey could not renew its leases and will try again: %s", error)
                time.sleep(SHORTEST_PAUSE)
            except Exception:
                logger.exception("samekey could not renew its leases and will try again")
                time.sleep(1)

    def _told_to_stop(self) -> bool:
        return self._stopping

    def _pause(self) -> float | None:
        """Until the next beat; None while there is nothing to keep."""
        dues = [watch.due for watch in self._watched.values()]
        if self._late:
            dues.append(time.monotonic() + 0.5)
        return max(SHORTEST_PAUSE, min(dues) - time.monotonic()) if dues else None

    def _renew_due(self) -> None:
        now = time.monotonic()
        with self._wake:
            for attempt in [a for a, watch in self._watched.items() if watch.until <= now]:
                del self._watched[attempt]
                logger.error("Something has run longer than it may; its lease is no longer renewed")
            if not any(watch.due <= now for watch in self._watched.values()):
                return
            # All at once: one statement, however many there are.
            watches = list(self._watched.values())
        asked = time.monotonic()
        held = run(self._driver, lambda: self._renew([watch.lease for watch in watches]))
        now = time.monotonic()
        with self._wake:
            for watch in watches:
                watch.due = now + watch.lease.duration_ms / 1000 / BEATS_PER_LEASE
                watch.held_until = asked + _held_for(watch.lease)
                attempt = watch.lease.attempt
                if attempt not in held and attempt in self._watched:
                    del self._watched[attempt]
                    logger.warning("A lease was lost: somebody else has taken the operation")

    def _record_late(self) -> None:
        with self._wake:
            late, self._late = self._late, []
        now = time.monotonic()
        for index, item in enumerate(late):
            if item.until <= now:
                logger.error("An outcome could not be recorded before its lease ended")
                continue
            try:
                run(self._driver, item.factory)
            except SamekeyError:
                with self._wake:
                    self._late.extend(late[index:])
                raise


def _held_for(lease: Lease) -> float:
    """A little less than the lease: it began at the store before we heard of it."""
    return lease.duration_ms / 1000 * 0.95
