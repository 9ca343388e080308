"""The store's figures for gauges: read seldom, never waited for long, never old."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from ..drivers.fork import anew_after_fork
from ..drivers.run import run
from ..engine.engine import Engine
from ..stores.protocols import Overview

logger = logging.getLogger("samekey")

FRESH: Final = 5.0
"""Seconds for which the store's figures are used again: several scrapers cost it no more than one."""
PATIENCE: Final = 1.0
"""Seconds that a scrape waits for the figures; Prometheus gives it ten by default."""
STALE: Final = 30.0
"""Seconds after which figures are no longer shown while a newer read hangs."""


class Readings:
    """The store's figures: read seldom, by a thread that nobody waits for long; absent where that failed.

    A scrape must not hang on a slow store, nor load a busy one, nor show old figures for today's.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = weakref.ref(engine)
        self._clock = clock
        self._failing = False
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        """A read that is under way belongs to the parent."""
        self._lock = threading.Lock()
        self._began: float | None = None
        self._done = threading.Event()
        self._latest: tuple[float, Overview] | None = None

    def read(self) -> Overview | None:
        """The figures; None if they cannot be had right now. Never raises."""
        engine = self._engine()
        if engine is None or engine.breaker.is_open:
            return None  # a store that is down is left alone
        with self._lock:
            now = self._clock()
            if self._began is None or (self._done.is_set() and now - self._began >= FRESH):
                if not self._ask():
                    return None
                self._began = now
            done, began = self._done, self._began
        # Several gauges ask in one scrape; together they wait no longer than one.
        done.wait(max(0.0, began + PATIENCE - self._clock()))
        with self._lock:
            if self._latest is None or self._clock() - self._latest[0] > STALE:
                return None
            return self._latest[1]

    def _ask(self) -> bool:
        """Starts a thread that reads; the driver's own time-out ends it."""
        done = threading.Event()
        try:
            threading.Thread(target=self._work, args=(done,), name="samekey-figures", daemon=True).start()
        except RuntimeError:
            return False  # no more threads, or the interpreter is going down
        self._done = done
        return True

    def _work(self, done: threading.Event) -> None:
        found = None
        try:
            engine = self._engine()
            if engine is not None:
                found = run(engine.drivers.sync, engine.store.finding.overview)
            self._failing = False
        except Exception as error:
            if not self._failing:  # once for each outage
                self._failing = True
                logger.warning("The store's figures cannot be read, so their gauges are absent: %s", error)
        finally:
            with self._lock:
                self._latest = None if found is None else (self._clock(), found)
            done.set()
