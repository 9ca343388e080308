"""One thread that calls functions when their time has come. For what no thread waits for.

A handler that hangs never comes back to look at the clock, so somebody else has to.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from .attendant import attending
from .fork import anew_after_fork

logger = logging.getLogger("samekey")


class Appointment:
    """Something to be called, unless it is called off before."""

    __slots__ = ("_alarm", "call")

    def __init__(self, alarm: Alarm, call: Callable[[], None]) -> None:
        self._alarm = alarm
        self.call: Callable[[], None] | None = call

    def call_off(self) -> None:
        if self.call is not None:
            self.call = None
            self._alarm.called_off += 1


class Alarm:
    """The thread starts with the first appointment, also after a fork."""

    def __init__(self) -> None:
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Appointment]] = []
        self.called_off = 0
        """About how many of them are called off, and only take up room."""
        self._count = itertools.count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, call: Callable[[], None]) -> Appointment:
        """``StoreBusy`` if no thread can be started that would call it."""
        appointment = Appointment(self, call)
        with self._changed:
            if self.called_off > 100 and self.called_off > len(self._due) // 2:
                self._due = [entry for entry in self._due if entry[2].call is not None]
                heapq.heapify(self._due)
                self.called_off = 0
            self._thread, new = attending(self._thread, self._watch, "samekey alarm")
            entry = (time.monotonic() + seconds, next(self._count), appointment)
            heapq.heappush(self._due, entry)
            if not new and self._due[0] is entry:
                self._changed.notify()
        return appointment

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                call = heapq.heappop(self._due)[2].call
            if call is not None:
                try:
                    call()
                except BaseException:  # the thread is everybody's
                    logger.exception("What was to be called when its time was over has failed")


ALARM = Alarm()
