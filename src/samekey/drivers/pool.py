"""Small pools of connections, for threads and for an event loop: bounded, and honest about an outage.

A connection is opened by whoever needs it, so a database that is down is an error at once, with its own
words, and not a wait for somebody else's attempt. The last one given back is the first one taken.

Who takes a connection takes a place, and gives back exactly that one: giving back twice changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .fork import anew_after_fork, leave_to_parent
from .places import NoPlace

C = TypeVar("C")


def _none_free(timeout: float) -> NoPlace:
    return NoPlace(
        f"No connection was free within {timeout:g} s. Does a handler take a second connection while it "
        "holds its own? Retry with the same key."
    )


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
        self._begin()
        anew_after_fork(self)

    def start_anew(self) -> None:
        leave_to_parent(self._idle)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._lent: dict[int, int] = {}
        """Connections that are in use, by identity, and how often the pool had been closed before."""
        self._closings = 0
        self._places = threading.Semaphore(self._size) if self._size is not None else None

    @property
    def in_use(self) -> int:
        """Connections that were taken and not given back."""
        return len(self._lent)

    def take(self) -> C:
        """A connection that nobody else uses until it is given back. ``StoreBusy`` if none is free."""
        if self._places is not None and not self._places.acquire(timeout=self._timeout):
            raise _none_free(self._timeout)
        connection: C | None = None
        try:
            connection = self._idle_or_new()
            with self._lock:
                self._lent[id(connection)] = self._closings
            return connection
        except BaseException:
            # Also a signal's, that comes when there is a connection and nobody has it yet.
            try:
                if connection is not None:
                    with self._lock:
                        self._lent.pop(id(connection), None)
                    self._close(connection)
            finally:
                self._free_place()
            raise

    def _idle_or_new(self) -> C:
        while True:
            try:
                with self._lock:
                    connection = self._idle.pop()
            except IndexError:
                return self._connect()
            try:
                usable = self._usable(connection)
            except BaseException:
                self._close(connection)
                raise
            if usable:
                return connection
            self._close(connection)

    def give_back(self, connection: C) -> None:
        """For the next one; closed if it is no longer usable or there are enough."""
        with self._lock:
            known = id(connection) in self._lent
        if not known:
            return  # it was given back, or it is the parent's
        try:
            keep = self._usable(connection)
        except BaseException:
            self.let_go(connection)  # a signal's, say: nobody else comes back for it
            raise
        with self._lock:
            since = self._lent.pop(id(connection), None)
            if since is None:
                return
            keep = keep and len(self._idle) < self._keep and since == self._closings
            if keep:
                self._idle.append(connection)
        try:
            if not keep:
                self._close(connection)
        finally:
            self._free_place()

    def let_go(self, connection: C) -> None:
        """Closes a connection that nobody else shall have."""
        try:
            self._close(connection)
        finally:
            self.forget(connection)

    def forget(self, connection: C) -> None:
        """Gives back the place of a connection that its holder has ended, or leaves to its fate."""
        with self._lock:
            known = self._lent.pop(id(connection), None) is not None
        if known:
            self._free_place()

    def _free_place(self) -> None:
        if self._places is not None:
            self._places.release()

    def drop_idle(self) -> None:
        """Closes every idle connection: after a restart of the server they are all dead."""
        # Without the lock: it is done before a fork, too, which waits for nobody.
        for _ in range(len(self._idle)):
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            self._close(connection)

    def close(self) -> None:
        """Closes every idle connection now, and those in use when they are given back."""
        self._closings += 1
        self.drop_idle()


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
        self._timeout = timeout
        self._idle: list[C] = []
        self._lent: dict[int, C] = {}
        self._room = size
        """Places without a connection that nobody has a right to."""
        self._closed = False
        self._waiting: deque[asyncio.Future[C | None]] = deque()

    @property
    def free(self) -> int:
        """Places that could be taken now."""
        return self._room + len(self._idle)

    @property
    def in_use(self) -> int:
        """Connections that were taken and not given back."""
        return len(self._lent)

    async def take(self) -> C:
        """A connection that nobody else uses until it is given back. ``StoreBusy`` if none is free."""
        while self._idle:
            connection = self._idle.pop()
            if self._usable(connection):
                return self._lend(connection)
            self._drop(connection)
        if self._room > 0:
            self._room -= 1
            return await self._new()
        handed_over = await self._wait()
        return await self._new() if handed_over is None else handed_over

    def give_back(self, connection: C) -> None:
        """For whoever waits, or for the next one."""
        if self._lent.pop(id(connection), None) is None:
            return
        if self._closed or not self._usable(connection):
            self._drop(connection)
        elif not self._hand_over(connection):
            self._idle.append(connection)

    def drop_idle(self) -> None:
        """Closes every idle connection: after a restart of the server they are all dead."""
        idle, self._idle = self._idle, []
        for connection in idle:
            self._drop(connection)

    def close(self) -> None:
        """Closes every idle connection now, and those in use when they are given back."""
        self._closed = True
        self.drop_idle()

    def empty(self) -> list[C]:
        """Every connection, those in use included, for whoever ends them; none is handed out any more."""
        self._closed = True
        found = [*self._idle, *self._lent.values()]
        self._idle, self._lent = [], {}
        return found

    def _lend(self, connection: C) -> C:
        self._lent[id(connection)] = connection
        return connection

    async def _new(self) -> C:
        """A new connection, on a place that is ours already."""
        # A task, because what connects has deadlines of its own, which are a task's.
        connecting = asyncio.ensure_future(self._connect())
        try:
            return self._lend(await connecting)
        except BaseException:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                self._discard(connecting.result())  # it came in the very moment in which we gave up
            connecting.cancel()
            self._free_place()
            raise

    async def _wait(self) -> C | None:
        """A connection from somebody who is done, or None: a place for a new one. Either is ours."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[C | None] = loop.create_future()
        self._waiting.append(waiter)
        late = loop.call_later(self._timeout, _give_up, waiter, self._timeout)
        try:
            return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # It was handed over in the very moment in which we gave up.
                connection = waiter.result()
                if connection is None:
                    self._free_place()
                else:
                    self.give_back(connection)
            raise
        finally:
            late.cancel()

    def _hand_over(self, connection: C | None) -> bool:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                if connection is not None:
                    self._lend(connection)
                waiter.set_result(connection)
                return True
        return False

    def _free_place(self) -> None:
        """A place goes to whoever waits: in between nobody else may take it."""
        if not self._hand_over(None):
            self._room += 1

    def _drop(self, connection: C) -> None:
        try:
            self._discard(connection)
        finally:
            self._free_place()


def _give_up(waiter: asyncio.Future[C | None], timeout: float) -> None:
    if not waiter.done():
        waiter.set_exception(_none_free(timeout))
