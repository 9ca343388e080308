"""The reaper: forgets what is settled and past retention, nothing else, and stands in nobody's way."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from lab.processes import Racers
from samekey import Idempotency, ietf
from samekey.core.decide import Execute, Gone, Replay
from samekey.core.states import Mode
from samekey.drivers.run import run, run_in
from samekey.engine.events import Event
from samekey.stores.protocols import Actor
from samekey.stores.sql.effects import Effects
from samekey.workers.reaper import Reaper
from tests.chosen import whole, without
from tests.operator import nodes
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, TENANT, World, claim_of
from tests.taking import begin

OLD = -40 * DAY


def reap(world: World, **options: object) -> int:
    return world.serve(Reaper(world.engine.engine, **options).run_once)  # type: ignore[arg-type]


def gone_world(world: World) -> World:
    """The same store under a policy that keeps tombstones."""
    return World(world.url, ietf(after_expiry="gone"))


def begun(world: World) -> None:
    world.pending(at=OLD)
    world.run(lambda: begin(world.jobs, lease_ms=HOUR, batch=1))


UNSETTLED: dict[str, Callable[[World], object]] = {
    "in progress": lambda world: world.claim(at=OLD, ttl=HOUR, lease=80 * DAY),
    "in progress, lease ended": lambda world: world.claim(at=OLD, ttl=HOUR),
    "phased": lambda world: world.phased(at=OLD, ttl=HOUR),
    "unknown": lambda world: world.unknown(at=OLD, ttl=HOUR),
    "dead letter": lambda world: world.dead(at=OLD, ttl=HOUR),
    "pending, begun": begun,
}


@pytest.mark.parametrize("kind", UNSETTLED)
def test_what_is_in_flight_or_unknown_is_never_deleted(world: World, kind: str) -> None:
    UNSETTLED[kind](world)
    [before] = world.sql("select state, expires_at from {keys}")
    assert before[1] < world.now or kind.startswith("pending")
    assert reap(world) == 0
    buried = gone_world(world)
    assert reap(buried, tombstones=timedelta(0)) == 0
    buried.close()
    assert world.sql("select state, expires_at from {keys}") == [before]


def test_only_what_is_past_retention_goes(world: World) -> None:
    old = [world.completed(at=OLD), world.failed(at=OLD)]
    young = [world.completed(), world.failed()]
    assert reap(world) == 2
    assert world.states([*old, *young]) == [None, None, "completed", "failed_retryable"]


def test_the_parts_go_with_their_record(world: World) -> None:
    record, _ = world.pending(at=OLD, ttl=HOUR, second=True)
    reap(world)  # the time-out; its answer is kept for as long as the record was to be
    assert world.count("jobs") == 2
    phased = world.phased(at=OLD, ttl=HOUR)
    world.run(lambda: world.keys.complete(phased.lease(MINUTE), ANSWER, now=world.now + OLD))
    kept = world.phased()
    world.sql("update {keys} set expires_at = 0 where id = ?", record.id)
    assert reap(world) == 2
    assert world.count("jobs") == 0
    assert world.sql("select operation_id from {inputs}") == [(kept.id,)]
    assert world.sql("select operation_id from {phases}") == [(kept.id,)]


def test_in_batches(world: World) -> None:
    for _ in range(25):
        world.completed(at=OLD)
    sizes: list[int] = []

    async def passes() -> None:
        sizes.extend([size async for size in Reaper(world.engine.engine, batch=10).batches()])

    world.serve(passes)
    assert sizes == [10, 10, 5]
    assert world.count("keys") == 0


def test_it_is_counted(world: World) -> None:
    heard: list[Event] = []
    world.engine.events.subscribe(heard.append)
    for _ in range(3):
        world.completed(at=OLD)
    reap(world, batch=2)
    assert [(event.name, event.value) for event in heard] == [("ttl_pruned", 3)]


# ------------------------------------------------------------------ retention


def test_retention_counts_from_completion(world: World) -> None:
    record = world.claim(at=-10 * DAY, ttl=2 * DAY)
    lease = record.lease(MINUTE)
    world.run(lambda: world.keys.complete(lease, None, now=world.now - DAY))
    assert reap(world) == 0
    assert world.read(record).expires_at == world.now + DAY


def test_retention_from_creation_is_a_setting(world: World) -> None:
    record = world.claim(at=-2 * DAY, ttl=DAY, ttl_from="creation")
    lease = record.lease(MINUTE)
    world.run(lambda: world.keys.complete(lease, None, now=world.now - DAY - HOUR))
    assert reap(world) == 1


@pytest.mark.parametrize("ttl", [timedelta(hours=2), timedelta(days=90)])
def test_each_operation_has_its_own(world: World, ttl: timedelta) -> None:
    world.engine.once(tenant="acme", key="k", run=lambda: 1, ttl=ttl)
    record = world.by_key("k")
    assert record.completed_at is not None
    assert timedelta(milliseconds=record.expires_at - record.completed_at) == ttl


def test_it_can_be_extended(world: World) -> None:
    """By the record itself: whoever needs one for longer moves its date."""
    record = world.completed(at=OLD)
    world.sql("update {keys} set expires_at = ? where id = ?", world.now + DAY, record.id)
    assert reap(world) == 0


def test_what_was_found_out_late_is_kept_from_then_on(world: World) -> None:
    record = world.unknown(at=OLD)
    world.run(lambda: world.operator.executed(record.id, None, Actor("ann")))
    assert reap(world) == 0
    assert world.read(record).expires_at >= world.now + DAY


# ------------------------------------------------------------------ tombstones


def test_a_key_that_is_gone_never_runs_again(world: World) -> None:
    """Whatever reaps, under whatever policy, and however long ago it was."""
    record = world.completed("k", at=OLD, after_expiry="gone")  # one handler's own choice
    other = world.completed("other", at=OLD)
    claim = claim_of("k", Mode.LEASED, MINUTE, DAY, "acme", "POST /payments")
    for _ in range(3):
        reap(world, tombstones=timedelta(seconds=1))
        stone = world.read(record)
        assert (stone.state, stone.answer, stone.id) == ("expired", None, record.id)
        asked = world.run(
            lambda: world.keys.claim(claim, world.engine.engine.policy, now=world.now + 4000 * DAY)
        )
        assert isinstance(asked, Gone)
        world.sql("update {keys} set expires_at = 1")
    assert world.find(other) is None
    assert [(b, a) for b, a, _ in world.story(record)] == [
        (None, "in_progress"),
        ("in_progress", "completed"),
        ("completed", "expired"),
    ]


def test_the_tombstone_of_another_goes_in_its_time(world: World) -> None:
    record = world.completed("k", at=OLD)
    assert reap(world, soft=True, tombstones=timedelta(days=30)) == 1
    stone = world.read(record)
    assert (stone.state, stone.answer) == ("expired", None)
    assert stone.expires_at >= world.now + 30 * DAY
    assert reap(world) == 0, "its time is not over"
    world.sql("update {keys} set expires_at = ? where id = ?", world.now - 1, record.id)
    assert reap(world) == 1
    assert world.find(record) is None


def test_jobs_that_are_to_run_or_to_be_seen_keep_their_operation(world: World) -> None:
    """Its answer has been given long ago; a job beside it is still waiting, or dead."""
    for state in ("live", "dead"):
        record, _ = world.pending(at=OLD, ttl=HOUR, second=True)
        world.sql("update {jobs} set state = 'done' where operation_id = ? and answers = 1", record.id)
        world.sql("update {jobs} set state = ? where operation_id = ? and answers = 0", state, record.id)
        world.sql(
            "update {keys} set state = 'completed', answer_version = 1, expires_at = 1 where id = ?",
            record.id,
        )
        assert reap(world) == 0
        assert world.count("jobs") == 2 and world.find(record) is not None
        world.sql("update {jobs} set state = 'discarded' where operation_id = ? and answers = 0", record.id)
        assert reap(world) == 1
        assert world.count("jobs") == 0 and world.find(record) is None


def test_an_effect_that_stands_keeps_its_operation(world: World) -> None:
    """A second life would send its downstream key again."""
    phased = world.phased(at=OLD, ttl=HOUR)
    lease, moment = phased.lease(MINUTE), world.now + OLD
    write = world.phases.write_effect
    world.run(lambda: write(lease, phased.id, 0, "charge", b"1", provider_id="ch_1", source=None, now=moment))
    world.run(lambda: world.keys.fail(lease, "code", now=moment))
    assert reap(world) == 0 and reap(world, soft=True) == 0
    again = claim_of(phased.key, Mode.PHASED, MINUTE, DAY, TENANT, phased.endpoint)
    decision = world.run(lambda: world.keys.claim(again, ietf(), now=world.now))
    assert isinstance(decision, Execute) and not decision.reused
    assert (decision.record.id, decision.record.life) == (phased.id, 1), "it goes on where it was"


def test_an_effect_that_was_not_carried_out_keeps_nothing(world: World) -> None:
    """Only proof has freed the key; otherwise a table would grow by every client that never came back."""
    phased = world.phased(at=OLD, ttl=HOUR)
    world.run(lambda: world.keys.fail(phased.lease(MINUTE), "code", now=world.now + OLD))
    assert reap(world) == 1


@pytest.mark.parametrize("state", ["conflict", "ambiguous"])
def test_a_word_that_somebody_must_see_to_keeps_its_operation(world: World, state: str) -> None:
    record = world.completed(at=OLD, ttl=HOUR)
    world.sql(
        "insert into {evidence}"
        " (source, event_id, operation_id, outcome, says, state, occurred_at, received_at)"
        " values (?, ?, ?, ?, ?, ?, 1, 1)",
        *("cards", "e1", record.id, b"{}", "declined", state),
    )
    assert reap(world) == 0 and reap(world, soft=True) == 0
    claim = claim_of(record.key, Mode.LEASED, MINUTE, DAY, TENANT, record.endpoint)
    assert isinstance(world.run(lambda: world.keys.claim(claim, ietf(), now=world.now)), Replay)
    effects = Effects(world.operator, world.engine.engine.queries)
    world.run(lambda: effects.dismiss("cards", "e1", Actor("ann", "seen to"), record.id))
    assert reap(world) == 1


def test_a_tombstone_over_http(world: World) -> None:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from samekey.asgi import IdempotencyMiddleware
    from samekey.tenants import single_tenant

    buried = gone_world(world)
    ran: list[int] = []

    @buried.engine.leased
    async def pay(_request: object) -> JSONResponse:
        ran.append(1)
        return JSONResponse({"id": 7}, 201)

    app = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=buried.engine, tenant=single_tenant())
    with TestClient(app) as client:
        headers = {"Idempotency-Key": "k"}
        assert client.post("/payments", headers=headers).status_code == 201
        for _ in range(3):  # also long after the tombstones of others have gone
            buried.sql("update {keys} set expires_at = 1")
            buried.run(lambda: buried.upkeep.reap(batch=10, keep_ms=DAY))
            gone = client.post("/payments", headers=headers)
            assert (gone.status_code, gone.json()["code"]) == (410, "expired")
        client.portal.call(buried.engine.aclose)  # type: ignore[union-attr]
    assert ran == [1]


# ------------------------------------------------------------------ at the same time


@without(store_url="mariadb")
@whole
def test_two_reapers_in_two_processes(world: World) -> None:
    for _ in range(120):
        world.completed(at=OLD)
    with Racers(2) as racers:
        reaped = racers.race(nodes.reap, world.url, 7)
        racers.race(nodes.leave)
    assert sum(reaped) == 120
    assert world.count("keys") == 0
    assert world.count("audit", "to_state is null") == 120


def test_a_reaper_passes_by_what_another_holds(pg: World) -> None:
    held, _ = pg.completed(at=OLD), pg.completed(at=OLD)
    with psycopg.connect(pg.url) as other:
        other.execute("select from samekey.keys where id = %s for update", [held.id])
        assert reap(pg) == 1
    assert reap(pg) == 1


def test_no_claim_waits_for_an_open_reap(pg: World) -> None:
    """A reaper's transaction is open with its rows deleted: a new key, a young key and a retry go through."""
    young = pg.failed("young")
    for _ in range(20):
        pg.completed(at=OLD)
    session = pg.engine.engine.drivers.sync.open()
    assert run_in(session, pg.upkeep.reap(batch=100)) == 20
    engine, answered = Idempotency(pg.url, timeout=30), []

    def requests() -> None:
        for key in ("new", "young"):
            claim = claim_of(key, Mode.LEASED, MINUTE, DAY, "acme", "POST /payments")
            claimed = functools.partial(engine.engine.keys.claim, claim, ietf())
            answered.append(run(engine.engine.drivers.sync, claimed))

    thread = threading.Thread(target=requests)
    thread.start()
    thread.join(30)
    assert all(isinstance(decision, Execute) for decision in answered) and len(answered) == 2
    assert pg.read(young).state == "in_progress"
    session.commit()
    assert pg.count("keys") == 2
    engine.close()


def test_a_key_that_is_claimed_anew_is_not_reaped_under_its_holder(locking: World) -> None:
    """The claim is first: its row is locked, the reaper passes by, and then the key is young again."""
    record = locking.completed("k", at=OLD)
    claim = claim_of("k", Mode.LEASED, MINUTE, DAY, "acme", "POST /payments")
    session = locking.engine.engine.drivers.sync.open()
    begun = run_in(session, locking.keys.claim(claim, ietf()))
    assert isinstance(begun, Execute) and begun.reused
    assert reap(locking) == 0
    session.commit()
    assert reap(locking) == 0
    assert locking.read(begun.record).state == "in_progress"
    assert locking.find(record) is None, "its former life is another operation"
