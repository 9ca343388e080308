"""What the completer could not begin, or gave back because it stops, is no attempt of the operation."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from samekey import Backoff, Response
from samekey.errors import StoreBusy
from samekey.workers.completer import Completer
from tests.phased.world import World, column, end_lease, now, state_of

pytestmark = pytest.mark.parametrize("style", ["async"], indirect=True)  # a thread cannot be cancelled

AT_ONCE = Backoff(first=timedelta(0))


class Rides:
    """A ride whose row is written, and which fails once; what comes after that waits if it is told to."""

    def __init__(self, world: World) -> None:
        self.world, self.entered, self.waits = world, 0, False
        self.reached = asyncio.Event()

        async def last(_effect: Any) -> str:
            if self.waits:
                self.reached.set()
                await asyncio.Event().wait()
            return "ch_1"

        async def ride(op: Any, input: Any) -> Response:
            self.entered += 1
            await now(op.transaction("ride_created", world.insert("rides"), input.json()["ride"]))
            if self.entered == 1:
                raise ValueError("for the first time")
            await now(op.effect("charged", last, provider_window=timedelta(days=1)))
            return Response(201)

        world.define(ride, max_attempts=3, backoff=AT_ONCE)
        world.post("k")
        assert self.seen() == ("in_progress", 1)

    def seen(self) -> tuple[Any, Any]:
        return state_of(self.world.url, "k"), column(self.world.url, "k", "attempts")

    def complete(self) -> None:
        end_lease(self.world.url, "k")
        self.world.complete()


@pytest.fixture
def rides(world: World) -> Rides:
    return Rides(world)


def test_a_clean_stop_does_not_count(rides: Rides) -> None:
    rides.waits = True

    async def deploy() -> None:
        rides.reached.clear()
        completer = Completer(rides.world.engine.engine)
        await completer.look()
        await asyncio.wait_for(rides.reached.wait(), 60)
        await completer.stop(timedelta(0))

    for _ in range(4):
        end_lease(rides.world.url, "k")
        rides.world.loop.run(deploy())
        assert rides.seen() == ("in_progress", 1)
    rides.waits = False
    rides.complete()
    assert state_of(rides.world.url, "k") == "completed"


def test_what_could_not_be_begun_does_not_count(rides: Rides, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: Any) -> None:
        raise StoreBusy("No thread can be started.")

    with monkeypatch.context() as full:
        full.setattr(rides.world.engine.engine.keeper, "watch", no_thread)
        for _ in range(4):
            rides.complete()
            assert rides.seen() == ("in_progress", 1) and rides.entered == 1
    rides.complete()
    assert state_of(rides.world.url, "k") == "completed"
