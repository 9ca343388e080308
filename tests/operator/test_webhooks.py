"""What a provider says by itself: counted once, checked, kept if early, too late if late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from samekey import Declined, Executed, NotExecuted, Response, StillUnknown
from samekey.core.claim import downstream_key
from samekey.core.record import Record
from samekey.engine.reconcile import Resolution
from samekey.errors import ConfigurationError, SignatureRefused
from samekey.stores.protocols import Actor
from samekey.workers.reconciler import Reconciler
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, World

PAID = Executed(Response(201, {"id": "ch_1"}))
DECLINED = Declined(Response(402, {"error": "no"}))


def status(world: World, record: Record) -> int | None:
    answer = world.read(record).answer
    return None if answer is None else answer.status


def noting(asked: list[Record]) -> Callable[[Record], type[StillUnknown]]:
    def lookup(record: Record) -> type[StillUnknown]:
        asked.append(record)
        return StillUnknown

    return lookup


def reconcile(world: World) -> int:
    return world.serve(Reconciler(world.engine).run_once)


def test_it_settles_an_unknown_outcome(world: World) -> None:
    record = world.unknown()
    assert world.engine.resolve(PAID, event_id="e1", operation_id=record.id) is Resolution.RESOLVED
    assert status(world, record) == 201


def test_it_settles_a_dead_letter(world: World) -> None:
    record = world.dead()
    assert world.engine.resolve(DECLINED, event_id="e1", operation_id=record.id) is Resolution.RESOLVED
    assert status(world, record) == 402


def test_it_may_say_that_nothing_happened(world: World) -> None:
    record = world.unknown("k")
    assert world.engine.resolve(NotExecuted, event_id="e1", operation_id=record.id) is Resolution.RESOLVED
    assert world.claim("k").id == record.id


def test_async_code(world: World) -> None:
    record = world.unknown()
    found = world.serve(lambda: world.engine.resolve_async(PAID, event_id="e1", operation_id=record.id))
    assert found is Resolution.RESOLVED


# ------------------------------------------------------------------ which operation


def test_by_each_of_the_three_ids(world: World) -> None:
    records = [world.unknown() for _ in range(2)]
    third = world.claim()
    world.run(lambda: world.keys.lose(third.lease(MINUTE), "x", provider_id="ch_9"))
    found = world.engine.resolve
    assert found(PAID, event_id="e1", operation_id=records[0].id) is Resolution.RESOLVED
    sent = downstream_key(records[1].scope, records[1].key, "charge")
    assert found(PAID, event_id="e2", downstream_key=sent) is Resolution.RESOLVED
    assert found(PAID, event_id="e3", provider_id="ch_9") is Resolution.RESOLVED
    assert world.states([*records, third]) == ["completed"] * 3


def test_the_provider_s_id_can_come_with_the_event(world: World) -> None:
    record = world.unknown()
    world.engine.resolve(Executed(Response(201), "ch_5"), event_id="e1", operation_id=record.id)
    assert world.engine.find_by_provider_id("ch_5") == world.read(record)


@pytest.mark.parametrize("ids", [{}, {"operation_id": "a", "provider_id": "b"}])
def test_exactly_one_id(world: World, ids: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="needs one of"):
        world.engine.resolve(PAID, event_id="e1", **ids)


def test_an_event_about_nothing_may_come_again(world: World) -> None:
    """By the provider's id it cannot be found before the handler has told it: a later delivery counts."""
    assert world.engine.resolve(PAID, event_id="e1", provider_id="ch_1") is Resolution.NOT_FOUND
    record = world.claim()
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "x", provider_id="ch_1"))
    assert world.engine.resolve(PAID, event_id="e1", provider_id="ch_1") is Resolution.RESOLVED


# ------------------------------------------------------------------ the signature


