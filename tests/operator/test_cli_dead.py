"""``samekey dead``: what was given up is tried again or put away, by the job's id or its operation's."""

from __future__ import annotations

import json

import pytest

from samekey.core.record import Record
from samekey.workers.outbox import OutboxWorker
from tests.operator.command import Ran, samekey
from tests.operator.world import HOUR, MINUTE, World
from tests.taking import begin


def dead(world: World, *arguments: str) -> Ran:
    return samekey("dead", *arguments, "--url", world.url)


def act(world: World, verb: str, letter: str, *arguments: str) -> Ran:
    return dead(world, verb, letter, "--reason", "fixed in 2.1", "--actor", "ann", *arguments)


def dead_phased(world: World) -> Record:
    record = world.phased()
    world.run(lambda: world.phases.give_up(record.lease(MINUTE), error_code="boom"))
    return record


def test_list_and_show(world: World) -> None:
    record, job = world.dead_job(at=-2 * HOUR)
    lost, phased = world.dead(), dead_phased(world)
    out = dead(world, "list").out
    for part in (job, "settle", "the provider said 500", "2 h 0 min", lost.id, phased.id, "boom"):
        assert part in out
    assert record.id not in out, "the job stands for its operation"
    listed = dead(world, "list", "--json").json
    assert [one["id"] for one in listed["jobs"]] == [job]
    assert {one["id"] for one in listed["records"]} == {lost.id, phased.id}
    for letter in (job, record.id):
        shown = dead(world, "show", letter).out
        assert job in shown and record.id in shown and "the provider said 500" in shown
        assert "dead retry" in shown


def test_nothing_is_dead(world: World) -> None:
    assert dead(world, "list").out == "There are no dead letters.\n"


def test_a_payload_is_shown_only_on_request(world: World) -> None:
    _, job = world.dead_job()
    assert "payload" not in dead(world, "show", job).out
    assert '"payload":null' in dead(world, "show", job, "--payload").out
    assert "payload" in dead(world, "show", job, "--payload", "--json").json["jobs"][0]


@pytest.mark.parametrize("by", ["job", "operation"])
def test_a_job_is_tried_again(world: World, by: str) -> None:
    record, job = world.dead_job()
    ran = act(world, "retry", job if by == "job" else record.id)
    assert ran.code == 0 and "as soon as a worker takes it" in ran.out
    assert world.read(record).state == "pending"
    assert world.sql("select state, attempts from {jobs}") == [("live", 0)]
    assert world.story(record)[-1] == ("dead_letter", "pending", "ann")
    assert world.timeline(record)[-1].reason == "fixed in 2.1"
    world.engine.job("settle", max_attempts=1)(lambda _job, _payload: {"paid": True})

    async def work() -> None:
        worker = OutboxWorker(world.engine.engine)
        await worker.run_once()
        await worker.drain()
        await worker.stop()

    world.serve(work)
    answer = world.read(record).answer
    assert answer is not None and json.loads(answer.body) == {"paid": True}


def test_a_phased_operation_is_left_to_the_completer(world: World) -> None:
    record = dead_phased(world)
    ran = act(world, "retry", record.id)
    assert ran.code == 0 and "the completer" in ran.out
    taken = world.run(lambda: world.phases.take_abandoned("t" * 32, ["ride/1"], lease_ms=MINUTE, batch=5))
    assert [one.id for one in taken] == [record.id]


def test_what_may_have_happened_is_not_simply_run_again(world: World) -> None:
    record = world.dead()
    ran = act(world, "retry", record.id)
    assert ran.code == 1 and f"samekey keys resolve {record.id}" in ran.sentence
    assert world.read(record).state == "dead_letter"


