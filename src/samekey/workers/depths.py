"""How far down a backlog is looked for jobs of other tenants than those that have no place left.

A shallow look costs next to nothing, and is enough as a rule. Where it finds nothing, the next one goes
deeper, so that no client's backlog, however long, hides the others. Deep looks cost: between two of one kind
there is a rest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..stores.sql.jobs import LOOK_AHEAD
from .places import Room

DEEPER = 4
DEEPEST = 2**31 - 1
REST = 20.0
"""Times as long as the look took: deep looks take a twentieth of a store's time at most."""


@dataclass(slots=True)
class Look:
    """One look at a kind."""

    depth: int
    found: int = 0


class Depths:
    """For each kind, how deep the next look goes."""

    def __init__(self) -> None:
        self._depth: dict[str, int] = {}
        self._rested: dict[str, float] = {}

    @contextlib.contextmanager
    def look(self, kind: str, room: Room) -> Iterator[Look]:
        """The depth for this look; 0 where every tenant has a place. Say what it found."""
        if not room.full_tenants:
            self._depth.pop(kind, None)
            yield Look(0)
            return
        began = time.monotonic()
        depth = self._depth.get(kind, LOOK_AHEAD)
        deep = began >= self._rested.get(kind, 0.0)
        look = Look(depth if deep else LOOK_AHEAD)
        try:
            yield look
        except BaseException:
            self._depth.pop(kind, None)  # it was too much for the store, perhaps
            raise
        else:
            if deep and not look.found:
                self._depth[kind] = min(depth * DEEPER, DEEPEST)
        finally:
            if deep:
                now = time.monotonic()
                self._rested[kind] = now + REST * (now - began)
