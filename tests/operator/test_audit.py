"""Every transition leaves one line in the audit, with who and why; and the audit outlives the key."""

from __future__ import annotations

import pytest

from samekey import Declined, Executed, NotExecuted, OutcomeUnknown, Response
from samekey.core.record import Record
from samekey.core.states import Mode
from samekey.stores.protocols import Actor
from samekey.workers.reaper import Reaper
from samekey.workers.reconciler import Reconciler
from samekey.workers.sweeper import Sweeper
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, World

ANN = Actor("ann", "ticket 4711")


def reasons(world: World, record: Record) -> list[str | None]:
    return [step.reason for step in world.timeline(record)]


def test_a_request_is_two_lines(world: World) -> None:
    record = world.completed()
    assert world.story(record) == [
        (None, "in_progress", "request"),
        ("in_progress", "completed", "request"),
    ]


def test_a_failure_and_its_retry(world: World) -> None:
    record = world.failed("again")
    world.claim("again")
    assert world.story(record) == [
        (None, "in_progress", "request"),
        ("in_progress", "failed_retryable", "request"),
        ("failed_retryable", "in_progress", "request"),
    ]
    assert reasons(world, record) == [None, "status_500", None]
    attempts = [step.attempt for step in world.timeline(record)]
    assert attempts[0] == attempts[1] != attempts[2]


def test_a_release_is_the_end_of_the_record_and_not_of_its_story(world: World) -> None:
    record = world.claim()
    world.run(lambda: world.keys.release(record.lease(MINUTE)))
    assert world.find(record) is None
    assert world.story(record)[-1] == ("in_progress", None, "request")


def test_a_late_result_of_the_holder(world: World) -> None:
    record = world.unknown()
    world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER))
    assert world.story(record)[-1] == ("unknown", "completed", "request")


@pytest.mark.parametrize(
    ("mode", "becomes"),
    [
        (Mode.LEASED, "unknown"),
        (Mode.REPEATABLE, "failed_retryable"),
        (Mode.ATOMIC, "failed_retryable"),
        (Mode.DEFERRED, "failed_retryable"),
    ],
)
def test_the_sweeper_signs_what_it_does(world: World, mode: Mode, becomes: str) -> None:
    record = world.claim(mode=mode, at=-HOUR)
    assert world.serve(Sweeper(world.engine.engine).run_once) == 1
    assert world.story(record)[1:] == [("in_progress", becomes, "sweeper")]
    assert reasons(world, record) == [None, "lease_ended"]


def test_a_retry_that_ends_a_lease_is_a_request(world: World) -> None:
    """S5 by the request itself, which does not wait for the sweeper."""
    record = world.claim("held", mode=Mode.REPEATABLE, at=-HOUR)
    world.claim("held", mode=Mode.REPEATABLE)
    assert world.story(record)[1:] == [
        ("in_progress", "failed_retryable", "request"),
        ("failed_retryable", "in_progress", "request"),
    ]


def test_the_reaper_signs_and_the_timeline_stays(world: World) -> None:
    record = world.completed(at=-2 * DAY)
    assert world.serve(Reaper(world.engine.engine).run_once) == 1
    assert world.find(record) is None
    assert world.story(record)[-1] == ("completed", None, "reaper")
    assert reasons(world, record)[-1] == "retention is over"
    by_id = world.run(lambda: world.operator.timeline_of(record.id))
    assert [*by_id] == world.timeline(record)


def test_a_time_out_is_the_reapers(world: World) -> None:
    record, _ = world.pending(at=-2 * DAY, ttl=30 * DAY)
    world.serve(Reaper(world.engine.engine).run_once)
    assert world.story(record)[-1] == ("pending", "completed", "reaper")
    assert reasons(world, record)[-1] == "nobody started it in time"


@pytest.mark.parametrize(
    ("finding", "becomes"),
    [
        (Executed(Response(201, {"id": 1})), "completed"),
        (Declined(Response(402, {"no": 1})), "completed"),
        (NotExecuted, "failed_retryable"),
    ],
)
def test_the_reconciler_signs(world: World, finding: object, becomes: str) -> None:
    record = world.unknown(at=-HOUR)
    world.engine.lookup()(lambda _: finding)
    assert world.serve(Reconciler(world.engine.engine).run_once) == 1
    assert world.story(record)[2:] == [("unknown", becomes, "reconciler")]
    assert reasons(world, record)[-1] == "lookup, try 1"


