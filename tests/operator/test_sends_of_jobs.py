"""How often a job was sent is counted, not read off a clock: what was said of one send settles no other."""

from __future__ import annotations

import pytest

from samekey import Declined, Executed, Resolution, Response
from samekey.core.record import Answer
from samekey.core.states import State
from samekey.stores.protocols import Actor
from samekey.stores.sql.jobs import Contested, Job
from tests.operator.world import MINUTE, SECOND, SOURCE, TENANT, World, moment_of
from tests.taking import begin


def _dies(world: World, *, begun: int, buried: int) -> Job:
    """The job is sent, and its answer is lost, for good."""
    (job,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, now=begun))
    world.run(lambda: world.jobs.bury(job, error="the answer was lost", now=buried))
    return job


@pytest.mark.parametrize("back", [0, 2 * SECOND, 30 * SECOND], ids=lambda back: f"{back} ms back")
def test_a_no_about_the_first_send_never_settles_the_second_whatever_the_clock_did(
    world: World, back: int
) -> None:
    """Between the two the store's clock goes back, as after a fail-over to a server whose clock is behind."""
    began = world.now - MINUTE
    record, job_id = world.pending("k", at=-MINUTE)
    _dies(world, begun=began, buried=began + 20 * SECOND)
    then = began + 20 * SECOND - back
    assert world.run(lambda: world.operator.retry_dead_job(job_id, Actor("ann", "again"), now=then))
    _dies(world, begun=then, buried=then)
    (effect,) = world.run(lambda: world.operator.effects(record.id))
    assert effect.sends == 2
    told = world.engine.resolve(
        Declined(Response(402, {"status": "declined"})),
        source=SOURCE,
        event_id="e1",
        tenant=TENANT,
        occurred_at=moment_of(began + 18 * SECOND),
        downstream_key=effect.downstream_key,
        verify=lambda: True,
    )
    assert told in (Resolution.KEPT, Resolution.TOO_LATE)
    assert world.read(record).state is State.DEAD_LETTER


def test_a_forgiven_attempt_was_sent_all_the_same(world: World) -> None:
    """A worker that stops forgives the attempt, and an operator counts anew; what was sent stays sent."""
    record, job_id = world.pending("k")
    (job,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, now=world.now))
    world.run(lambda: world.jobs.retry(job, pause_ms=0, error=None, forgiven=True, now=world.now))
    again = _dies(world, begun=world.now, buried=world.now)
    assert again.attempts == 1
    assert world.run(lambda: world.operator.retry_dead_job(job_id, Actor("ann", "again"), now=world.now))
    (effect,) = world.run(lambda: world.operator.effects(record.id))
    assert (effect.sends, effect.sent_at) == (2, world.now)


@pytest.mark.parametrize("by", ["a stop", "dead retry"])
def test_a_refusal_after_a_send_that_was_forgiven_does_not_stand_against_its_yes(
    world: World, by: str
) -> None:
    """The first send was carried out; the second, which counts as the first attempt, is refused."""
    record, job_id = world.pending("k")
    if by == "a stop":
        (job,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, now=world.now))
        world.run(lambda: world.jobs.retry(job, pause_ms=0, error=None, forgiven=True, now=world.now))
    else:
        _dies(world, begun=world.now, buried=world.now)
        assert world.run(lambda: world.operator.retry_dead_job(job_id, Actor("ann", "again"), now=world.now))
    (again,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, now=world.now))
    assert (again.attempts, again.sends) == (1, 2)
    (effect,) = world.run(lambda: world.operator.effects(record.id))
    told = world.tell(Executed(Response(201, {})), downstream_key=effect.downstream_key)
    assert told is Resolution.KEPT
    with pytest.raises(Contested):
        world.run(lambda: world.jobs.finish(again, Answer(402), "declined_2"))
    assert world.read(record).state is State.PENDING


def test_what_was_given_back_uncalled_was_not_sent(world: World) -> None:
    record, _ = world.pending("k")
    (job,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, now=world.now))
    world.run(lambda: world.jobs.give_back([job], pause_ms=0, error=None, now=world.now))
    (effect,) = world.run(lambda: world.operator.effects(record.id))
    assert effect.sends == 0
    (again,) = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, now=world.now))
    assert (again.attempts, again.sends) == (1, 1)
