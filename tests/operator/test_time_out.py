"""Accepted work that nobody starts is closed with a 408; and then it never happens, not even later."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta

import pytest

from lab.processes import Racers
from samekey.core.record import Answer
from samekey.stores.sql.upkeep import JobHeld
from samekey.workers.outbox import OutboxWorker
from samekey.workers.reaper import Reaper
from tests.chosen import whole, without
from tests.operator import nodes
from tests.operator.world import DAY, HOUR, MINUTE, World
from tests.taking import begin

ROUNDS = 100


def reap(world: World) -> int:
    return world.serve(Reaper(world.engine.engine, pending_timeout=timedelta(hours=2)).run_once)


def test_the_client_is_told_and_the_job_is_cancelled(world: World) -> None:
    record, _ = world.pending(at=-3 * HOUR)
    reap(world)
    closed = world.read(record)
    assert (closed.state, closed.error_code) == ("completed", "timed_out")
    assert closed.answer is not None and closed.answer.status == 408
    assert "use a new key" in json.loads(closed.answer.body)["detail"]
    assert world.sql("select state, error from {jobs}") == [("cancelled", "timed out")]
    assert closed.expires_at - closed.completed_at == DAY  # type: ignore[operator]


def test_a_cancelled_job_is_never_taken(world: World) -> None:
    world.pending(at=-3 * HOUR)
    reap(world)
    assert world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=10)) == []


def test_young_work_is_left_alone(world: World) -> None:
    record, _ = world.pending(at=-HOUR)
    reap(world)
    assert world.read(record).state == "pending"


@pytest.mark.parametrize("how", ["held", "silent", "given back", "gone wrong"])
def test_what_a_worker_has_begun_is_never_timed_out(world: World, how: str) -> None:
    """Also where its worker died or failed: the effect may be there, and "it will not be" a lie."""
    record, _ = world.pending(at=-3 * HOUR)
    long_ago = world.now - 3 * HOUR
    when = world.now if how == "held" else long_ago
    [job] = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=1, now=when))
    if how == "given back":
        world.run(lambda: world.jobs.retry(job, pause_ms=0, error="stopped", forgiven=True, now=long_ago))
    if how == "gone wrong":
        world.run(lambda: world.jobs.retry(job, pause_ms=0, error="timed out", now=long_ago))
    reap(world)
    assert world.read(record).state == "pending"
    assert world.sql("select state from {jobs}") == [("live",)]
    with pytest.raises(JobHeld):
        world.run(lambda: world.upkeep.time_out(record.scope, record.key, record.id, Answer(408)))
    assert world.sql("select state from {jobs}") == [("live",)]


def test_one_begun_job_of_two_is_enough(world: World) -> None:
    record, _ = world.pending(at=-3 * HOUR, second=True)
    world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=1))
    reap(world)
    assert world.read(record).state == "pending"
    assert world.count("jobs", "state = 'live'") == 2


def test_a_revived_job_has_its_time_again(world: World) -> None:
    """Its operation was dead for longer than pending work may wait."""
    from samekey.stores.protocols import Actor

    record, job_id = world.dead_job(at=-3 * DAY)
    assert world.run(lambda: world.operator.retry_dead_job(job_id, Actor("ann", "fixed")))
    reap(world)
    again = world.read(record)
    assert again.state == "pending"
    assert again.expires_at - again.last_run_at == DAY


def test_more_than_one_batch(world: World) -> None:
    for _ in range(7):
        world.pending(at=-3 * HOUR)
    reaper = Reaper(world.engine.engine, batch=3, pending_timeout=timedelta(hours=2))
    assert world.serve(reaper.time_out_pending) == 7


def test_a_real_worker_never_charges_after_the_408(world: World) -> None:
    charged: list[str] = []
    world.engine.job("settle")(lambda job, _: charged.append(job.operation_id))
    late, _ = world.pending(at=-3 * HOUR)
    young, _ = world.pending()

    async def work() -> None:
        await Reaper(world.engine.engine, pending_timeout=timedelta(hours=2)).run_once()
        worker = OutboxWorker(world.engine.engine)
        while await worker.run_once():
            await worker.drain()
        await worker.stop()

    world.serve(work)
    assert charged == [young.id]
    assert world.states([late, young]) == ["completed", "completed"]
    answers = [world.read(record).answer for record in (late, young)]
    assert [answer and answer.status for answer in answers] == [408, 200]


@without(store_url="mariadb")
@whole
def test_worker_against_reaper_in_two_processes(world: World) -> None:
    """A hundred rounds: the job is taken or its operation is timed out, never both, never neither."""
    ends: Counter[tuple[str, str]] = Counter()
    with Racers(2) as racers:
        for _ in range(ROUNDS):
            record, job_id = world.pending(at=-3 * HOUR)
            worker, reaper = racers.race(
                nodes.take_or_time_out, world.url, record.scope, record.key, record.id
            )
            [(job,)] = world.sql("select state from {jobs} where id = ?", job_id)
            state = str(world.read(record).state)
            ends[worker, reaper] += 1
            if worker == "taken":
                assert (reaper, state, job) == ("held", "pending", "live")
            else:
                assert (worker, reaper, state, job) == ("nothing", "closed", "completed", "cancelled")
            world.sql("delete from {jobs}")
        racers.race(nodes.leave)
    assert sum(ends.values()) == ROUNDS
