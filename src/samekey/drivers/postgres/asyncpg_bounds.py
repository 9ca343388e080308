"""How long a statement on an asyncpg connection may take, and how one is closed.

One timer watches over all statements that are under way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg


def is_over(connection: Any) -> bool:
    """Closed, or given back to the pool that it is from: asyncpg takes it from the pool's proxy either way,
    and rolls back before. From then on it is somebody else's, and nothing is said on it."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


def hang_up(connection: Any) -> None:
    """Closes it, so that the server rolls back. One that is over has nothing to close."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


class bounded:  # noqa: N801 (used as a function is; a class costs half as much, on every statement)
    """Closes the connection if what is done on it takes longer, or is interrupted in the middle."""

    __slots__ = ("_bounds", "_connection", "late")

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._bounds = _bounds_of(asyncio.get_running_loop(), seconds)
        self.late = False

    def __enter__(self) -> None:
        self._bounds.add(self)

    def give_up(self) -> None:
        self.late = True
        hang_up(self._connection)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._bounds.under_way.pop(self, None)
        if error is not None and not isinstance(error, Exception):
            hang_up(self._connection)
        elif error is not None and self.late:
            raise TimeoutError("the server did not answer in time") from error


class _Bounds:
    """What is under way in an event loop with the same bound: so whatever began first is late first, and one
    timer does for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self._seconds = seconds
        self.under_way: dict[bounded, float] = {}
        """With the time at which each is late, in that order."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: bounded) -> None:
        self.under_way[one] = late = self.loop.time() + self._seconds
        if self._timer is None:
            self._timer = self.loop.call_at(late, self._look)

    def _look(self) -> None:
        self._timer, now = None, self.loop.time()
        for one, late in list(self.under_way.items()):
            if late > now:
                self._timer = self.loop.call_at(late, self._look)
                return
            del self.under_way[one]
            one.give_up()


_bounds: dict[tuple[asyncio.AbstractEventLoop, float], _Bounds] = {}


def _bounds_of(loop: asyncio.AbstractEventLoop, seconds: float) -> _Bounds:
    found = _bounds.get((loop, seconds))
    if found is None:
        for place in [place for place in list(_bounds) if place[0].is_closed()]:
            _bounds.pop(place, None)
        found = _bounds[loop, seconds] = _Bounds(loop, seconds)
    return found
