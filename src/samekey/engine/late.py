"""Late outcomes: what could not be recorded while the store was away is tried again, one after the other.

A thread of its own, beside the one that renews leases, so that neither waits for the other. Each outcome is
tried by itself and has an error of its own: one that the store never takes is dropped, with an error in the
log, and keeps no other from being recorded.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..core.program import Program
from ..drivers.attendant import attending
from ..drivers.fork import anew_after_fork
from ..drivers.protocol import Driver
from ..drivers.run import run
from ..errors import CommitUncertain, StoreBusy, StoreUnavailable, TransactionConflict
from ..stores.sql.overruling import Moved

logger = logging.getLogger("samekey")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between tries. A connection that was cut is back at once; a server takes seconds to restart."""
MOST = 5_000
"""Outcomes that wait at a time. More operations than that do not run at once in one process; and what is not
taken here is found out once its lease has run out, like the outcome of a process that died."""
SETTLE = 60.0
"""Seconds for which a claim that cannot be found is looked for. That it is not there proves little: on
PostgreSQL, one whose connection was cut still waits for a lock on the table that only writers mind (an index,
a foreign key), and lands once that is over, if it is over soon (``queries.WAITS_MS``). While commits wait for
a synchronous standby the store cannot tell, and says so; the time counts anew from then on."""
LAST_TRIES = 5.0
"""Seconds for what still waits when the process stops."""

TRANSIENT = (StoreUnavailable, TransactionConflict, CommitUncertain, Moved)


@dataclass(slots=True)
class _Item:
    factory: Callable[[], Program[Any]]
    until: float
    gives_back: bool
    """A claim to give back: done once it was there. False from the store: it has not landed, perhaps yet."""
    due: float = 0.0
    pause: float = FIRST_PAUSE
    looked_for: bool = False
    otherwise: Callable[[], Program[Any]] | None = None
    """What is recorded if the store refuses the outcome for good: the same with less around it."""

    def later(self) -> None:
        self.due = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)


