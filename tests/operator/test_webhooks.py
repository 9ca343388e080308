"""What a provider says by itself: counted once, checked, kept if early, too late if late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from samekey import Declined, Executed, NotExecuted, Response, StillUnknown
from samekey.core.effects import Sent, SentStep
from samekey.core.record import Record
from samekey.engine.evidence.said import Resolution
from samekey.errors import AmbiguousProviderId, ConfigurationError, SignatureRefused
from samekey.stores.protocols import Actor
from samekey.workers.reconciler import Reconciler
from tests.operator.conftest import ON_POSTGRES_TOO
from tests.operator.world import ANSWER, DAY, HOUR, MINUTE, SOURCE, World, moment_of

pytestmark = ON_POSTGRES_TOO

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


async def tell_async(world: World, **named: Any) -> Resolution:
    given = {"source": SOURCE, "tenant": None, "verify": lambda: True, **named}
    return await world.engine.resolve_async(PAID, event_id="e1", occurred_at=moment_of(world.now), **given)


def reconcile(world: World) -> int:
    return world.serve(Reconciler(world.engine.engine).run_once)


def test_it_settles_an_unknown_outcome(world: World) -> None:
    record = world.unknown()
    assert world.tell(PAID, "e1", operation_id=record.id) is Resolution.RESOLVED
    assert status(world, record) == 201


def test_it_settles_a_dead_letter(world: World) -> None:
    record = world.dead()
    assert world.tell(DECLINED, "e1", operation_id=record.id) is Resolution.RESOLVED
    assert status(world, record) == 402


def test_it_may_say_that_nothing_happened(world: World) -> None:
    record = world.unknown("k")
    assert world.tell(NotExecuted, "e1", operation_id=record.id) is Resolution.RESOLVED
    assert world.claim("k").id == record.id


def test_async_code(world: World) -> None:
    record = world.unknown()
    found = world.serve(lambda: tell_async(world, operation_id=record.id))
    assert found is Resolution.RESOLVED


# ------------------------------------------------------------------ which operation


def noted(record: Record, provider_id: str | None = None) -> Sent:
    """As a handler that made one call, and noted the provider's id of it."""
    return Sent((SentStep("charge", record.downstream_key("charge"), provider_id, SOURCE),))


def lost(world: World, provider_id: str, tenant: str = "acme") -> Record:
    record = world.claim(tenant=tenant)
    sent = noted(record, provider_id)
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "x", provider_id=provider_id, sent=sent))
    return record


def test_by_each_of_the_three_ids(world: World) -> None:
    first, second, third = world.unknown(), lost(world, "ch_8"), lost(world, "ch_9")
    assert world.tell(PAID, "e1", operation_id=first.id) is Resolution.RESOLVED
    assert world.tell(PAID, "e2", downstream_key=second.downstream_key("charge")) is Resolution.RESOLVED
    assert world.tell(PAID, "e3", provider_id="ch_9", tenant="acme") is Resolution.RESOLVED
    assert world.states([first, second, third]) == ["completed"] * 3


def test_the_provider_s_id_can_come_with_the_event(world: World) -> None:
    record = world.unknown()
    world.tell(Executed(Response(201), "ch_5"), "e1", operation_id=record.id)
    found = world.engine.engine.find_by_provider_id("ch_5", tenant="acme", source=SOURCE)
    assert found == world.read(record)


def test_an_id_of_the_provider_s_is_looked_for_within_one_tenant(world: World) -> None:
    with pytest.raises(ConfigurationError, match="within one tenant"):
        world.tell(PAID, provider_id="ch_1")
    alice, mallory = lost(world, "ch_1", "alice"), lost(world, "ch_1", "mallory")
    assert world.tell(PAID, provider_id="ch_1", tenant="alice") is Resolution.RESOLVED
    assert world.states([alice, mallory]) == ["completed", "unknown"]


def test_an_id_of_the_provider_s_is_looked_for_within_one_source(world: World) -> None:
    record = lost(world, "ch_1")
    assert world.tell(PAID, provider_id="ch_1", tenant="acme", source="bank") is Resolution.NOT_FOUND
    assert world.read(record).state == "unknown"


