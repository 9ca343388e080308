"""What an operator does about an operation of which a provider says that it happened: nothing is sent again,
and nothing is said not to have happened, before each of those events has been set aside by its name."""

from __future__ import annotations

import pytest

from samekey import Executed, NotExecuted, Resolution, Response
from samekey.core.effects import Sent, SentStep
from samekey.core.record import Record
from samekey.errors import ConfigurationError, Contradicted
from samekey.stores.protocols import Actor
from tests.operator.command import Ran, samekey
from tests.operator.world import MINUTE, SOURCE, World
from tests.taking import begin

ANN = Actor("ann", "looked at the dashboard")
YES = Executed(Response(201, {"paid": 1}))


def run(world: World, *words: str) -> Ran:
    return samekey(*words, env={"SAMEKEY_URL": world.url, "SAMEKEY_REASON": "seen"})


def two_dead_jobs(world: World) -> tuple[Record, str, str]:
    """A deferred operation whose two jobs were sent and given up."""
    record, job = world.pending("k", second=True)
    for one in world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=10, now=world.now)):
        world.run(lambda one=one: world.jobs.bury(one, error="lost", now=world.now + 1))  # type: ignore[misc]
    other = next(one.id for one in world.run(lambda: world.operator.jobs_of(record.id)) if one.id != job)
    return world.read(record), job, other


def told(world: World, record: Record) -> None:
    assert world.tell(YES, "e1", operation_id=record.id) is Resolution.UNPLACED


def waits(world: World) -> bool:
    return world.sql("select state from {evidence}") == [("waiting",)] and world.sql(
        "select disputed from {keys}"
    ) == [(1,)]


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_dead_job_is_neither_sent_again_nor_given_up_against_a_yes(world: World, verb: str) -> None:
    record, job, _ = two_dead_jobs(world)
    told(world, record)
    for dry in ([], ["--dry-run"]):
        refused = run(world, "dead", verb, job, *dry)
        assert refused.code != 0 and "'cards:e1'" in refused.sentence and "--despite" in refused.sentence
        assert world.read(record) == record and waits(world)
        assert not world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=9, now=world.now + MINUTE))
    for wrong in ("e1", "psp:e1"):
        assert run(world, "dead", verb, job, "--despite", wrong).code != 0 and waits(world)
    assert run(world, "dead", verb, job, "--despite", "cards:e1", "--dry-run").code == 0 and waits(world)
    assert run(world, "dead", verb, job, "--despite", "cards:e1").code == 0
    assert world.read(record).state == ("pending" if verb == "retry" else "completed")
    assert world.sql("select state from {evidence}") == [("late",)]


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_so_is_a_job_beside_the_one_that_answers(world: World, verb: str) -> None:
    record, _, other = two_dead_jobs(world)
    told(world, record)
    assert run(world, "dead", verb, other).code != 0 and waits(world)
    assert run(world, "dead", verb, other, "--despite", "cards:e1").code == 0


@pytest.mark.parametrize("act", ["retry", "discard", "discard the operation"])
def test_what_is_said_of_another_job_does_not_stand_in_the_way(world: World, act: str) -> None:
    """That one runs: its own next run says more than the event, which must not be set aside for it."""
    record, job, other = two_dead_jobs(world)
    assert run(world, "dead", "retry", other).code == 0
    effects = world.run(lambda: world.operator.effects(record.id))
    about = next(one.downstream_key for one in effects if one.place == other)
    assert world.tell(YES, "e1", downstream_key=about) is Resolution.KEPT
    verb, meant = act.split(maxsplit=1)[0], record.id if act.endswith("operation") else job
    assert run(world, "dead", verb, meant).code == 0
    assert world.sql("select state from {evidence}") == [("waiting",)]


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_dead_phased_work_is_left_alone_as_well(world: World, verb: str) -> None:
    record = world.phased("k")
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "x"))
    world.run(lambda: world.operator.give_up(record.id, ANN))
    strange = record.downstream_key("strange")
    assert world.tell(Executed(1), "e1", downstream_key=strange) is Resolution.UNPLACED
    assert run(world, "dead", verb, record.id).code != 0
    assert world.read(record).state == "dead_letter" and waits(world)
    assert run(world, "dead", verb, record.id, "--despite", "cards:e1").code == 0
    assert world.read(record).state == ("in_progress" if verb == "retry" else "completed")


@pytest.mark.parametrize("words", [["dead", "show"], ["keys", "show"]])
def test_it_is_shown_before_anything_is_done(world: World, words: list[str]) -> None:
    record, _, _ = two_dead_jobs(world)
    told(world, record)
    shown = run(world, *words, record.id)
    assert shown.code == 0 and "cards said executed" in shown.out and "cards:e1" in shown.out
    (event,) = run(world, *words, record.id, "--json").json["events"]
    assert (event["source"], event["id"], event["says"]) == ("cards", "e1", "executed")


def two_steps(world: World) -> Record:
    record = world.claim("k")
    sent = Sent(tuple(SentStep(step, record.downstream_key(step)) for step in ("a", "b")))
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "x", sent=sent))
    return world.read(record)


def test_two_providers_that_number_alike_are_set_aside_one_by_one(world: World) -> None:
    record = two_steps(world)
    for source, step in ((SOURCE, "a"), ("bank", "")):
        key = record.downstream_key(step or "strange")
        assert world.tell(YES, "evt_1", source=source, downstream_key=key) is not Resolution.RESOLVED
    resolver = world.engine.engine.resolver
    for despite, left in (([], 2), (["evt_1"], 2), (["cards:evt_1"], 1), (["bank:evt_1"], 1)):
        with pytest.raises(Contradicted) as contradicted:
            world.run(lambda despite=despite: resolver.apply(record, NotExecuted, ANN, despite=despite))  # type: ignore[misc]
        assert len(contradicted.value.events) == left
    assert record.downstream_key("a") in str(contradicted.value)  # which effect it is about
    both = ["cards:evt_1", "bank:evt_1"]
    assert world.run(lambda: resolver.apply(record, NotExecuted, ANN, despite=both))


def test_a_name_that_means_two_events_is_refused(world: World) -> None:
    record = two_steps(world)
    for source, event in (("a", "b:c"), ("a:b", "c")):
        world.tell(YES, event, source=source, operation_id=record.id)
    resolver = world.engine.engine.resolver
    with pytest.raises(ConfigurationError, match="either of two"):
        world.run(lambda: resolver.apply(record, NotExecuted, ANN, despite=["a:b:c"]))


def test_what_was_set_aside_for_nothing_still_waits(world: World) -> None:
    record, _, _ = two_dead_jobs(world)
    told(world, record)
    resolver = world.engine.engine.resolver
    despite = ["cards:e1"]
    assert not world.run(lambda: resolver.apply(record, NotExecuted, ANN, despite=despite))
    assert waits(world) and world.read(record) == record