def test_giving_up_is_signed_too(world: World) -> None:
    record = world.unknown(at=-HOUR)
    world.serve(Reconciler(world.engine.engine, max_tries=1).run_once)
    assert world.story(record)[2:] == [("unknown", "dead_letter", "reconciler")]
    assert reasons(world, record)[-1] == "given up after 1 tries: there is no lookup for this endpoint"


def test_a_webhook_signs(world: World) -> None:
    record = world.unknown()
    world.tell(Executed(Response(200)), "evt_1", operation_id=record.id)
    assert world.story(record)[2:] == [("unknown", "completed", "webhook")]
    assert reasons(world, record)[-1] == "event evt_1 of cards"


def test_an_operator_signs_every_override(world: World) -> None:
    operator, run = world.operator, world.run
    resolved, refused = world.unknown(), world.unknown()
    run(lambda: operator.executed(resolved.id, ANSWER, ANN))
    run(lambda: operator.not_executed(refused.id, ANN))
    run(lambda: operator.evict(resolved.id, ANN))
    assert world.story(resolved)[2:] == [("unknown", "completed", "ann"), ("completed", "completed", "ann")]
    assert world.story(refused)[2:] == [("unknown", "failed_retryable", "ann")]
    assert reasons(world, resolved)[2:] == ["ticket 4711", "ticket 4711"]


def test_an_operator_signs_for_dead_letters(world: World) -> None:
    operator, run = world.operator, world.run
    (retried, job), (discarded, other) = world.dead_job(), world.dead_job()
    phased = world.phased()
    run(lambda: world.phases.give_up(phased.lease(MINUTE), error_code="boom"))
    assert run(lambda: operator.retry_dead_job(job, ANN))
    assert run(lambda: operator.discard_dead_job(other, ANSWER, ANN))
    assert run(lambda: operator.retry_dead_operation(phased.id, ANN))
    assert world.story(retried)[-1] == ("dead_letter", "pending", "ann")
    assert world.story(discarded)[-1] == ("dead_letter", "completed", "ann")
    assert world.story(phased)[-1] == ("dead_letter", "in_progress", "ann")


def test_what_changed_nothing_leaves_no_line(world: World) -> None:
    record = world.completed()
    before = world.count("audit")
    operator, run = world.operator, world.run
    assert not run(lambda: operator.executed(record.id, ANSWER, ANN))
    assert not run(lambda: operator.not_executed(record.id, ANN))
    assert not run(lambda: operator.give_up(record.id, ANN))
    assert not run(lambda: operator.retry_dead_job("no such job", ANN))
    assert not run(lambda: operator.discard_dead_job("no such job", ANSWER, ANN))
    assert not run(lambda: operator.discard_dead_operation(record.id, ANSWER, ANN))
    world.serve(Sweeper(world.engine.engine).run_once)
    world.serve(Reaper(world.engine.engine).run_once)
    assert world.count("audit") == before


def test_the_next_request_is_not_signed_with_the_operators_name(world: World) -> None:
    """Whoever acts is told to one transaction, also where nothing came of it."""
    record = world.unknown()
    operator, run = world.operator, world.run
    run(lambda: operator.executed("no such operation", ANSWER, ANN))
    run(lambda: operator.discard_dead_job("no such job", ANSWER, ANN))
    run(lambda: operator.executed(record.id, ANSWER, ANN))
    later = world.completed()
    assert {actor for _, _, actor in world.story(later)} == {"request"}
    if world.engine.engine.drivers.dialect == "sqlite":
        assert world.sql("select count(*) from samekey_actor") == [(0,)]


def test_real_handlers_leave_one_line_for_each_transition(world: World) -> None:
    def lost() -> None:
        raise OutcomeUnknown("the provider hung up")

    once = world.engine.once
    assert once(tenant="acme", key="a", run=lambda: 1) == 1
    assert once(tenant="acme", key="a", run=lambda: 2) == 1
    with pytest.raises(OutcomeUnknown):
        once(tenant="acme", key="b", run=lost)
    with pytest.raises(OutcomeUnknown):
        once(tenant="acme", key="b", run=lost)
    assert len(world.timeline(world.by_key("a"))) == 2
    assert world.story(world.by_key("b")) == [
        (None, "in_progress", "request"),
        ("in_progress", "unknown", "request"),
    ]


