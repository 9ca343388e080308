"""Upkeep and finding out: the same questions to DynamoDB and to SQLite, the same answers and records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pytest

from samekey.core.claim import Claim, scope_of
from samekey.core.program import Program
from samekey.core.record import Answer, Lease, Record
from samekey.core.states import Mode, State
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.engine.store import Store, store_on
from samekey.stores.dynamodb.items import pk_of, place
from samekey.stores.protocols import Actor
from samekey.stores.sql.migrations import migrate
from samekey.testing.conformance import new_claim, retry_of
from samekey.testing.conformance_claims import ANSWER, POLICY
from samekey.testing.conformance_subject import DAY, HOUR, NOW, SECOND
from tests.chosen import whole
from tests.dynamodb.subjects import SyncDynamoSubject

pytestmark = whole


T = TypeVar("T")
DECLINED = Answer(402, (), b"no")
ACTOR = Actor("operator", "because")
LATE = NOW + 60 * SECOND
SCOPE = scope_of("=conformance")
"""As that of every request of this tenant: operators look for a tenant by how its scopes begin."""


@dataclass(frozen=True)
class Pair:
    """Two stores that are asked the same."""

    dynamodb: Store
    sqlite: Store

    def ask(self, question: Callable[[Store], Program[T]]) -> T:
        """What both of them answer."""
        answers = [run(store.drivers.sync, partial(question, store)) for store in self.both]
        assert answers[0] == answers[1]
        return answers[0]

    @property
    def both(self) -> tuple[Store, Store]:
        return self.dynamodb, self.sqlite

    def claim(self, now: int = NOW, **options: Any) -> Claim:
        claim = new_claim(scope=SCOPE, **options)
        self.ask(lambda store: store.keys.claim(claim, POLICY, now=now))
        return claim

    def completed(self, now: int = NOW, **options: Any) -> Claim:
        claim = self.claim(now, **options)
        self.ask(lambda store: store.keys.complete(lease(claim), ANSWER, now=now))
        return claim

    def lost(self, now: int = NOW, **options: Any) -> Claim:
        claim = self.claim(now, **options)
        self.ask(lambda store: store.keys.lose(lease(claim), "timeout", now=now))
        return claim

    def read(self, claim: Claim) -> Record | None:
        return self.ask(lambda store: store.keys.read(claim.scope, claim.key))

    def put_off(self, claim: Claim, attempt: str | None) -> None:
        self.ask(lambda store: store.finding.ask_again(claim.id, pause_ms=1, attempt=attempt, now=NOW + 5))

    def give_up(self, claim: Claim, now: int = LATE) -> bool:
        return self.ask(lambda store: store.finding.give_up(claim.id, ACTOR, now=now))

    def find(self, **chosen: Any) -> list[Record]:
        return self.ask(lambda store: store.finding.find(**chosen))

    def settle(self, claim: Claim, **options: Any) -> bool:
        return self.ask(lambda store: store.finding.executed(claim.id, ANSWER, ACTOR, **options))


def lease(claim: Claim) -> Lease:
    return Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)


@pytest.fixture
def pair(dynamodb_url: str) -> Iterator[Pair]:
    stores = Pair(*(store_on(drivers_for(url)) for url in (dynamodb_url, "sqlite:///:memory:")))
    run(stores.sqlite.drivers.sync, lambda: migrate(stores.sqlite.tables.queries))
    yield stores
    for store in stores.both:
        store.drivers.sync.close()


def by_id(records: list[Record]) -> dict[str, Record]:
    return {record.id: record for record in records}


# ------------------------------------------------------------------ upkeep


def test_a_sweep_moves_each_by_its_mode(pair: Pair) -> None:
    claims = [pair.claim(mode=mode) for mode in (Mode.LEASED, Mode.REPEATABLE) for _ in range(2)]
    alive = pair.claim(LATE)
    counted = pair.ask(lambda store: store.tending.to_sweep(now=LATE))
    assert counted == {"leased": 2, "repeatable": 2}

    def sweep(store: Store) -> Program[dict[str, Record]]:
        return by_id((yield from store.tending.sweep(batch=10, now=LATE)))

    assert len(pair.ask(sweep)) == 4
    assert pair.ask(sweep) == {}
    for claim in (*claims, alive):
        pair.read(claim)


def test_a_sweep_takes_a_batch_and_the_oldest_first(pair: Pair) -> None:
    claims = [pair.claim(NOW + age * SECOND) for age in (3, 1, 2, 0)]
    late = LATE + HOUR

    def sweep(store: Store) -> Program[list[str]]:
        return sorted(record.id for record in (yield from store.tending.sweep(batch=2, now=late)))

    assert pair.ask(sweep) == sorted([claims[3].id, claims[1].id])
    assert pair.ask(sweep) == sorted([claims[0].id, claims[2].id])


def test_the_reaper_deletes_only_what_is_settled_and_old(pair: Pair) -> None:
    old = [pair.completed(ttl_ms=SECOND), pair.claim(ttl_ms=SECOND, mode=Mode.REPEATABLE)]
    pair.ask(lambda store: store.keys.fail(lease(old[1]), "declined", now=NOW))
    kept = [pair.completed(), pair.claim(ttl_ms=SECOND), pair.lost(ttl_ms=SECOND)]
    counted = pair.ask(lambda store: store.tending.to_reap(now=LATE))
    assert counted == {"completed": 1, "failed_retryable": 1}
    assert pair.ask(lambda store: store.tending.reap(batch=10, now=LATE)) == 2
    assert pair.ask(lambda store: store.tending.reap(batch=10, now=LATE)) == 0
    assert [pair.read(claim) for claim in old] == [None, None]
    assert all(pair.read(claim) is not None for claim in kept)


def test_a_tombstone_keeps_the_fact_for_a_while(pair: Pair) -> None:
    claim, young = pair.completed(ttl_ms=SECOND), pair.completed()
    assert pair.ask(lambda store: store.tending.reap(batch=10, keep_ms=DAY, soft=True, now=LATE)) == 1
    assert pair.ask(lambda store: store.tending.reap(batch=10, keep_ms=DAY, soft=True, now=LATE)) == 0
    record = pair.read(claim)
    assert record is not None and (record.state, record.expires_at) == ("expired", LATE + DAY)
    assert pair.ask(lambda store: store.tending.reap(batch=10, soft=True, now=LATE + 1)) == 0
    assert pair.ask(lambda store: store.tending.to_reap(now=LATE + DAY)) == {"completed": 1, "expired": 1}
    assert pair.ask(lambda store: store.tending.reap(batch=10, now=LATE + DAY)) == 2
    assert pair.read(claim) is None and pair.read(young) is None


def test_nothing_is_ever_pending(pair: Pair) -> None:
    assert pair.ask(lambda store: store.tending.abandoned(timeout_ms=1, batch=5, now=LATE)) == []
    assert pair.ask(lambda store: store.tending.to_time_out(timeout_ms=1, now=LATE)) == 0


# ------------------------------------------------------------------ finding out


def test_unknown_outcomes_are_taken_one_by_one_and_put_off(pair: Pair) -> None:
    claims = [pair.lost(NOW + age) for age in (2, 0, 1)]

    def take(now: int) -> list[tuple[int, str]]:
        def program(store: Store) -> Program[list[tuple[int, str]]]:
            taken = yield from store.finding.take_unknown(batch=2, lease_ms=HOUR, now=now)
            return sorted((tries, record.id) for tries, record in taken)

        return pair.ask(program)

    assert take(NOW - 1) == []
    assert take(NOW + 5) == sorted([(1, claims[1].id), (1, claims[2].id)])
    assert take(NOW + 5) == [(1, claims[0].id)]
    assert take(NOW + 5) == []
    for attempt, due in ((None, NOW + 6), ("another", None)):
        pair.put_off(claims[0], attempt)
        record = pair.read(claims[0])
        assert record is not None and (due is None or record.reconcile_after == due)
    assert take(NOW + 6) == [(2, claims[0].id)]
    assert len(take(NOW + 2 * HOUR)) == 2


@pytest.mark.parametrize("dead", [False, True])
def test_found_executed(pair: Pair, dead: bool) -> None:
    claim, later = pair.lost(), NOW + DAY
    if dead:
        assert pair.ask(lambda store: store.finding.give_up(claim.id, ACTOR, now=NOW + HOUR))
    assert not pair.settle(claim, attempt="of somebody else", now=later)
    found = pair.read(claim)
    assert found is not None and (found.attempt == claim.attempt) is not dead, "it was moved by another"
    assert pair.settle(claim, attempt=found.attempt, provider_id="ch_1", now=later)
    assert not pair.settle(claim, now=later), "it is settled"
    record = pair.read(claim)
    assert record is not None and (record.answer, record.provider_id) == (ANSWER, "ch_1")
    assert record.expires_at == later + claim.ttl_ms
    assert pair.ask(lambda store: store.tending.to_reap(now=later + claim.ttl_ms)) == {"completed": 1}


def test_found_executed_without_an_answer(pair: Pair) -> None:
    claim = pair.lost()
    assert pair.ask(lambda store: store.finding.executed(claim.id, None, ACTOR, now=NOW))
    record = pair.read(claim)
    assert record is not None and record.withheld


@pytest.mark.parametrize("dead", [False, True])
def test_found_not_executed(pair: Pair, dead: bool) -> None:
    claim, later = pair.lost(), NOW + DAY
    if dead:
        assert pair.ask(lambda store: store.finding.give_up(claim.id, ACTOR, now=NOW))
    no = pair.ask(lambda store: store.finding.not_executed(claim.id, ACTOR, attempt="another", now=later))
    assert no is False
    assert pair.ask(lambda store: store.finding.not_executed(claim.id, ACTOR, now=later))
    pair.read(claim)
    again = retry_of(claim)
    decision = pair.ask(lambda store: store.keys.claim(again, POLICY, now=later))
    assert type(decision).__name__ == "Execute"
    pair.read(claim)


def test_giving_up_is_for_unknown_outcomes_only(pair: Pair) -> None:
    lost, running, done = pair.lost(), pair.claim(), pair.completed()
    for claim, given_up in ((lost, True), (lost, False), (running, False), (done, False)):
        assert pair.give_up(claim) is given_up
        pair.read(claim)
    assert not pair.ask(lambda store: store.finding.give_up("0" * 64, ACTOR, now=LATE))
    assert not pair.ask(lambda store: store.finding.give_up("no such thing", ACTOR, now=LATE))


def test_an_evicted_answer_leaves_the_fact(pair: Pair) -> None:
    done, running = pair.completed(), pair.claim()
    assert pair.ask(lambda store: store.finding.evict(done.id, ACTOR, now=LATE))
    assert not pair.ask(lambda store: store.finding.evict(done.id, ACTOR, now=LATE))
    assert not pair.ask(lambda store: store.finding.evict(running.id, ACTOR, now=LATE))
    record = pair.read(done)
    assert record is not None and record.withheld
    again = retry_of(done)
    decision = pair.ask(lambda store: store.keys.claim(again, POLICY, now=LATE))
    assert type(decision).__name__ == "Withheld"


def test_a_remembered_failure_is_tried_again(pair: Pair) -> None:
    done, declined, running = pair.completed(), pair.claim(), pair.claim()
    pair.ask(lambda store: store.keys.complete(lease(declined), DECLINED, now=NOW))

    def reopened(claim: Claim, attempt: str) -> bool:
        return pair.ask(lambda store: store.finding.reopen(claim.id, ACTOR, attempt=attempt, now=LATE))

    for claim in (done, running):
        assert not reopened(claim, claim.attempt)
        pair.read(claim)
    assert not reopened(declined, "another")
    assert reopened(declined, declined.attempt)
    assert not reopened(declined, declined.attempt)
    pair.read(declined)
    again = retry_of(declined)
    decision = pair.ask(lambda store: store.keys.claim(again, POLICY, now=LATE))
    assert type(decision).__name__ == "Execute"
    pair.read(declined)


# ------------------------------------------------------------------ looking


def test_records_are_listed_newest_first(pair: Pair) -> None:
    made = [pair.claim(NOW + age) for age in (3, 1, 2)]
    made += [pair.completed(NOW + 4), pair.lost(NOW + 5), pair.lost(NOW + 6)]
    tombstone = pair.completed(NOW + 7, ttl_ms=1)
    pair.ask(lambda store: store.keys.expire(tombstone.scope, tombstone.key, now=NOW + 10))
    filters: list[tuple[dict[str, Any], int]] = [
        ({}, 7),
        ({"limit": 2}, 2),
        ({"state": "unknown"}, 2),
        ({"state": "unknown", "limit": 1}, 1),
        ({"state": "completed"}, 1),
        ({"state": "failed_retryable"}, 0),
        ({"state": "expired"}, 1),
        ({"state": "pending"}, 0),
        ({"state": "melted"}, 0),
        ({"state": "in_progress", "created_before": NOW + 3}, 2),
        ({"created_before": NOW + 3}, 2),
        ({"key": made[0].key}, 1),
        ({"created_after": NOW + 3}, 5),
        ({"endpoint": made[0].endpoint, "limit": 3}, 3),
        ({"endpoint": "POST /nothing"}, 0),
        ({"endpoint": made[0].endpoint, "state": "unknown"}, 2),
        ({"state": "unknown", "tenant": "=conformance"}, 2),
        ({"tenant": "=conformance"}, 7),
        ({"tenant": "=nobody"}, 0),
    ]
    for chosen, count in filters:
        assert len(pair.find(**chosen)) == count, chosen
    assert pair.ask(lambda store: store.finding.by_id(made[0].id)) is not None
    assert pair.ask(lambda store: store.finding.by_id("nobody's")) is None
    assert pair.ask(lambda store: store.finding.by_key(made[0].scope, made[0].key)) is not None
    assert pair.ask(lambda store: store.finding.by_key("no", "such")) is None


def test_the_overview_counts_the_same(pair: Pair) -> None:
    empty = pair.ask(lambda store: store.finding.overview(now=LATE))
    assert empty.records == 0
    (
        pair.claim(),
        pair.claim(LATE),
        pair.completed(ttl_ms=SECOND),
        pair.completed(),
        pair.lost(NOW + 1),
        pair.lost(),
    )
    dead = pair.lost()
    pair.ask(lambda store: store.finding.give_up(dead.id, ACTOR, now=NOW))
    seen = pair.ask(lambda store: store.finding.overview(now=LATE))
    assert (seen.unknown, seen.dead_letters, seen.ended_leases, seen.past_retention) == (2, 1, 1, 1)
    assert dataclasses.astuple(seen)[0] == LATE and seen.records == 7


def test_an_act_on_what_the_index_shows_too_late_does_nothing(pair: Pair, dynamodb_url: str) -> None:
    """The index may be behind: here it shows a lease that has long been settled."""
    claim = pair.claim()
    store, driver = pair.dynamodb, pair.dynamodb.drivers.sync
    table = SyncDynamoSubject(dynamodb_url)
    shard = place(State.IN_PROGRESS, pk_of(claim.scope, claim.key))[-1]
    pair.ask(lambda store: store.keys.complete(lease(claim), Answer(200), now=NOW))
    record = pair.read(claim)
    for stale in ("leases", "unknown", "settled"):
        table.change(claim.scope, claim.key, {"queue": f"{stale}-{shard}", "due": 1})
        assert run(driver, lambda: store.tending.sweep(batch=9, now=NOW)) == []
        assert run(driver, lambda: store.tending.reap(batch=9, now=NOW)) == 0
        assert run(driver, lambda: store.tending.reap(batch=9, soft=True, now=NOW)) == 0
        assert run(driver, lambda: store.finding.take_unknown(batch=9, lease_ms=1, now=NOW)) == []
        assert pair.read(claim) == record
    table.close()
