"""A small pool of connections for sync drivers: bounded, safe in threads and after a fork.

A connection is opened by whoever needs it, so a database that is down is an error at once, with its own
words, and not a wait for somebody else's attempt. The last one given back is the first one taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import StoreBusy

C = TypeVar("C")


class Pool(Generic[C]):
    """``size`` bounds the connections in use; None for no bound. ``keep`` of them stay open when idle."""

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], None],
        *,
        size: int | None = None,
        keep: int = 8,
        timeout: float = 5.0,
        usable: Callable[[C], bool] = lambda connection: True,
    ) -> None:
        self._connect = connect
        self._close = close
        self._usable = usable
        self._size = size
        self._keep = keep
        self._timeout = timeout
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._places = threading.Semaphore(self._size) if self._size is not None else None

    def take(self) -> C:
        """A connection that nobody else uses until it is given back. ``StoreBusy`` if none is free."""
        if self._pid != os.getpid():
            # Connections must not cross a fork. The parent's are left alone: closing them here would
            # say goodbye on its socket, or drop its locks.
            self._start_anew()
        if self._places is not None and not self._places.acquire(timeout=self._timeout):
            raise StoreBusy(
                f"No connection was free within {self._timeout:g} s. Does a handler take a second "
                "connection while it holds its own? Retry with the same key."
            )
        try:
            while True:
                with self._lock:
                    connection = self._idle.pop() if self._idle else None
                if connection is None:
                    return self._connect()
                if self._usable(connection):
                    return connection
                self._close(connection)
        except BaseException:
            if self._places is not None:
                self._places.release()
            raise

    def give_back(self, connection: C) -> None:
        """For the next one; closed if it is no longer usable or there are enough."""
        if self._pid != os.getpid():
            return
        keep = self._usable(connection)
        with self._lock:
            keep = keep and len(self._idle) < self._keep
            if keep:
                self._idle.append(connection)
        if not keep:
            self._close(connection)
        if self._places is not None:
            self._places.release()

    def drop_idle(self) -> None:
        """Closes every idle connection: after a restart of the server they are all dead."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for connection in idle:
                self._close(connection)