def test_nothing_but_the_trigger_writes_a_transition(world: World) -> None:
    """A state that is changed by hand is in the audit too."""
    record = world.completed()
    world.sql("update {keys} set state = 'expired' where id = ?", record.id)
    assert world.story(record)[-1] == ("completed", "expired", "request")


def test_a_domain_table_loses_the_reference_and_keeps_its_row(pg: World) -> None:
    pg.sql("drop table if exists payments")
    pg.sql("create table payments (operation text references samekey.keys (id) on delete set null)")
    old, young = pg.completed(at=-2 * DAY), pg.completed()
    for record in (old, young):
        pg.sql("insert into payments values (?)", record.id)
    assert pg.serve(Reaper(pg.engine.engine).run_once) == 1
    assert pg.sql("select operation from payments order by operation nulls first") == [(None,), (young.id,)]
    assert len(pg.timeline(old)) == 3
    pg.sql("drop table payments")


def test_a_domain_table_on_sqlite(lite: World) -> None:
    """With foreign keys switched on, as they must be on each connection there."""
    lite.sql("create table payments (operation text references samekey_keys (id) on delete set null)")
    record = lite.completed(at=-2 * DAY)
    lite.sql("insert into payments values (?)", record.id)
    session = lite.engine.engine.drivers.sync.open()
    session.rollback()
    connection = lite.engine.engine.drivers.sync.take()  # type: ignore[attr-defined]
    connection.execute("pragma foreign_keys = on")
    connection.execute("delete from samekey_keys where id = ?", (record.id,))
    lite.engine.engine.drivers.sync.give_back(connection)  # type: ignore[attr-defined]
    assert lite.sql("select operation from payments") == [(None,)]


@pytest.mark.parametrize("act", ["retry", "discard"])
def test_an_act_on_a_job_whose_operation_is_gone_leaves_its_trace(world: World, act: str) -> None:
    record, job = world.dead_job()
    world.sql("update {jobs} set answers = 0 where id = ?", job)
    world.sql("delete from {keys} where id = ?", record.id)
    before = world.count("audit")
    who = Actor("ann", "seen to")
    if act == "retry":
        assert world.run(lambda: world.operator.retry_dead_job(job, who))
    else:
        assert world.run(lambda: world.operator.discard_dead_job(job, ANSWER, who))
    told = world.run(lambda: world.operator.timeline_of(record.id))[-1]
    assert world.count("audit") == before + 1
    assert (told.actor, told.reason, told.before) == ("ann", "seen to", "dead")


MOST = 100
"""Lines about tries that came to nothing: of one operation, and of one key in a day."""


def test_a_key_that_fails_for_ever_does_not_fill_the_audit(world: World) -> None:
    record = world.failed("again")
    for _ in range(MOST):
        world.run(lambda: world.keys.fail(world.claim("again").lease(MINUTE), "status_500"))
    assert world.count("audit") == MOST
    assert world.read(record).attempts == MOST + 1, "how often it was tried stands in the record"
    last = world.claim("again")
    world.run(lambda: world.keys.complete(last.lease(MINUTE), ANSWER))
    assert world.story(record)[-1] == ("in_progress", "completed", "request"), "what came of it is written"


def test_a_key_that_is_released_for_ever_does_not_fill_the_audit(world: World) -> None:
    for _ in range(MOST):
        world.run(lambda: world.keys.release(world.claim("again").lease(MINUTE)))
    assert world.count("audit") == MOST
    record = world.claim("again")
    world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER))
    assert world.story(record)[-1] == ("in_progress", "completed", "request")
    world.sql("delete from {keys} where id = ?", record.id)
    assert world.story(record)[-1] == ("completed", None, "request"), "a life that ends is written"
    world.sql("update {audit} set at = at - ?", 2 * DAY)
    assert world.story(world.claim("again"))[-1] == (None, "in_progress", "request"), "another day"


def test_whoever_acts_otherwise_always_signs(world: World) -> None:
    record = world.failed("again", mode=Mode.REPEATABLE)
    for _ in range(MOST // 2):
        claimed = world.claim("again", mode=Mode.REPEATABLE)
        world.run(lambda claimed=claimed: world.keys.fail(claimed.lease(MINUTE), "status_500"))  # type: ignore[misc]
    world.claim("again", mode=Mode.REPEATABLE, at=-HOUR)
    assert world.serve(Sweeper(world.engine.engine).run_once) == 1
    assert world.story(record)[-1] == ("in_progress", "failed_retryable", "sweeper")