def test_a_wrong_signature_is_refused_before_any_look(world: World) -> None:
    record = world.unknown()
    with pytest.raises(SignatureRefused):
        world.engine.resolve(PAID, event_id="e1", operation_id=record.id, verify=lambda: False)
    assert world.read(record).state == "unknown"
    assert world.count("evidence") == 0
    assert (
        world.engine.resolve(PAID, event_id="e1", operation_id=record.id, verify=lambda: True)
        is Resolution.RESOLVED
    )


def test_a_check_that_raises_refuses_too(world: World) -> None:
    record = world.unknown()

    def verify() -> bool:
        raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        world.engine.resolve(PAID, event_id="e1", operation_id=record.id, verify=verify)
    assert world.read(record).state == "unknown"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_check_that_was_never_awaited_lets_nobody_in(world: World) -> None:
    """A coroutine is true, whatever it would have said."""
    record = world.unknown()

    async def verify() -> bool:
        return False

    async def receive() -> object:
        check: Any = verify
        return await world.engine.resolve_async(PAID, event_id="e1", operation_id=record.id, verify=check)

    with pytest.raises((SignatureRefused, ConfigurationError)):
        world.serve(receive)
    assert world.read(record).state == "unknown"


# ------------------------------------------------------------------ only what is certain


@pytest.mark.parametrize(
    "rubbish", [StillUnknown, StillUnknown(), None, "paid", Response(201), Executed, True]
)
def test_what_is_no_evidence_is_not_taken_for_a_no(world: World, rubbish: Any) -> None:
    record = world.unknown()
    with pytest.raises(ConfigurationError, match="settles nothing"):
        world.engine.resolve(rubbish, event_id="e1", operation_id=record.id)
    assert world.read(record).state == "unknown"
    assert world.count("evidence") == 0


# ------------------------------------------------------------------ twice, early, late, out of order


def test_the_same_event_counts_once(world: World) -> None:
    record = world.unknown("k")
    resolve = world.engine.resolve
    assert resolve(NotExecuted, event_id="e1", operation_id=record.id) is Resolution.RESOLVED
    world.unknown("k")
    assert resolve(NotExecuted, event_id="e1", operation_id=record.id) is Resolution.DUPLICATE
    assert world.read(record).state == "unknown"


@pytest.mark.parametrize("evidence", [PAID, DECLINED, NotExecuted])
def test_early_is_kept_and_used_when_the_outcome_becomes_unknown(world: World, evidence: Any) -> None:
    record = world.claim()
    assert world.engine.resolve(evidence, event_id="e1", operation_id=record.id) is Resolution.KEPT
    assert world.read(record).state == "in_progress"
    assert world.engine.resolve(evidence, event_id="e1", operation_id=record.id) is Resolution.DUPLICATE
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "timeout"))
    assert reconcile(world) == 1
    assert world.read(record).state == ("failed_retryable" if evidence is NotExecuted else "completed")
    step = world.timeline(record)[-1]
    assert (step.actor, step.reason) == (
        "webhook",
        "event e1, received before the outcome became unknown",
    )


def test_early_evidence_needs_no_lookup_and_spares_it(world: World) -> None:
    asked: list[Record] = []
    world.engine.lookup()(noting(asked))
    record = world.claim()
    world.engine.resolve(PAID, event_id="e1", operation_id=record.id)
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "timeout"))
    reconcile(world)
    assert asked == []


def test_early_evidence_about_work_that_ends_well_is_never_used(world: World) -> None:
    record = world.claim()
    world.engine.resolve(DECLINED, event_id="e1", operation_id=record.id)
    world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER, ttl_ms=DAY))
    assert reconcile(world) == 0
    assert world.read(record).answer == ANSWER


@pytest.mark.parametrize("evidence", [DECLINED, NotExecuted])
def test_a_no_about_one_attempt_says_nothing_about_the_next(world: World, evidence: Any) -> None:
    record = world.claim("k", at=-HOUR)
    world.engine.resolve(evidence, event_id="e1", operation_id=record.id)
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "status_500"))
    again = world.claim("k", at=MINUTE)
    world.run(lambda: world.keys.lose(again.lease(MINUTE), "timeout"))
    assert reconcile(world) == 0
    assert world.read(record).state == "unknown"