def test_two_matches_are_an_error_that_an_operator_sees(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    records = [lost(world, "ch_1"), lost(world, "ch_1")]
    counted: list[str] = []
    world.engine.events.subscribe(lambda event: counted.append(event.name))
    assert world.tell(PAID, provider_id="ch_1", tenant="acme") is Resolution.AMBIGUOUS
    assert world.states(records) == ["unknown", "unknown"]
    assert counted == ["reconcile.failed"]
    assert "fits 2 operations" in caplog.text
    events = world.run(world.engine.engine.store.tables.effects.unused)
    assert {(event.state, event.provider_id, event.operation_id) for event in events} == {
        ("ambiguous", "ch_1", record.id) for record in records
    }
    with pytest.raises(AmbiguousProviderId):
        world.engine.engine.find_by_provider_id("ch_1", tenant="acme")
    # Once there is only one again, the event is not used up.
    world.tell(PAID, "e9", operation_id=records[0].id)
    world.sql("delete from {effects} where operation_id = ?", records[0].id)
    assert world.tell(PAID, provider_id="ch_1", tenant="acme") is Resolution.RESOLVED


def test_two_sources_may_have_the_same_event_id(world: World) -> None:
    first, second = world.unknown(), world.unknown()
    assert world.tell(PAID, "1001", operation_id=first.id, source="cards") is Resolution.RESOLVED
    assert world.tell(PAID, "1001", operation_id=second.id, source="bank") is Resolution.RESOLVED


def test_of_several_steps_that_were_sent_one_does_not_settle_all(world: World) -> None:
    record = world.claim()
    keys = [record.downstream_key(step) for step in ("authorise", "capture")]
    sent = Sent(tuple(SentStep(step, key) for step, key in zip(("authorise", "capture"), keys, strict=True)))
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "x", sent=sent))
    assert world.tell(PAID, "e0", operation_id=record.id) is Resolution.UNPLACED
    assert world.tell(PAID, "e1", downstream_key=keys[0]) is Resolution.KEPT
    assert world.read(record).state == "unknown"
    captured = Executed(Response(201, {"captured": True}))
    assert world.tell(captured, "e2", operation_id=record.id, step="capture") is Resolution.RESOLVED
    settled = world.read(record)
    assert settled.answer is not None and settled.answer.body == b'{"captured": true}'


def test_what_a_dead_process_had_sent_is_not_guessed(world: World) -> None:
    """Its lease ran out before it could note anything: a word about one named step may be one of several. The
    plain key is the only one that a handler gets."""
    records = [world.claim(lease=1, at=-HOUR) for _ in range(2)]
    world.run(lambda: world.upkeep.sweep(batch=10))
    assert world.states(records) == ["unknown"] * 2
    named = records[0].downstream_key("authorise")
    assert world.tell(PAID, "e1", downstream_key=named) is Resolution.UNPLACED
    assert world.tell(PAID, "e2", downstream_key=records[1].downstream_key()) is Resolution.RESOLVED
    assert world.states(records) == ["unknown", "completed"]
    # Nor does a word that names the operation alone; an operator, or a lookup, speaks for it as a whole.
    assert world.tell(PAID, "e3", operation_id=records[0].id) is Resolution.UNPLACED
    assert world.states(records) == ["unknown", "completed"]


@pytest.mark.parametrize("ids", [{}, {"operation_id": "a", "provider_id": "b"}])
def test_exactly_one_id(world: World, ids: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="needs one of"):
        world.tell(PAID, "e1", **ids)


def test_an_event_about_nothing_may_come_again(world: World) -> None:
    """By the provider's id it cannot be found before the handler has told it: a later delivery counts."""
    assert world.tell(PAID, provider_id="ch_1", tenant="acme") is Resolution.NOT_FOUND
    lost(world, "ch_1")
    assert world.tell(PAID, provider_id="ch_1", tenant="acme") is Resolution.RESOLVED


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": ""},
        {"source": "x" * 256},
        {"event_id": ""},
        {"event_id": "\x00"},
        {"occurred_at": datetime(2026, 1, 1)},
        {"occurred_at": 1_800_000_000},
    ],
)
def test_an_event_says_whose_it_is_and_when_it_happened(world: World, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"source": "s", "event_id": "e", "occurred_at": datetime.now(UTC), **wrong}
    with pytest.raises(ConfigurationError):
        world.engine.resolve(PAID, tenant=None, verify=lambda: True, operation_id="x", **given)


# ------------------------------------------------------------------ the signature


def test_a_wrong_signature_is_refused_before_any_look(world: World) -> None:
    record = world.unknown()
    with pytest.raises(SignatureRefused):
        world.tell(PAID, "e1", operation_id=record.id, verify=lambda: False)
    assert world.read(record).state == "unknown"
    assert world.count("evidence") == 0
    assert world.tell(PAID, "e1", operation_id=record.id, verify=lambda: True) is Resolution.RESOLVED


def test_a_check_that_raises_refuses_too(world: World) -> None:
    record = world.unknown()

    def verify() -> bool:
        raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        world.tell(PAID, "e1", operation_id=record.id, verify=verify)
    assert world.read(record).state == "unknown"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_check_that_was_never_awaited_lets_nobody_in(world: World) -> None:
    """A coroutine is true, whatever it would have said."""
    record = world.unknown()

    async def verify() -> bool:
        return False

    async def receive() -> object:
        check: Any = verify
        return await tell_async(world, operation_id=record.id, verify=check)

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
        world.tell(rubbish, "e1", operation_id=record.id)
    assert world.read(record).state == "unknown"
    assert world.count("evidence") == 0


