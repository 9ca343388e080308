"""How deep a look goes: one that was too much for the store makes the next one shallow, and rests too."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from samekey.errors import StoreUnavailable
from samekey.stores.sql.jobs import LOOK_AHEAD
from samekey.workers.depths import Depths
from samekey.workers.places import Room

FULL = Room(5, ("ann",))


def fails(depths: Depths, clock: list[float], found: list[int]) -> None:
    """A look that the store does not answer in its time, of five seconds."""
    with depths.look("import", FULL) as look:
        found.append(look.depth)
        clock[0] += 5
        raise StoreUnavailable("MySQL did not answer in time")


def test_a_look_that_fails_rests_and_makes_the_next_ones_shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr("samekey.workers.depths.time", SimpleNamespace(monotonic=lambda: clock[0]))
    depths = Depths()
    for _ in range(3):  # each finds nothing, in no time
        with depths.look("import", FULL):
            pass
    too_much: list[int] = []
    with pytest.raises(StoreUnavailable):
        fails(depths, clock, too_much)
    assert too_much[0] > LOOK_AHEAD
    with depths.look("import", FULL) as next_one:
        pass
    assert next_one.depth == LOOK_AHEAD
    clock[0] += 50
    with depths.look("import", FULL) as still_resting:
        pass
    assert still_resting.depth == LOOK_AHEAD
    clock[0] += 60
    with depths.look("import", FULL) as rested:
        pass
    assert rested.depth == LOOK_AHEAD, "from the beginning"
    with depths.look("import", FULL) as deeper:
        pass
    assert deeper.depth > LOOK_AHEAD