def test_that_it_happened_is_true_for_every_later_attempt(world: World) -> None:
    record = world.claim("k", at=-HOUR)
    world.engine.resolve(PAID, event_id="e1", operation_id=record.id)
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "status_500"))
    again = world.claim("k", at=MINUTE)
    world.run(lambda: world.keys.lose(again.lease(MINUTE), "timeout"))
    assert reconcile(world) == 1
    assert status(world, record) == 201


def test_a_key_s_new_life_knows_nothing_of_the_old_one(world: World) -> None:
    record = world.claim("k", at=-3 * DAY)
    world.run(
        lambda: world.operator.note_evidence("e1", record.id, b"{}", applied=False, now=world.now - 3 * DAY)
    )
    world.sql("delete from {evidence}")
    world.engine.resolve(PAID, event_id="e1", operation_id=record.id)
    world.sql("update {evidence} set received_at = ?", world.now - 3 * DAY)
    lease = record.lease(MINUTE)
    world.run(lambda: world.keys.complete(lease, ANSWER, ttl_ms=DAY, now=world.now - 3 * DAY))
    again = world.unknown("k")
    assert again.id == record.id
    assert reconcile(world) == 0
    assert world.read(again).state == "unknown"


def test_of_several_early_events_the_one_that_says_most(world: World) -> None:
    record = world.claim()
    for number, evidence in enumerate([NotExecuted, DECLINED, PAID, DECLINED]):
        world.engine.resolve(evidence, event_id=f"e{number}", operation_id=record.id)  # type: ignore[arg-type]
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "timeout"))
    reconcile(world)
    assert status(world, record) == 201


def found_out(world: World) -> Record:
    record = world.unknown()
    world.run(lambda: world.operator.executed(record.id, ANSWER, Actor("ann")))
    return world.read(record)


def expired(world: World) -> Record:
    record = world.completed(at=-3 * DAY)
    world.run(lambda: world.keys.expire(record.scope, record.key))
    return world.read(record)


SETTLED: dict[str, Callable[[World], Record]] = {
    "completed": World.completed,
    "failed": World.failed,
    "found out": found_out,
    "expired": expired,
}


@pytest.mark.parametrize("kind", SETTLED)
@pytest.mark.parametrize("evidence", [PAID, DECLINED, NotExecuted])
def test_late_changes_nothing(world: World, kind: str, evidence: Any) -> None:
    record = SETTLED[kind](world)
    before = world.read(record), len(world.timeline(record))
    assert world.engine.resolve(evidence, event_id="e1", operation_id=record.id) is Resolution.TOO_LATE
    assert world.engine.resolve(evidence, event_id="e1", operation_id=record.id) is Resolution.DUPLICATE
    assert (world.read(record), len(world.timeline(record))) == before


def test_reordered_events_never_move_what_is_settled(world: World) -> None:
    record = world.unknown()
    events = [PAID, DECLINED, NotExecuted, PAID]
    said = [
        world.engine.resolve(event, event_id=f"e{number}", operation_id=record.id)  # type: ignore[arg-type]
        for number, event in enumerate(events)
    ]
    assert said == [Resolution.RESOLVED] + [Resolution.TOO_LATE] * 3
    assert status(world, record) == 201


def test_one_event_delivered_many_times_at_once(world: World) -> None:
    record = world.unknown()

    async def storm() -> list[Resolution]:
        resolve = world.engine.resolve_async
        return await asyncio.gather(*(resolve(PAID, event_id="e1", operation_id=record.id) for _ in range(8)))

    said = world.serve(storm)
    assert sorted(said) == sorted([Resolution.RESOLVED] + [Resolution.DUPLICATE] * 7)
    assert len(world.timeline(record)) == 3
