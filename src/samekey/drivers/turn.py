"""One turn for a whole process: a lock that is waited for in event loops, in any of them.

Who waits takes no thread. Within one loop the first who came is the next; among loops it is whoever is awake
first, since a loop may have been stopped and never take what it was handed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from .fork import anew_after_fork


class Turn:
    """Free, or somebody's. Giving it back works from any thread."""

    def __init__(self) -> None:
        self.start_anew()
        anew_after_fork(self)

    def start_anew(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: dict[asyncio.AbstractEventLoop, deque[asyncio.Event]] = {}

    async def take(self, seconds: float) -> None:
        """``TimeoutError`` if others have it for so long."""
        loop, me = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.setdefault(loop, deque()).append(me)
        try:
            async with asyncio.timeout(seconds):
                while not self._is_mine(loop, me):
                    await me.wait()
                    me.clear()
        except BaseException:
            with self._lock:
                self._leave(loop, me)
            self._wake()  # the next one may have been told through us
            raise

    def give_back(self) -> None:
        with self._lock:
            self._taken = False
        self._wake()

    def _is_mine(self, loop: asyncio.AbstractEventLoop, me: asyncio.Event) -> bool:
        with self._lock:
            if self._taken or self._waiting[loop][0] is not me:
                return False
            self._taken = True
            self._leave(loop, me)
            return True

    def _leave(self, loop: asyncio.AbstractEventLoop, me: asyncio.Event) -> None:
        queue = self._waiting.get(loop)
        if queue is None:
            return  # the loop was closed
        queue.remove(me)
        if not queue:
            del self._waiting[loop]

    def _wake(self) -> None:
        """The first of each loop."""
        with self._lock:
            first = [] if self._taken else [(loop, queue[0]) for loop, queue in self._waiting.items()]
        for loop, event in first:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # it was closed, and nobody in it waits any more
                with self._lock:
                    self._waiting.pop(loop, None)
