"""Sweeping, finding out, forgetting and listing on Redis, by the indexes; no key is ever searched for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from lab.servers.redis import NamedServer
from samekey import ietf
from samekey.core.claim import Claim
from samekey.core.decide import Execute
from samekey.core.program import Program
from samekey.core.record import Answer, Lease
from samekey.core.states import Mode, State
from samekey.stores.protocols import Actor
from samekey.stores.redis.finding import RedisFinding
from samekey.stores.redis.scripts import RedisStatements
from samekey.stores.redis.upkeep import RedisUpkeep
from samekey.testing.conformance import new_claim, retry_of
from samekey.testing.conformance_subject import DAY, HOUR, NOW, SECOND
from tests.chosen import whole
from tests.redis.looking import assert_in_order, names, records
from tests.redis.subjects import SyncRedisSubject

pytestmark = whole


T = TypeVar("T")

ANSWER = Answer(201, (), b"paid")
ME = Actor("ann", "because")
MARGIN = DAY
LATE = NOW + 61 * SECOND


class Store:
    """The programs of the store, run at once."""

    def __init__(self, url: str) -> None:
        self.subject = SyncRedisSubject(url)
        self.keys = self.subject.keys
        statements = RedisStatements()
        self.finding = RedisFinding(statements)
        self.upkeep = RedisUpkeep(statements)
        self.client = self.subject.client

    def run(self, program: Program[T]) -> T:
        return self.subject.run(lambda: program)

    def hold(self, claim: Claim | None = None, now: int = NOW) -> Claim:
        claim = claim or new_claim()
        assert isinstance(self.run(self.keys.claim(claim, ietf(), now=now)), Execute)
        return claim

    def lose(self, now: int = NOW, provider_id: str | None = None) -> Claim:
        claim = self.hold(now=now)
        self.run(self.keys.lose(lease_of(claim), "timeout", provider_id=provider_id, now=now))
        return claim

    def complete(self, now: int = NOW, ttl_ms: int = DAY, provider_id: str | None = None) -> Claim:
        claim = self.hold(new_claim(ttl_ms=ttl_ms), now=now)
        program = self.keys.complete(lease_of(claim), ANSWER, provider_id=provider_id, now=now)
        assert self.run(program) == now + ttl_ms
        return claim

    def state(self, claim: Claim) -> str | None:
        record = self.run(self.keys.read(claim.scope, claim.key))
        return None if record is None else str(record.state)

    def life(self, claim: Claim) -> int:
        return int(self.client.pttl(self.subject.name_of(claim.scope, claim.key)))


def lease_of(claim: Claim) -> Lease:
    return Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms)


@pytest.fixture(params=["server", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    name = {"server": "redis_url", "cluster": "redis_cluster_url"}[request.param]
    store = Store(request.getfixturevalue(name))
    yield store
    assert_in_order(store.client, store.subject.url.prefix)
    store.subject.close()


@pytest.fixture
def single(redis_url: str) -> Iterator[Store]:
    store = Store(redis_url)
    yield store
    store.subject.close()


# ------------------------------------------------------------------ sweeping


def test_leases_that_ran_out_are_moved_by_their_mode_the_oldest_first(store: Store) -> None:
    early = [store.hold(new_claim(mode=Mode.REPEATABLE), now=NOW - n * SECOND) for n in range(5)]
    late = [store.hold(now=NOW + SECOND) for _ in range(3)]
    alive = store.hold(now=NOW + HOUR)
    assert store.run(store.upkeep.to_sweep(now=LATE)) == {"leased": 3, "repeatable": 5}
    first = store.run(store.upkeep.sweep(batch=5, now=LATE))
    assert {record.id for record in first} == {claim.id for claim in early}
    assert {record.state for record in first} == {State.FAILED_RETRYABLE}
    second = store.run(store.upkeep.sweep(batch=5, now=LATE))
    assert {record.id for record in second} == {claim.id for claim in late}
    assert {(r.state, r.error_code, r.reconcile_after) for r in second} == {
        (State.UNKNOWN, "lease_ended", LATE)
    }
    assert store.run(store.upkeep.sweep(batch=5, now=LATE)) == []
    assert store.state(alive) == "in_progress"


def test_a_renewed_lease_is_not_swept(store: Store) -> None:
    claims = [store.hold() for _ in range(20)]
    leases = [lease_of(claim) for claim in claims]
    held = store.run(store.keys.renew(leases, now=NOW + 30 * SECOND))
    assert held == {claim.attempt for claim in claims}
    assert store.run(store.upkeep.sweep(batch=50, now=LATE)) == []
    assert len(store.run(store.upkeep.sweep(batch=50, now=NOW + 90 * SECOND))) == 20


def test_two_sweepers_share_the_work(single: Store) -> None:
    claims = [single.hold() for _ in range(40)]
    swept = single.subject.run_together([lambda: single.upkeep.sweep(batch=100, now=LATE)] * 4)
    moved = [record.id for some in swept for record in some]
    assert sorted(moved) == sorted(claim.id for claim in claims), "each once"


def test_a_damaged_record_does_not_hold_up_the_sweep(single: Store) -> None:
    melted, whole = single.hold(), single.hold()
    single.subject.overwrite(melted.scope, melted.key, mode="quantum")
    assert [record.id for record in single.run(single.upkeep.sweep(batch=10, now=LATE))] == [whole.id]


def test_rubbish_in_an_index_holds_nothing_up(single: Store) -> None:
    claim = single.hold()
    home = single.subject.name_of(claim.scope, claim.key).rpartition(":")[0]
    for index in ("leases", "unknown", "settled", "dead"):
        single.client.zadd(f"{home}:{index}", {"rubbish": 1, "f" * 32: 1})
    assert [record.id for record in single.run(single.upkeep.sweep(batch=10, now=LATE))] == [claim.id]
    assert len(single.run(single.finding.take_unknown(batch=10, lease_ms=1, now=LATE))) == 1
    single.run(single.upkeep.reap(batch=10, now=LATE))
    assert [record.id for record in single.run(single.finding.find())] == [claim.id]


# ------------------------------------------------------------------ finding out


def test_unknown_outcomes_are_taken_in_batches_by_their_date(store: Store) -> None:
    claims = [store.lose(now=NOW + n) for n in range(6)]
    taken = store.run(store.finding.take_unknown(batch=4, lease_ms=HOUR, now=LATE))
    assert {record.id for _, record in taken} == {claim.id for claim in claims[:4]}
    assert {tries for tries, _ in taken} == {1}
    rest = store.run(store.finding.take_unknown(batch=4, lease_ms=HOUR, now=LATE))
    assert {record.id for _, record in rest} == {claim.id for claim in claims[4:]}
    assert store.run(store.finding.take_unknown(batch=4, lease_ms=HOUR, now=LATE)) == []
    store.run(store.finding.ask_again(claims[0].id, pause_ms=SECOND, now=LATE))
    again = store.run(store.finding.take_unknown(batch=4, lease_ms=HOUR, now=LATE + SECOND))
    assert [(tries, record.id) for tries, record in again] == [(2, claims[0].id)]


def test_reconcilers_at_once_take_each_outcome_once(single: Store) -> None:
    claims = [single.lose() for _ in range(30)]
    taken = single.subject.run_together(
        [lambda: single.finding.take_unknown(batch=30, lease_ms=HOUR, now=LATE)] * 4
    )
    assert sorted(record.id for some in taken for _, record in some) == sorted(c.id for c in claims)


def test_what_was_found_out_settles_it(store: Store) -> None:
    done, never, dead = store.lose(), store.lose(), store.lose()
    executed = store.finding.executed(done.id, ANSWER, ME, provider_id="ch_9", source="bank", now=LATE)
    assert store.run(executed) is True
    record = store.run(store.finding.by_id(done.id))
    assert record is not None
    assert (record.state, record.answer, record.provider_id) == (State.COMPLETED, ANSWER, "ch_9")
    assert (record.error_code, record.expires_at) == ("timeout", LATE + DAY)
    found = store.run(store.keys.read_by_provider_id("ch_9", tenant=done.tenant, source="bank"))
    assert [each.id for _, each in found] == [done.id]
    assert store.run(store.finding.not_executed(never.id, ME, now=LATE)) is True
    assert store.state(never) == "failed_retryable"
    assert store.run(store.finding.give_up(dead.id, ME, now=LATE)) is True
    assert store.state(dead) == "dead_letter"
    assert store.run(store.finding.take_unknown(batch=9, lease_ms=1, now=NOW + 400 * DAY)) == []
    assert store.run(store.finding.executed(done.id, None, ME, now=LATE)) is False
    # The provider's word wins over everything short of an answer.
    for claim in (never, dead):
        assert store.run(store.finding.executed(claim.id, None, ME, now=LATE)) is True


def test_evidence_about_another_attempt_changes_nothing(single: Store) -> None:
    claim = single.lose()
    for program in (
        single.finding.executed(claim.id, ANSWER, ME, attempt="another"),
        single.finding.not_executed(claim.id, ME, attempt="another"),
        single.finding.give_up(claim.id, ME, attempt="another"),
    ):
        assert single.run(program) is False
    assert single.state(claim) == "unknown"
    assert single.run(single.finding.executed(claim.id, ANSWER, ME, attempt=claim.attempt)) is True


@pytest.mark.parametrize(
    "operation_id", ["", "x", "0" * 64, "}" * 64, "a" * 32 + "{p001}:leases", "a" * 32 + "\n" * 32]
)
def test_an_id_that_is_none_of_ours_finds_nothing(single: Store, operation_id: str) -> None:
    single.hold()
    assert single.run(single.keys.read_by_id(operation_id)) is None
    assert single.run(single.finding.executed(operation_id, None, ME)) is False


def test_an_answer_can_be_evicted(store: Store) -> None:
    claim = store.complete()
    assert store.run(store.finding.evict(claim.id, ME)) is True
    record = store.run(store.finding.by_id(claim.id))
    assert record is not None and record.withheld
    assert store.run(store.finding.evict(claim.id, ME)) is False


def test_a_remembered_failure_is_tried_again(store: Store) -> None:
    done, declined = store.complete(), store.hold(new_claim(ttl_ms=DAY), now=NOW)
    store.run(store.keys.complete(lease_of(declined), Answer(402, (), b"no"), now=NOW))

    def reopened(claim: Claim) -> bool:
        return store.run(store.finding.reopen(claim.id, ME, attempt=claim.attempt, now=NOW + 1))

    assert not reopened(done) and reopened(declined) and not reopened(declined)
    assert store.state(declined) == "failed_retryable"
    record = store.run(store.finding.by_id(declined.id))
    assert record is not None and (record.answer, record.error_code) == (None, "reopened")


def test_records_are_found_by_endpoint_and_time(store: Store) -> None:
    early, late = store.complete(NOW), store.complete(NOW + 5)

    def found(**chosen: Any) -> set[str]:
        return {record.id for record in store.run(store.finding.find(**chosen))}

    assert found(endpoint=early.endpoint) == {early.id, late.id}
    assert found(endpoint="POST /nothing") == set()
    assert found(created_after=NOW + 1) == {late.id}
    assert found(created_after=NOW, created_before=NOW + 5) == {early.id}


# ------------------------------------------------------------------ forgetting


def test_a_settled_record_goes_by_itself_a_day_after_its_retention(single: Store) -> None:
    claim = single.complete(ttl_ms=HOUR)
    assert HOUR + MARGIN - 60 * SECOND < single.life(claim) <= HOUR + MARGIN
    again = retry_of(claim)
    single.hold(again, now=NOW + HOUR)
    assert single.life(claim) == -1, "in flight again: it must not be forgotten"


def test_what_is_not_settled_has_no_time_to_live(single: Store) -> None:
    held, lost = single.hold(), single.lose(provider_id="ch_1")
    dead = single.lose()
    single.run(single.finding.give_up(dead.id, ME))
    assert [single.life(claim) for claim in (held, lost, dead)] == [-1, -1, -1]
    assert {single.client.pttl(name) for name in names(single.client)} == {-1}


def test_the_pointer_of_a_providers_id_lives_as_long_as_its_record(single: Store) -> None:
    claim = single.complete(provider_id="ch_1")
    (pointer,) = [name for name in names(single.client) if ":provider:" in name]
    assert abs(single.client.pttl(pointer) - single.life(claim)) < 1000
    assert single.run(single.upkeep.reap(batch=10, now=NOW + DAY)) == 1
    assert names(single.client) == [], "nothing of it is left"


def test_a_released_key_leaves_nothing_behind(single: Store) -> None:
    claim = single.lose(provider_id="ch_1")
    assert single.run(single.keys.release(lease_of(claim))) is True
    assert names(single.client) == []


def test_the_reaper_forgets_only_what_is_settled_and_over(store: Store) -> None:
    over = [store.complete() for _ in range(7)]
    kept = [store.complete(ttl_ms=2 * DAY), store.hold(), store.lose()]
    assert store.run(store.upkeep.to_reap(now=NOW + DAY)) == {"completed": 7}
    assert store.run(store.upkeep.reap(batch=5, now=NOW + DAY)) == 5
    assert store.run(store.upkeep.reap(batch=5, now=NOW + DAY)) == 2
    assert [store.state(claim) for claim in over] == [None] * 7
    assert [store.state(claim) for claim in kept] == ["completed", "in_progress", "unknown"]


def test_answers_are_buried_and_tombstones_reaped(store: Store) -> None:
    claim = store.complete()
    assert store.run(store.upkeep.reap(batch=5, soft=True, now=NOW + DAY)) == 1
    record = store.run(store.finding.by_id(claim.id))
    assert record is not None
    assert (record.state, record.answer, record.expires_at) == (State.EXPIRED, None, NOW + 31 * DAY)
    assert store.life(claim) > 30 * DAY
    assert store.run(store.upkeep.reap(batch=5, now=NOW + 30 * DAY)) == 0
    assert store.run(store.upkeep.reap(batch=5, now=NOW + 31 * DAY)) == 1
    assert store.state(claim) is None


def test_places_of_records_that_went_by_themselves_are_cleared(single: Store) -> None:
    gone = [single.complete() for _ in range(3)]
    for claim in gone:
        single.subject.remove(claim.scope, claim.key)
    assert single.run(single.finding.find()) == []
    assert single.run(single.upkeep.reap(batch=10, now=NOW + DAY)) == 3
    assert names(single.client) == []


def test_without_a_reaper_such_places_are_cleared_by_and_by(single: Store) -> None:
    claims = [single.complete() for _ in range(300)]
    for claim in claims:
        single.subject.remove(claim.scope, claim.key)
    for _ in range(600):
        single.complete(now=NOW + 10 * DAY)
    left = [name for name in names(single.client) if name.endswith(":settled")]
    assert sum(single.client.zcard(name) for name in left) < 650


# ------------------------------------------------------------------ looking


def test_records_are_listed_the_newest_first_by_whatever_is_known_of_them(store: Store) -> None:
    claims = [store.complete(now=NOW + n) for n in range(8)]
    lost = store.lose(now=NOW + 100)
    found = store.run(store.finding.find(limit=4))
    assert [record.id for record in found] == [lost.id, *(c.id for c in reversed(claims[-3:]))]
    assert [r.id for r in store.run(store.finding.find(state="unknown"))] == [lost.id]
    assert [r.id for r in store.run(store.finding.find(key=claims[2].key))] == [claims[2].id]
    assert store.run(store.finding.find(tenant="=nobody")) == []
    old = store.run(store.finding.find(created_before=NOW + 2))
    assert [record.id for record in old] == [claims[1].id, claims[0].id]
    assert store.run(store.finding.by_key(lost.scope, lost.key)) == found[0]


def test_a_long_list_is_read_page_by_page(single: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samekey.stores.redis.finding.PAGE", 2)
    claims = [single.complete(now=NOW + n) for n in range(600)]
    found = single.run(single.finding.find(key=claims[0].key))
    assert [record.id for record in found] == [claims[0].id]
    assert len(single.run(single.finding.find(limit=1000))) == 600


def test_the_overview_adds_up(store: Store) -> None:
    store.hold()
    store.lose(now=NOW - HOUR)
    store.complete()
    store.complete(ttl_ms=SECOND)
    dead = store.lose()
    store.run(store.finding.give_up(dead.id, ME))
    seen = store.run(store.finding.overview(now=LATE))
    assert (seen.now, seen.records, seen.unknown, seen.dead_letters) == (LATE, 5, 1, 1)
    assert (seen.ended_leases, seen.oldest_lease_end) == (1, NOW + 60 * SECOND)
    assert (seen.oldest_unknown, seen.oldest_asking) == (NOW - HOUR, NOW - HOUR)
    assert (seen.past_retention, seen.oldest_expiry) == (1, NOW + SECOND)
    assert (seen.pending, seen.live_jobs, seen.dead_jobs, seen.oldest_due) == (0, 0, 0, None)
    assert store.run(store.finding.unknown_endpoints()) == {"POST /payments": 1}
    assert store.run(store.finding.durations()) == [0, 0]


def test_an_empty_store_has_an_overview_too(single: Store) -> None:
    seen = single.run(single.finding.overview(now=NOW))
    assert (seen.records, seen.oldest_unknown, seen.oldest_expiry) == (0, None, None)


def test_every_key_of_a_record_has_its_partitions_hash_tag(single: Store) -> None:
    for n in range(30):
        single.complete(provider_id=f"ch_{n}")
    for name in names(single.client):
        assert name.count("{p") == 1 and name.startswith("samekey:{p"), name
    tags = {name.split(":")[1] for name in records(single.client)}
    assert len(tags) > 10, "they are spread"


def test_two_prefixes_do_not_see_each_other(redis_server: NamedServer) -> None:
    url = redis_server.create_database()
    one, two = Store(f"{url}?prefix=one"), Store(f"{url}?prefix=two")
    claim = one.hold()
    assert two.run(two.keys.read(claim.scope, claim.key)) is None
    assert two.run(two.finding.find()) == []
    two.hold(claim)
    for store in (one, two):
        store.subject.close()
