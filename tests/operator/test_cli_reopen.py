"""``samekey keys reopen`` and ``samekey audit prune``: a remembered failure runs once more; old lines go."""

from __future__ import annotations

from datetime import timedelta

import pytest

from samekey import Executed, Response
from samekey.core.effects import Sent, SentStep
from samekey.core.record import Answer, Record
from samekey.core.states import Mode, State
from samekey.stores.protocols import Actor
from samekey.workers.reaper import Reaper
from tests.operator.command import Ran, samekey
from tests.operator.world import DAY, MINUTE, World

ANN = Actor("ann", "why")
WHY = ("--reason", "limit raised", "--actor", "ann")


def reopen(world: World, record: Record, *arguments: str) -> Ran:
    return samekey("keys", "reopen", record.id, *WHY, *arguments, "--url", world.url)


def failed(
    world: World, key: str = "a", *, status: int = 402, sent: bool = False, mode: Mode = Mode.LEASED
) -> Record:
    record = world.claim(key, mode=mode)
    steps = (SentStep("", record.downstream_key(), None, "cards"),) if sent else ()
    answer, lease = Answer(status, (), b"no"), record.lease(MINUTE)
    world.run(lambda: world.keys.complete(lease, answer, sent=Sent(steps)))
    return record


def test_a_remembered_failure_runs_once_more(world: World) -> None:
    record = failed(world)
    assert "may be tried again" in reopen(world, record).out
    now = world.read(record.id)
    assert (now.state, now.answer, now.error_code) == (State.FAILED_RETRYABLE, None, "reopened")
    assert world.story(record)[-1] == ("completed", "failed_retryable", "ann")
    ran = reopen(world, record)
    assert ran.code == 1 and "It is failed_retryable" in ran.sentence


def test_the_next_retry_runs_under_the_same_downstream_key(world: World) -> None:
    record = failed(world, "k")
    reopen(world, record)
    again = world.claim("k")
    assert (again.id, again.attempts) == (record.id, 2)
    assert again.downstream_key() == record.downstream_key()


def test_a_dry_run_changes_nothing(world: World) -> None:
    record = failed(world)
    assert "dry run" in reopen(world, record, "--dry-run").out
    assert world.read(record.id).state is State.COMPLETED


def test_what_was_sent_must_be_said_to_be_sent_again(world: World) -> None:
    record = failed(world, sent=True)
    ran = reopen(world, record)
    assert ran.code == 1 and "It has sent something" in ran.sentence
    assert world.read(record.id).state is State.COMPLETED
    assert reopen(world, record, "--sent-again").code == 0


def test_what_atomic_work_may_have_written_must_be_said_to_be_written_again(world: World) -> None:
    record = failed(world, mode=Mode.ATOMIC)
    ran = reopen(world, record)
    assert ran.code == 1 and "It is atomic" in ran.sentence
    assert world.read(record.id).state is State.COMPLETED
    assert reopen(world, record, "--written-again").code == 0


@pytest.mark.parametrize("status", [200, 303])
def test_a_success_is_not_run_again(world: World, status: int) -> None:
    record = failed(world, status=status)
    ran = reopen(world, record, "--sent-again")
    assert ran.code == 1 and "only a failure" in ran.sentence
    assert world.read(record.id).state is State.COMPLETED


def test_phased_and_deferred_work_is_not(world: World) -> None:
    record = failed(world, mode=Mode.PHASED)
    ran = reopen(world, record)
    assert ran.code == 1 and "done twice" in ran.sentence
    assert not world.run(lambda: world.operator.reopen(record.id, ANN, attempt=world.read(record.id).attempt))


def test_nor_is_what_a_provider_says_happened(world: World) -> None:
    record = failed(world, sent=True)
    world.tell(Executed(Response(201)), downstream_key=record.downstream_key(), tenant=None, at=2 * MINUTE)
    ran = reopen(world, record, "--sent-again")
    assert ran.code == 1 and "A provider says that it happened" in ran.sentence
    attempt = world.read(record.id).attempt
    assert not world.run(lambda: world.operator.reopen(record.id, ANN, attempt=attempt))
    assert world.read(record.id).state is State.COMPLETED


# ------------------------------------------------------------------ audit prune


def prune(world: World, *arguments: str) -> Ran:
    return samekey("audit", "prune", *WHY, *arguments, "--url", world.url)


def aged(world: World) -> tuple[Record, Record]:
    """One key that is gone and one that is there, both of last year; and a young one."""
    gone, there = world.completed("gone"), world.completed("there")
    world.sql("delete from {keys} where id = ?", gone.id)
    world.sql("update {audit} set at = at - ?", 400 * DAY)
    world.completed("young")
    return gone, there


def test_old_lines_go_and_the_story_of_a_living_key_stays(world: World) -> None:
    gone, there = aged(world)
    assert prune(world, "--older-than", "365d", "--dry-run").out == "3 lines of the audit would be dropped.\n"
    assert prune(world, "--older-than", "365d", "--batch", "2", "--json").json["pruned"] == 3
    assert world.count("audit", f"operation_id = '{gone.id}'") == 0
    assert world.count("audit", f"operation_id = '{there.id}'") == 2
    assert world.count("audit", "reason = '3 lines older than 365d pruned: limit raised'") == 1
    assert prune(world, "--older-than", "365d").out == "0 lines of the audit were dropped.\n"


def test_of_the_former_lives_of_a_living_key_only_their_ends_stay(world: World) -> None:
    former = world.completed("k", at=-3 * DAY, ttl=DAY)
    world.sql("delete from {keys} where id = ?", former.id)
    world.sql("update {audit} set at = at - ?", 400 * DAY)
    present = world.completed("k")
    assert prune(world, "--older-than", "365d", "--json").json["pruned"] == 2
    assert world.story(present) == [
        ("completed", None, "request"),
        (None, "in_progress", "request"),
        ("in_progress", "completed", "request"),
    ]
    assert world.run(lambda: world.operator.former_lives(present)) == 1


def test_the_reaper_prunes_where_it_is_told_to(world: World) -> None:
    aged(world)

    async def work(audit: timedelta | None) -> int:
        return await Reaper(world.engine.engine, audit=audit).prune_audit()

    assert world.serve(lambda: work(None)) == 0
    assert world.serve(lambda: work(timedelta(days=365))) == 3
