"""Where async connections live: some for each event loop, closed with the loop, or after it.

A connection belongs to one event loop of one process. An application has one loop; a test suite may have one
for each test, and a program one in each of several threads. A loop that ends the ordinary way closes its own
connections. What is left of one that was just closed is ended without it, as soon as anybody looks.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR, socket
from typing import Any, Generic, Protocol, TypeVar

from .errand import see_off
from .fork import anew_after_fork, leave_to_parent
from .pool import AsyncPool


class Home(Protocol):
    """The connections of one event loop."""

    farewell: AsyncGenerator[None, None] | None
    """Kept alive so that the loop finds it when it shuts down."""

    def close(self) -> None:
        """From within its loop: idle connections now, the others when they are given back."""

    @property
    def in_use(self) -> bool: ...

    def empty(self) -> list[Any]:
        """Every connection, for whoever ends them."""


@dataclass(slots=True)
class Pools:
    """The pools of one event loop."""

    statements: AsyncPool[Any]
    """For short statements of ours."""
    operations: AsyncPool[Any]
    """For handlers that hold a connection."""
    farewell: AsyncGenerator[None, None] | None = field(default=None, repr=False)

    def close(self) -> None:
        self.statements.close()
        self.operations.close()

    @property
    def in_use(self) -> bool:
        return bool(self.statements.in_use or self.operations.in_use)

    def empty(self) -> list[Any]:
        return [*self.statements.empty(), *self.operations.empty()]


H = TypeVar("H", bound=Home)


class Homes(Generic[H]):
    """``hang_up``: ends a connection within its loop; ``end``: where that is not there to do it."""

    def __init__(
        self, make: Callable[[], H], hang_up: Callable[[Any], None], end: Callable[[Any], None]
    ) -> None:
        self._make = make
        self._hang_up = hang_up
        self._end = end
        self._homes: dict[asyncio.AbstractEventLoop, H] = {}
        self._leaving: list[H] = []
        """Closed, and still in use: the loop finds their farewell for as long as they are kept."""
        self._lock = threading.Lock()
        anew_after_fork(self)

    def start_anew(self) -> None:
        leave_to_parent(self._homes, self._leaving)
        self._lock, self._homes, self._leaving = threading.Lock(), {}, []

    def here(self) -> H:
        """The pools of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._homes.get(loop)
        if found is None:
            found = self._move_in(loop)
        return found

    def _move_in(self, loop: asyncio.AbstractEventLoop) -> H:
        home = self._make()
        home.farewell = _farewell(home, self._hang_up)
        try:
            # Its first step makes it known to the loop, which closes all of its kind when it shuts down.
            home.farewell.asend(None).send(None)
        except StopIteration:
            pass
        with self._lock:
            dead = [other for other in self._homes if other.is_closed()]
            left = [connection for other in dead for connection in self._homes.pop(other).empty()]
            self._homes[loop] = home
        for connection in left:
            self._end(connection)
        return home

    def close(self) -> None:
        """Closes the connections of every loop of this process, whichever loop this is called in."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        with self._lock:
            homes, self._homes = self._homes, {}
            self._leaving = [home for home in (*self._leaving, *homes.values()) if home.in_use]
        for loop, home in homes.items():
            if loop is here:
                home.close()
            elif loop.is_running():
                try:
                    loop.call_soon_threadsafe(home.close)
                except RuntimeError:  # it was closed in this very moment
                    self._end_all(home)
            else:
                self._end_all(home)

    def _end_all(self, home: H) -> None:
        for connection in home.empty():
            self._end(connection)


async def _farewell(home: Home, hang_up: Callable[[Any], None]) -> AsyncGenerator[None, None]:
    """Waits for the end of its event loop, and closes what is open there."""
    try:
        yield
    finally:
        await see_off()
        for connection in home.empty():
            hang_up(connection)


def end_elsewhere(connection: Any, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
    """Ends an asyncpg connection from another thread than its event loop's: its line is shut down, so that
    the server ends what it does there. ``then`` is left to the loop, if it ever comes to it."""
    if loop.is_closed():
        end_without_loop(connection)
        return
    with suppress(OSError, AttributeError):  # it was closed meanwhile
        line = socket(fileno=os.dup(connection._transport.get_extra_info("socket").fileno()))
        try:
            line.shutdown(SHUT_RDWR)
        finally:
            line.close()
    with suppress(RuntimeError):  # it was closed in this very moment
        loop.call_soon_threadsafe(then)


def end_without_loop(connection: Any) -> None:
    """Ends an asyncpg connection whose event loop does not run: by its socket."""
    end_transport(connection._transport, connection.terminate)


def end_transport(transport: Any, end: Callable[[], None]) -> None:
    """``end`` is how its owner would end it in its event loop, which does not run."""
    connection_of_loop = getattr(transport, "_ssl_protocol", None)
    plain = getattr(connection_of_loop, "_transport", None) or transport
    line = getattr(plain, "_sock", None)
    closed = False
    try:
        end()
    except RuntimeError:
        closed = True  # it asked its loop, which cannot do anything any more
    if line is not None:
        line.close()
        if closed:
            plain._sock = None  # so that nobody is told that it was never closed
