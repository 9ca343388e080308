"""Small pools of connections, for threads and for an event loop: bounded, and honest about an outage.

A connection is opened by whoever needs it, so a database that is down is an error at once, with its own
words, and not a wait for somebody else's attempt. The last one given back is the first one taken.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ..errors import StoreBusy

C = TypeVar("C")


class Pool(Generic[C]):
    """For threads, also after a fork.

    ``size`` bounds the connections in use; None for no bound. ``keep`` of them stay open when idle.
    """

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

    def let_go(self, connection: C) -> None:
        """Closes a connection that nobody else shall have."""
        self._close(connection)
        if self._places is not None and self._pid == os.getpid():
            self._places.release()

    def drop_idle(self) -> None:
        """Closes every idle connection: after a restart of the server they are all dead."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for connection in idle:
                self._close(connection)


class AsyncPool(Generic[C]):
    """The same for an event loop. Taking an idle connection and giving it back never wait."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        discard: Callable[[C], None],
        *,
        size: int,
        timeout: float,
        usable: Callable[[C], bool],
    ) -> None:
        self._connect = connect
        self._discard = discard
        self._usable = usable
        self._size = size
        self._timeout = timeout
        self._idle: list[C] = []
        self._open = 0
        """Connections that are open or being opened, idle ones included."""
        self._waiting: deque[asyncio.Future[C | None]] = deque()

    async def take(self) -> C:
        """A connection that nobody else uses until it is given back. ``StoreBusy`` if none is free."""
        while self._idle:
            connection = self._idle.pop()
            if self._usable(connection):
                return connection
            self._drop(connection)
        if self._open < self._size:
            return await self._new()
        handed_over = await self._wait()
        return await self._new() if handed_over is None else handed_over

    def give_back(self, connection: C) -> None:
        """For whoever waits, or for the next one."""
        if not self._usable(connection):
            self._drop(connection)
        elif not self._hand_over(connection):
            self._idle.append(connection)

    def drop_idle(self) -> None:
        """Closes every idle connection: after a restart of the server they are all dead."""
        idle, self._idle = self._idle, []
        for connection in idle:
            self._drop(connection)

    async def _new(self) -> C:
        self._open += 1
        try:
            return await self._connect()
        except BaseException:
            self._open -= 1
            self._hand_over(None)
            raise

    async def _wait(self) -> C | None:
        """A connection from somebody who is done, or None: there is room for a new one."""
        waiter: asyncio.Future[C | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._timeout):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                # It was handed over in the very moment in which we gave up.
                connection = waiter.result()
                if connection is None:
                    self._hand_over(None)
                else:
                    self.give_back(connection)
            if isinstance(error, TimeoutError):
                raise StoreBusy(
                    f"No connection was free within {self._timeout:g} s. Does a handler take a second "
                    "connection while it holds its own? Retry with the same key."
                ) from None
            raise

    def _hand_over(self, connection: C | None) -> bool:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _drop(self, connection: C) -> None:
        self._open -= 1
        self._discard(connection)
        self._hand_over(None)