class LateOutcomes:
    """What waits to be recorded. Safe in threads and after a fork."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.start_anew()
        anew_after_fork(self)
        _at_exit(weakref.ref(self))

    def start_anew(self) -> None:
        self._wake = threading.Condition()
        self._items: list[_Item] = []
        self._trying = 0
        """How many are being tried: they may come back."""
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._away = FIRST_PAUSE
        """How long a store that could not be reached is left alone."""
        self._told: str | None = None
        """Why the last try did not work."""

    def record(
        self,
        factory: Callable[[], Program[Any]],
        seconds: float,
        otherwise: Callable[[], Program[Any]] | None = None,
    ) -> None:
        """Tries an outcome until the store has taken it, or refused it for good, or the time is over."""
        self._add(_Item(factory, time.monotonic() + seconds, gives_back=False, otherwise=otherwise))

    def give_back(self, factory: Callable[[], Program[bool]]) -> None:
        """Gives back a claim that may have landed, or may still land: however long the store says nothing,
        and for a while after its first word. What it was sent before may be carried out only then."""
        self._add(_Item(factory, math.inf, gives_back=True))

    def stop(self) -> None:
        """Ends the thread, after a last try of everything that waits."""
        with self._wake:
            thread, self._thread = self._thread, None
            self._stopping = True
            self._wake.notify()
        if thread is not None and thread.is_alive():
            thread.join(timeout=2 * LAST_TRIES)
        else:
            self._last_tries()

    def _add(self, item: _Item) -> None:
        with self._wake:
            if len(self._items) + self._trying >= MOST:
                logger.error("Too many outcomes wait for the store; this one is left to its lease's end")
                return
            self._items.append(item)
            self._wake.notify()
        self.attend()

    def attend(self) -> None:
        """Sees to it that somebody tries what waits: it stays, also while no thread can be started. What the
        last tries of who has stopped have in hand is seen to after them."""
        with self._wake:
            self._stopping = False
            if not self._items:
                return
            try:
                self._thread, _ = attending(self._thread, self._run, "samekey-late")
            except StoreBusy as error:
                logger.error("What could not be recorded waits until a thread can be started: %s", error)

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._wake:
                if self._goes_on(me):
                    self._wake.wait(self._wait())
                if not self._goes_on(me):
                    break
            self._try_due()
        self._last_tries()

    def _goes_on(self, thread: threading.Thread) -> bool:
        """Not after a stop, also where another thread has begun since."""
        return not self._stopping and self._thread is thread

    def _last_tries(self) -> None:
        """Everything that waits, as long as there is time: nobody else knows of it. The rest stays, for
        whoever goes on with the engine: one of two applications may have ended, and not the process."""
        deadline, pause = time.monotonic() + LAST_TRIES, FIRST_PAUSE
        left = self._taken(everything=True)
        not_landed: list[_Item] = []
        while left and time.monotonic() < deadline:
            # In rounds: it may be only one of them that cannot be done.
            tried, left = left, []
            for item in tried:
                if time.monotonic() >= deadline or not self._try(item):
                    left.append(item)
            # What could not be done yet is back, and what has come meanwhile is there; a claim that has not
            # landed is not waited for.
            back = self._taken(everything=True)
            not_landed += [item for item in back if item.looked_for]
            left += [item for item in back if not item.looked_for]
            if left:
                time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
                pause *= 2
        lost = sum(not item.gives_back for item in left)
        if lost:
            logger.error(
                "%d outcomes could not be recorded before the end: others have to find them out", lost
            )
        self._put_back([*left, *not_landed])
        if not self._stopping:  # somebody has gone on meanwhile, and may have found nothing to attend to
            self.attend()

    def _wait(self) -> float | None:
        """Until something is due; None while nothing waits."""
        if not self._items:
            return None
        return max(0.0, min(item.due for item in self._items) - time.monotonic())

    def _try_due(self) -> None:
        due = self._taken()
        for number, item in enumerate(due):
            if self._try(item):
                self._away = FIRST_PAUSE
                continue
            # The others wait too, and go first next time: it may be this one that cannot be done.
            self._put_back([*due[number + 1 :], item], time.monotonic() + self._away)
            self._away = min(2 * self._away, LONGEST_PAUSE)
            break
        self._trying = 0

    def _taken(self, *, everything: bool = False) -> list[_Item]:
        now = time.monotonic()
        with self._wake:
            taken = [item for item in self._items if everything or item.due <= now]
            if not everything:
                self._trying = len(taken)
            self._items = [item for item in self._items if not everything and item.due > now]
        return taken

    def _put_back(self, items: list[_Item], due: float = 0.0) -> None:
        with self._wake:
            for item in items:
                item.due = max(item.due, due)
            self._items += items
            self._wake.notify()

    def _try(self, item: _Item) -> bool:
        """One try. False if the store could not be reached; everything else is settled or put back here."""
        if item.until <= time.monotonic():
            if not item.gives_back:
                logger.error("An outcome could not be recorded in time: others have to find it out")
            return True
        try:
            done = run(self._driver, item.factory)
        except TRANSIENT as error:
            if str(error) != self._told:  # once, and not at each try
                self._told = str(error)
                logger.warning("An outcome could not be recorded and will be tried again: %s", error)
            if item.gives_back:
                item.looked_for, item.until = False, math.inf  # it was no word
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreBusy):
                return False
            item.later()
            self._put_back([item])
        except Exception:
            if item.otherwise is not None:
                logger.exception("The store refused an outcome with its notes; it is recorded without them")
                self._put_back([replace(item, factory=item.otherwise, otherwise=None)])
            else:
                logger.exception("The store refused an outcome for good; it is left to its lease's end")
        else:
            self._told = None
            if item.gives_back and not done:
                if not item.looked_for:
                    item.looked_for, item.until = True, time.monotonic() + SETTLE
                item.later()
                self._put_back([item])
        return True


def _at_exit(late: weakref.ref[LateOutcomes]) -> None:
    """A program may end without closing what it made."""

    def stop() -> None:
        found = late()
        if found is not None and (found._items or found._trying) and not found._stopping:
            found.stop()

    atexit.register(stop)
    weakref.finalize(late() or stop, atexit.unregister, stop).atexit = False
