"""What each run of a job has made stays its own: its id finds the operation, a no about it frees nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from samekey import Declined, Executed, NotExecuted, Resolution, Response
from samekey.core.states import State
from tests.chosen import stores
from tests.operator.world import MINUTE, SOURCE, TENANT, World
from tests.taking import begin


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb"))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.close()


class Runs:
    """A job that is run again and again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.record, self.job_id = world.pending(at=-60 * MINUTE)

    def run(self, made: str | None, *, at: int, last: bool = False) -> None:
        world, now = self.world, self.world.now + at
        (job,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=10, now=now))
        if last:
            world.run(lambda: world.jobs.bury(job, error="lost", provider_id=made, now=now + 1))
        else:
            world.run(lambda: world.jobs.retry(job, pause_ms=0, error="lost", provider_id=made, now=now + 1))

    def told(self, evidence: Any, event_id: str, provider_id: str) -> Resolution:
        return self.world.tell(
            evidence, event_id, at=10 * MINUTE, provider_id=provider_id, tenant=TENANT, source=SOURCE
        )


@pytest.mark.parametrize("last", ["ch_2", None], ids=["with an id of its own", "without a word"])
def test_a_no_about_what_a_former_run_made_is_late(world: World, last: str | None) -> None:
    runs = Runs(world)
    runs.run("ch_1", at=-20 * MINUTE)
    runs.run(last, at=-10 * MINUTE, last=True)
    (effect,) = world.run(lambda: world.operator.effects(runs.record.id))
    assert (effect.provider_id, effect.former_ids) == (last, ("ch_1",))
    assert runs.told(Declined(Response(402, {})), "e1", "ch_1") is Resolution.TOO_LATE
    assert runs.told(NotExecuted, "e2", "ch_1") is Resolution.TOO_LATE
    assert world.read(runs.record).state is State.DEAD_LETTER
    assert runs.told(Executed(Response(201, {})), "e3", "ch_1") is Resolution.RESOLVED
    assert world.read(runs.record).state is State.COMPLETED


def test_the_id_of_every_run_finds_the_operation(world: World) -> None:
    runs = Runs(world)
    runs.run("ch_1", at=-30 * MINUTE)
    runs.run("ch_2", at=-20 * MINUTE)
    runs.run(None, at=-10 * MINUTE)
    for number, provider_id in enumerate(["ch_1", "ch_2"]):
        assert runs.told(NotExecuted, f"e{number}", provider_id) is Resolution.KEPT, provider_id
    assert runs.told(NotExecuted, "e9", "ch_3") is Resolution.NOT_FOUND


def test_a_run_that_makes_the_same_again_is_the_last_one(world: World) -> None:
    runs = Runs(world)
    runs.run("ch_1", at=-20 * MINUTE)
    runs.run("ch_1", at=-10 * MINUTE, last=True)
    assert runs.told(Declined(Response(402, {})), "e1", "ch_1") is Resolution.RESOLVED
