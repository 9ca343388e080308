"""Places: how many pieces of work run at a time, shared so that no kind and no tenant can take them all.

A kind (a job's name, a phased operation, an endpoint) may hold up to four times as many places as are free,
and never the last free one unless it holds none. So one that hangs gets eight of ten, a second one gets one
more, and somebody else still finds a place. Inside a kind its tenants share in the same way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

SHARE = 4
"""Places that one may hold for each that is free: a fifth of them is left to the others."""
SMALLEST_SHARED = 4
"""A kind that may hold fewer places than this does not keep one free for its other tenants."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many may begin now, at most, and whose work must wait."""

    places: int
    full_tenants: tuple[str, ...] = ()


class Places:
    """Who may begin. There are never more than ``size`` at work."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kinds: Counter[str] = Counter()
        self._tenants: Counter[tuple[str, str]] = Counter()

    @property
    def free(self) -> int:
        return self._size - self._kinds.total()

    @property
    def most(self) -> int:
        """What one kind gets where nothing else runs."""
        return _fair(0, self._size)

    def held(self, kind: str) -> int:
        return self._kinds[kind]

    def enter(self, kind: str, tenant: str) -> None:
        self._kinds[kind] += 1
        self._tenants[kind, tenant] += 1

    def leave(self, kind: str, tenant: str) -> None:
        self._kinds[kind] -= 1
        self._tenants[kind, tenant] -= 1
        self._kinds, self._tenants = +self._kinds, +self._tenants

    def room(self, kind: str) -> Room:
        """For this kind. Whatever begins in it may all be of one tenant that is not among the full ones."""
        held = self._kinds[kind]
        left = _fair(held, self.free)
        if left == 0 or held + left < SMALLEST_SHARED:
            return Room(left)
        fits = {tenant: _fair(count, left) for (of, tenant), count in self._tenants.items() if of == kind}
        full = tuple(tenant for tenant, more in fits.items() if more == 0)
        return Room(min([_fair(0, left), *(more for more in fits.values() if more > 0)]), full)


def _fair(held: int, free: int) -> int:
    """How many more fit beside those that are held, if the rest is to stay free for others."""
    more = 0
    while more < free and _may(held + more, free - more):
        more += 1
    return more


def _may(held: int, free: int) -> bool:
    return held == 0 or (free > 1 and held < SHARE * free)
