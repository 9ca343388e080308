"""The watchdog of a worker process: a worker that cannot work must be started anew."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

logger = logging.getLogger("samekey")

STUCK = 70
"""The exit code of a worker whose event loop no longer turns (EX_SOFTWARE)."""


BLOCKED = (
    "An async job has blocked this worker's event loop for longer than it may run. The worker ends here; "
    "start it again. Blocking code belongs in a sync job."
)
LATE = (
    "This worker was told to stop, and something blocks its event loop. It ends here; its jobs come back "
    "when their leases run out. Blocking code belongs in a sync job."
)


class Watchdog:
    """Ends the process when its event loop no longer turns: an async job blocks it and will not stop; and
    when it has not ended though it should have, for whatever reason.

    Nothing inside the loop could; and a worker that cannot work must be started anew. Its jobs come back
    when their leases run out, the culprit in the end alone, then as a dead letter. Silence is counted in
    short turns of its own, so a process that was only paused as a whole is not taken for stuck.
    """

    TURN = 0.5

    def __init__(
        self, loop: asyncio.AbstractEventLoop, silence: Callable[[], float], overdue: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._silence = silence
        """How many seconds of it are too many, just now."""
        self._overdue = overdue
        """Whether it should have ended by now."""
        self._stopping = threading.Event()
        threading.Thread(target=self._run, name="samekey-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self.TURN):
            turned = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # the loop is closed
            if self._overdue():
                self._end(LATE)
            silent = 0.0
            while not turned.wait(self.TURN) and not self._stopping.is_set():
                silent += self.TURN
                if self._overdue():
                    self._end(LATE)
                if silent >= self._silence():
                    self._end(BLOCKED)

    def _end(self, sentence: str) -> None:
        logger.critical("%s", sentence)
        logging.shutdown()
        os._exit(STUCK)