@pytest.mark.parametrize("by", ["job", "operation"])
def test_a_job_is_discarded_with_a_final_answer(world: World, by: str) -> None:
    record, job = world.dead_job()
    ran = act(world, "discard", job if by == "job" else record.id)
    assert ran.code == 0 and "every retry gets 500" in ran.out
    given_up = world.read(record)
    assert given_up.state == "completed" and given_up.answer is not None
    problem = json.loads(given_up.answer.body)
    assert (problem["status"], given_up.answer.status) == (500, 500)
    assert world.sql("select state from {jobs}") == [("discarded",)]
    assert world.story(record)[-1] == ("dead_letter", "completed", "ann")


def test_with_an_answer_of_ones_own(world: World) -> None:
    record = world.dead()
    act(world, "discard", record.id, "--status", "410", "--body", '{"gone": true}')
    answer = world.read(record).answer
    assert answer is not None and (answer.status, answer.body) == (410, b'{"gone": true}')
    assert act(world, "discard", record.id, "--status", "200").code == 2


def test_a_phased_operation_is_discarded_with_its_parts(world: World) -> None:
    record = dead_phased(world)
    assert act(world, "discard", record.id).code == 0
    assert world.read(record).state == "completed"
    assert (world.count("inputs"), world.count("phases")) == (0, 0)


def test_a_job_beside_the_one_that_answers(world: World) -> None:
    """Its operation is its own master: done or not, it stays as it is."""
    record, answering = world.pending(second=True)
    taken = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=5))
    first = next(job for job in taken if job.id == answering)
    other = next(job for job in taken if job.id != answering)
    world.run(lambda: world.jobs.finish(first, None, None))
    world.run(lambda: world.jobs.bury(other, error="no such address"))
    assert act(world, "retry", other.id).code == 0
    assert world.sql("select state from {jobs} where id = ?", other.id) == [("live",)]
    assert world.read(record).state == "completed"
    assert world.story(record)[-1] == ("completed", "completed", "ann")
    again = world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=5))
    world.run(lambda: world.jobs.bury(again[0], error="no such address"))
    ran = act(world, "discard", other.id)
    assert ran.code == 0 and "its operation stays as it is" in ran.out
    assert world.read(record).withheld


def test_reviving_a_bystander_does_not_revive_the_operation(world: World) -> None:
    record, answering = world.pending(second=True)
    for job in world.run(lambda: begin(world.jobs, lease_ms=MINUTE, batch=5)):
        world.run(lambda job=job: world.jobs.bury(job, error="down"))  # type: ignore[misc]
    [(other,)] = world.sql("select id from {jobs} where id <> ?", answering)
    assert act(world, "retry", other).code == 0
    assert world.read(record).state == "dead_letter"
    assert world.count("jobs", "state = 'dead'") == 1


def test_a_job_whose_operation_was_settled_never_runs_again(world: World) -> None:
    record, job = world.dead_job()
    world.sql("update {keys} set state = 'completed', answer_version = 1 where id = ?", record.id)
    ran = act(world, "retry", job)
    assert ran.code == 1 and "must not happen any more" in " ".join(ran.sentence.split())
    assert world.sql("select state from {jobs}") == [("dead",)]
    assert act(world, "discard", job).code == 0
    assert world.sql("select state from {jobs}") == [("discarded",)]
    assert world.read(record).withheld, "its answer is not touched"


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_only_the_dead(world: World, verb: str) -> None:
    record, job = world.pending()
    for letter, sentence in (
        (job, "The job is live, not dead."),
        (record.id, "The operation is pending, not a dead letter."),
        (world.completed().id, "The operation is completed, not a dead letter."),
        ("nothing", "There is no job and no operation nothing."),
    ):
        ran = act(world, verb, letter)
        assert (ran.code, ran.sentence) == (1, f"samekey: {sentence} Nothing was changed.")


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_dry_runs_and_reasons(world: World, verb: str) -> None:
    record, job = world.dead_job()
    lines = world.count("audit")
    assert dead(world, verb, job).code == 2, "a reason is required"
    ran = act(world, verb, job, "--dry-run")
    assert ran.code == 0 and "dry run" in ran.out
    assert world.read(record).state == "dead_letter"
    assert world.count("audit") == lines