# ------------------------------------------------------------------ twice, early, late, out of order


def test_the_same_event_counts_once(world: World) -> None:
    record = world.unknown("k")
    resolve = world.tell
    assert resolve(NotExecuted, "e1", operation_id=record.id) is Resolution.RESOLVED
    world.unknown("k")
    assert resolve(NotExecuted, "e1", operation_id=record.id) is Resolution.DUPLICATE
    assert world.read(record).state == "unknown"


@pytest.mark.parametrize("evidence", [PAID, DECLINED, NotExecuted])
def test_early_is_kept_and_used_when_the_outcome_becomes_unknown(world: World, evidence: Any) -> None:
    record = world.claim()
    assert world.tell(evidence, "e1", operation_id=record.id) is Resolution.KEPT
    assert world.read(record).state == "in_progress"
    assert world.tell(evidence, "e1", operation_id=record.id) is Resolution.DUPLICATE
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "timeout"))
    assert reconcile(world) == 1
    assert world.read(record).state == ("failed_retryable" if evidence is NotExecuted else "completed")
    step = world.timeline(record)[-1]
    assert (step.actor, step.reason) == (
        "webhook",
        f"event e1 of {SOURCE}, which had come early",
    )


def test_early_evidence_needs_no_lookup_and_spares_it(world: World) -> None:
    asked: list[Record] = []
    world.engine.lookup()(noting(asked))
    record = world.claim()
    world.tell(PAID, "e1", operation_id=record.id)
    world.run(lambda: world.keys.lose(record.lease(MINUTE), "timeout"))
    reconcile(world)
    assert asked == []


def test_early_evidence_about_work_that_ends_well_is_never_used(world: World) -> None:
    record = world.claim()
    world.tell(DECLINED, "e1", operation_id=record.id)
    world.run(lambda: world.keys.complete(record.lease(MINUTE), ANSWER))
    assert reconcile(world) == 0
    assert world.read(record).answer == ANSWER


@pytest.mark.parametrize("evidence", [DECLINED, NotExecuted])
def test_a_no_about_one_attempt_says_nothing_about_the_next(world: World, evidence: Any) -> None:
    record = world.claim("k", at=-HOUR)
    world.tell(evidence, "e1", operation_id=record.id)
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "status_500"))
    again = world.claim("k", at=MINUTE)
    world.run(lambda: world.keys.lose(again.lease(MINUTE), "timeout"))
    assert reconcile(world) == 0
    assert world.read(record).state == "unknown"


def test_that_it_happened_is_true_for_every_later_attempt(world: World) -> None:
    record = world.claim("k", at=-HOUR)
    world.run(lambda: world.keys.fail(record.lease(MINUTE), "status_500"))
    again = world.claim("k", at=MINUTE)
    world.run(lambda: world.keys.lose(again.lease(MINUTE), "timeout"))
    assert world.tell(PAID, "e1", operation_id=record.id, at=-HOUR) is Resolution.RESOLVED
    assert status(world, record) == 201


def test_of_several_early_events_the_one_that_says_most(world: World) -> None:
    record = world.claim()
    for number, evidence in enumerate([NotExecuted, DECLINED, PAID, DECLINED]):
        world.tell(evidence, event_id=f"e{number}", operation_id=record.id)  # type: ignore[arg-type]
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
    "found out": found_out,
    "expired": expired,
}


@pytest.mark.parametrize("kind", SETTLED)
@pytest.mark.parametrize("evidence", [PAID, DECLINED, NotExecuted])
def test_late_changes_nothing(world: World, kind: str, evidence: Any) -> None:
    record = SETTLED[kind](world)
    before = world.read(record), len(world.timeline(record))
    assert world.tell(evidence, "e1", operation_id=record.id) is Resolution.TOO_LATE
    assert world.tell(evidence, "e1", operation_id=record.id) is Resolution.DUPLICATE
    assert (world.read(record), len(world.timeline(record))) == before


def test_reordered_events_never_move_what_is_settled(world: World) -> None:
    record = world.unknown()
    events = [PAID, DECLINED, NotExecuted, PAID]
    said = [
        world.tell(event, event_id=f"e{number}", operation_id=record.id)  # type: ignore[arg-type]
        for number, event in enumerate(events)
    ]
    assert said == [Resolution.RESOLVED] + [Resolution.TOO_LATE] * 3
    assert status(world, record) == 201


def test_one_event_delivered_many_times_at_once(world: World) -> None:
    record = world.unknown()

    async def storm() -> list[Resolution]:
        return await asyncio.gather(*(tell_async(world, operation_id=record.id) for _ in range(8)))

    said = world.serve(storm)
    assert sorted(said) == sorted([Resolution.RESOLVED] + [Resolution.DUPLICATE] * 7)
    assert len(world.timeline(record)) == 3
