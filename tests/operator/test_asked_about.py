"""A lookup is told which effect it is asked about, and what it finds is about that one and no other."""

from __future__ import annotations

import pytest

from samekey import Evidence, Executed, NotExecuted, Response, StillUnknown
from samekey.core.effects import Sent, SentStep
from samekey.core.record import OpenEffect, Record
from samekey.workers.reconciler import Reconciler
from tests.operator.command import samekey
from tests.operator.test_a_yes_before_a_send import HalfDone, Phased, Work
from tests.operator.world import MINUTE, SOURCE, World


class Asked:
    """A lookup that remembers what it was asked about."""

    def __init__(self, world: World, says: Evidence | type[StillUnknown]) -> None:
        self.world, self.says = world, says
        self.about: list[OpenEffect | None] = []
        world.engine.lookup()(self.look_up)

    def look_up(self, record: Record) -> object:
        self.about.append(record.open_effect)
        return self.says

    def reconcile(self) -> None:
        self.world.serve(Reconciler(self.world.engine.engine).run_once)


def lost(work: Work) -> Record:
    work.lose()
    return work.world.read(work.record)


@pytest.mark.parametrize("kind", [HalfDone, Phased])
def test_of_phased_work_it_is_the_effect_without_a_result(world: World, kind: type[Phased]) -> None:
    record, asked = lost(kind(world)), Asked(world, StillUnknown)
    asked.reconcile()
    assert asked.about == [OpenEffect("capture", record.downstream_key("capture"), None, SOURCE)]


def test_what_another_step_has_made_is_no_result_of_it(world: World) -> None:
    """Money that was set aside is not money that was taken."""
    record = lost(HalfDone(world))
    Asked(world, Executed({"captured": "au_1"}, "au_1")).reconcile()
    assert world.read(record).state == "dead_letter"
    assert "'authorise'" in str(world.timeline(record)[-1].reason)
    assert [phase.done for phase in world.run(lambda: world.phases.load(record.id)).phases] == [True, False]


@pytest.mark.parametrize("provider_id", ["ca_1", None])
def test_what_names_it_or_nothing_is_its_result(world: World, provider_id: str | None) -> None:
    record = lost(HalfDone(world))
    Asked(world, Executed({"captured": 1}, provider_id)).reconcile()
    assert world.read(record).state == "in_progress"
    assert [phase.done for phase in world.run(lambda: world.phases.load(record.id)).phases] == [True, True]


def test_an_operator_is_held_to_the_same(world: World) -> None:
    record = lost(HalfDone(world))
    words = ("keys", "resolve", record.id, "--executed", "--result", "1", "--reason", "seen")
    refused = samekey(*words, "--provider-id", "au_1", env={"SAMEKEY_URL": world.url})
    assert refused.code != 0 and "'authorise'" in refused.sentence
    assert world.read(record) == record
    assert samekey(*words, "--provider-id", "ca_1", env={"SAMEKEY_URL": world.url}).code == 0


def leased(world: World, *steps: SentStep) -> Record:
    record = world.claim("k")
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "x", sent=Sent(steps)))
    return world.read(record)


def test_of_a_leased_call_it_is_the_one_that_was_noted(world: World) -> None:
    record = leased(world, SentStep("charge", "its key", "ch_1", SOURCE))
    asked = Asked(world, Executed(Response(201), "ch_2"))
    asked.reconcile()
    assert asked.about == [OpenEffect("charge", "its key", "ch_1", SOURCE)]
    assert world.read(record).state == "completed"


@pytest.mark.parametrize(
    ("provider_id", "becomes"), [("au_1", "dead_letter"), ("ca_1", "completed"), (None, "completed")]
)
def test_of_several_steps_none_is_named_and_the_last_one_counts(
    world: World, provider_id: str | None, becomes: str
) -> None:
    record = leased(world, SentStep("authorise", "a", "au_1"), SentStep("capture", "c"))
    asked = Asked(world, Executed(Response(201), provider_id))
    asked.reconcile()
    assert asked.about == [None] and world.read(record).state == becomes


def test_that_nothing_happened_names_no_step(world: World) -> None:
    record = leased(world, SentStep("authorise", "a", "au_1"), SentStep("capture", "c"))
    Asked(world, NotExecuted).reconcile()
    assert world.read(record).state == "failed_retryable"
