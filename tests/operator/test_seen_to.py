"""What a provider has said of something that is settled: it agrees, or an operator sees that it does not."""

from __future__ import annotations

import pytest

from samekey import Declined, Executed, NotExecuted, Resolution, Response
from samekey.core.record import Answer, Record
from samekey.core.states import Mode, State
from samekey.stores.protocols import Actor
from samekey.stores.sql.phases import StoredInput
from samekey.workers.reconciler import Reconciler
from tests.operator.command import Ran, samekey
from tests.operator.world import DAY, HOUR, MINUTE, SOURCE, TENANT, World
from tests.taking import begin

YES = Executed(Response(201, {}))
DECLINED = Declined(Response(402, {}))


def evidence(world: World, *arguments: str) -> Ran:
    return samekey("evidence", *arguments, "--url", world.url)


def resolve(world: World, record: Record, *arguments: str) -> Ran:
    why = ("--reason", "ticket 9", "--actor", "ann", "--url", world.url)
    return samekey("keys", "resolve", record.id, *arguments, *why)


def heard_early(world: World, said: object, event_id: str, status: int, key: str | None = None) -> Record:
    """A webhook that overtakes its own call."""
    record = world.claim(key)
    told = world.tell(said, event_id, at=1, downstream_key=record.downstream_key())  # type: ignore[arg-type]
    assert told is Resolution.KEPT
    world.run(lambda: world.keys.complete(record.lease(MINUTE), Answer(status)))
    return record


def reconcile(world: World) -> None:
    world.serve(lambda: Reconciler(world.engine.engine).run_once())


def states(world: World) -> dict[str, str]:
    return {str(name): str(state) for name, state in world.sql("select event_id, state from {evidence}")}


@pytest.mark.parametrize(
    ("said", "status", "becomes"),
    [
        (YES, 201, "used"),
        (DECLINED, 402, "used"),
        (DECLINED, 201, "conflict"),
        (NotExecuted, 402, "used"),
        (NotExecuted, 201, "conflict"),
    ],
)
def test_what_came_before_its_calls_own_end_does_not_wait_for_ever(
    world: World, said: object, status: int, becomes: str
) -> None:
    record = heard_early(world, said, "e1", status)
    reconcile(world)
    assert [event.state for event in world.run(lambda: _shown(world, record))] == (
        ["conflict"] if becomes == "conflict" else []
    )
    assert world.count("evidence", f"state = '{becomes}'") == 1
    again = world.tell(said, "e1", at=1, downstream_key=record.downstream_key())  # type: ignore[arg-type]
    assert again is Resolution.DUPLICATE
    settled = world.read(record)
    assert settled.state is State.COMPLETED
    assert settled.answer is not None and settled.answer.status == status


def test_an_early_yes_that_the_answer_contradicts_waits_for_somebody(world: World) -> None:
    record = heard_early(world, YES, "e1", 402)
    reconcile(world)
    assert [event.state for event in world.run(lambda: _shown(world, record))] == ["waiting"]
    assert world.read(record).state is State.UNKNOWN


def _shown(world: World, record: Record):  # type: ignore[no-untyped-def]
    return world.engine.engine.store.tables.effects.shown(record.id)


def test_a_yes_about_an_effect_that_was_given_up_is_seen(world: World) -> None:
    record = world.claim(mode=Mode.PHASED)
    lease = record.lease(MINUTE)
    world.run(lambda: world.phases.begin(lease, record.id, StoredInput("ride", 1, b"{}")))
    world.run(lambda: world.phases.intend(lease, record.id, 0, "charge", source=SOURCE))
    world.run(lambda: world.keys.lose(lease, "TimeoutError"))
    ann = Actor("ann", "ticket 9")
    assert world.run(lambda: world.operator.give_up(record.id, ann))
    assert world.run(lambda: world.operator.discard_dead_operation(record.id, Answer(500), ann))
    said = world.tell(Executed({"id": "ch_1"}, "ch_1"), "e1", at=500, operation_id=record.id, step="charge")
    assert said is Resolution.TOO_LATE
    assert [event.state for event in world.run(lambda: _shown(world, record))] == ["conflict"]


def test_a_no_about_a_former_attempt_contradicts_nothing(world: World) -> None:
    failed = world.failed("k", at=-HOUR)
    record = world.claim("k")
    assert record.id == failed.id and record.attempts == 2
    early = {"at": -HOUR + 1, "downstream_key": record.downstream_key()}
    assert world.tell(NotExecuted, "e1", **early) is Resolution.KEPT  # type: ignore[arg-type]
    world.run(lambda: world.keys.complete(record.lease(MINUTE), Answer(201)))
    reconcile(world)
    assert world.count("evidence", "state = 'late'") == 1


def test_a_word_that_contradicts_an_answer_is_seen_when_it_comes_late_too(world: World) -> None:
    record = world.claim()
    world.run(lambda: world.keys.complete(record.lease(MINUTE), Answer(402)))
    assert world.tell(YES, "e1", at=1, downstream_key=record.downstream_key()) is Resolution.TOO_LATE
    assert [row["state"] for row in evidence(world, "list", "--json").json["events"]] == ["conflict"]
    assert "contradicts the answer" in samekey("keys", "show", record.id, "--url", world.url).out


def test_what_somebody_must_see_to_is_not_hidden_by_what_waits(world: World) -> None:
    for number in range(5):
        heard_early(world, YES, f"early{number}", 201)
    heard_early(world, DECLINED, "conflict", 201)
    for _ in range(2):
        record = world.unknown()
        world.run(lambda record=record: _made(world, record))  # type: ignore[misc]
    assert world.tell(YES, "both", provider_id="ch_1", tenant=TENANT) is Resolution.AMBIGUOUS
    listed = [row["id"] for row in evidence(world, "list", "--json", "--limit", "2").json["events"]]
    assert listed == ["both", "both"]
    reconcile(world)
    rows = evidence(world, "list", "--json").json["events"]
    assert sorted(row["id"] for row in rows) == ["both", "both", "conflict"]
    ran = samekey("doctor", "--url", world.url)
    assert ran.code == 1 and "1 contradict an answer, 2 fit more than one operation" in ran.out


def _made(world: World, record: Record):  # type: ignore[no-untyped-def]
    return world.engine.engine.store.tables.effects.note_call(record, "ch_1", SOURCE)


def test_who_dismisses_an_event_says_why_and_is_audited(world: World) -> None:
    record = heard_early(world, DECLINED, "e1", 201)
    reconcile(world)
    dismiss = ("dismiss", SOURCE, "e1", "--operation", record.id)
    assert evidence(world, *dismiss).code == 2, "without a reason"
    assert states(world) == {"e1": "conflict"}
    why = ("--reason", "refunded by hand", "--actor", "ann")
    assert evidence(world, *dismiss, *why).code == 0
    act = world.timeline(record)[-1]
    assert act.actor == "ann" and act.reason is not None
    assert act.reason == f"dismissed event e1 of {SOURCE}, which said declined: refunded by hand"
    lines = len(world.timeline(record))
    assert evidence(world, *dismiss, *why).code == 1, "it was dismissed before"
    assert len(world.timeline(record)) == lines


def test_a_job_that_still_runs_keeps_its_operation_and_goes_with_it(world: World) -> None:
    world.pending("k", ttl=2 * HOUR, second=True, at=-3 * HOUR)
    past = world.now - 3 * HOUR
    jobs = {job.answers: job for job in world.run(lambda: begin(world.jobs, batch=10, now=past))}
    world.run(lambda: world.jobs.finish(jobs[True], Answer(201), None, now=past))
    assert world.run(lambda: world.upkeep.reap(batch=100, now=world.now + 40 * DAY)) == 0
    assert world.count("jobs") == 2, "one may still run"
    world.run(lambda: world.jobs.finish(jobs[False], None, None, now=world.now))
    assert world.run(lambda: world.upkeep.reap(batch=100, now=world.now + 40 * DAY)) == 1
    assert world.count("jobs") == 0


def test_a_dry_run_foretells_a_contradiction(world: World) -> None:
    record = world.claim()
    two = {"at": 1, "downstream_key": record.downstream_key("capture")}
    assert world.tell(YES, "e1", **two) is Resolution.KEPT  # type: ignore[arg-type]
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "lost"))
    before = (world.read(record), len(world.timeline(record)), states(world))
    dry = resolve(world, record, "--not-executed", "--dry-run")
    assert dry.code == resolve(world, record, "--not-executed").code != 0
    assert "e1" in dry.sentence
    despite = resolve(world, record, "--not-executed", "--despite", "cards:e1", "--dry-run")
    assert despite.code == 0 and "failed_retryable" in despite.out
    assert before == (world.read(record), len(world.timeline(record)), states(world))


def test_a_dry_run_foretells_that_half_done_work_goes_on(world: World) -> None:
    record = world.phased()
    lease = record.lease(MINUTE)
    write = world.phases.write_effect
    world.run(lambda: write(lease, record.id, 0, "charge", b"1", provider_id=None, source=None))
    world.run(lambda: world.phases.intend(lease, record.id, 1, "capture"))
    world.run(lambda: world.keys.lose(lease, "lost"))
    assert world.read(record).state is State.UNKNOWN
    dry = resolve(world, record, "--not-executed", "--dry-run")
    assert "would become in_progress: the run goes on" in dry.out
    assert world.read(record).state is State.UNKNOWN
    assert "is in_progress now: the run goes on" in resolve(world, record, "--not-executed").out
