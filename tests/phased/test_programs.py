"""The programs of phased work, one by one, with time as an argument: fences, intents, what is left over."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from samekey import ietf
from samekey.core.claim import Claim
from samekey.core.decide import Execute
from samekey.core.phases import PhaseKind
from samekey.core.program import Program
from samekey.core.record import Answer, Lease, Record
from samekey.core.states import Mode
from samekey.drivers.run import run, run_in
from samekey.drivers.url import drivers_for
from samekey.errors import EscapedTransaction, LeaseLost
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.phases import Phases, StoredInput
from samekey.stores.sql.queries import queries_for
from samekey.testing.conformance import new_claim

NOW = 1_700_000_000_000
LEASE = 60_000
INPUT = StoredInput("ride", 1, b"{}")


class Store:
    """One store, driven by hand."""

    def __init__(self, url: str) -> None:
        self.drivers = drivers_for(url)
        self.keys = SqlKeys(queries_for(self.drivers.dialect))
        self.phases = Phases(self.keys)

    def run(self, program: Callable[[], Program[Any]]) -> Any:
        return run(self.drivers.sync, program)

    def claim(
        self, key: str = "k", *, now: int = NOW, like: Claim | None = None
    ) -> tuple[Claim, Lease, Record]:
        claim = replace(
            like or new_claim(key=key), mode=Mode.PHASED, attempt=secrets.token_hex(16), lease_ms=LEASE
        )
        decision = self.run(lambda: self.keys.claim(claim, ietf(), now=now))
        assert isinstance(decision, Execute), decision
        return claim, decision.record.lease(LEASE), decision.record

    def load(self, operation_id: str) -> Any:
        return self.run(lambda: self.phases.load(operation_id))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = Store(url)
    yield made
    made.drivers.sync.close()


def test_the_input_is_kept_once(store: Store) -> None:
    _, lease, record = store.claim()
    later = StoredInput("ride", 2, b'"later"')
    assert store.run(lambda: store.phases.begin(lease, record.id, INPUT, now=NOW)).input == INPUT
    assert store.run(lambda: store.phases.begin(lease, record.id, later, now=NOW)).input == INPUT


def test_only_the_holder_keeps_an_input(store: Store) -> None:
    _, lease, record = store.claim()
    stranger = replace(lease, attempt="another")
    assert store.run(lambda: store.phases.begin(stranger, record.id, INPUT, now=NOW)).input is None


def test_a_clock_that_steps_back_does_not_lose_the_input(store: Store) -> None:
    _, lease, record = store.claim(now=NOW)
    work = store.run(lambda: store.phases.begin(lease, record.id, INPUT, now=NOW - 5))
    assert work.input == INPUT


def test_a_phase_and_its_fence_commit_together(store: Store) -> None:
    _, lease, record = store.claim()
    session = store.drivers.sync.open()
    began = run_in(session, store.phases.open_phase(lease, "a", max_run_ms=1000))
    run_in(session, store.phases.write_phase(lease, record.id, 0, "a", b"7", began=began, now=NOW))
    assert store.load(record.id).phases == []
    session.commit()
    (phase,) = store.load(record.id).phases
    assert (phase.name, phase.kind, phase.done, phase.result) == ("a", PhaseKind.TRANSACTION, True, b"7")


def test_a_former_holder_can_write_nothing(store: Store) -> None:
    claim, old, record = store.claim()
    store.claim(like=claim, now=NOW + LEASE)
    phases, id_ = store.phases, record.id
    programs: list[Callable[[], Program[Any]]] = [
        lambda: phases.write_phase(old, id_, 0, "a", b"1", now=NOW),
        lambda: phases.intend(old, id_, 0, "a", now=NOW),
        lambda: phases.intend_anew(old, id_, 0, "a", now=NOW),
        lambda: phases.take_back(old, id_, 0, "a", now=NOW),
        lambda: phases.write_effect(old, id_, 0, "a", b"1", "ch", now=NOW),
    ]
    for program in programs:
        session = store.drivers.sync.open()
        with pytest.raises(LeaseLost):
            run_in(session, program())
        session.rollback()
    assert store.load(id_).phases == []
    assert store.run(lambda: phases.let_go(old, pause_ms=0, error_code="x", now=NOW)) is False
    assert store.run(lambda: phases.give_up(old, error_code="x", now=NOW)) is False
    assert store.run(lambda: phases.release(old, id_, now=NOW)) is False
    assert store.run(lambda: phases.complete(old, id_, Answer(200), now=NOW)) is None


def test_a_phase_that_is_recorded_already_is_not_written_over(store: Store) -> None:
    _, lease, record = store.claim()
    store.run(lambda: store.phases.intend(lease, record.id, 0, "a", now=NOW))
    session = store.drivers.sync.open()
    with pytest.raises(LeaseLost, match="recorded already"):
        run_in(session, store.phases.write_phase(lease, record.id, 0, "a", b"1", now=NOW))
    session.rollback()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_another_transaction_than_the_one_that_began_is_found_out(store: Store) -> None:
    _, lease, record = store.claim()
    session = store.drivers.sync.open()
    began = run_in(session, store.phases.open_phase(lease, "a", max_run_ms=1000))
    assert began is not None
    with pytest.raises(EscapedTransaction):
        run_in(session, store.phases.write_phase(lease, record.id, 0, "a", b"1", began=began - 1, now=NOW))
    session.rollback()
    session = store.drivers.sync.open()
    with pytest.raises(LeaseLost):
        run_in(session, store.phases.open_phase(replace(lease, attempt="x"), "a", max_run_ms=1000))
    session.rollback()


def test_an_intent_keeps_its_first_time_until_it_is_meant_anew(store: Store) -> None:
    _, lease, record = store.claim()

    def intent() -> int:
        found: int = store.load(record.id).phases[0].intent_at
        return found

    store.run(lambda: store.phases.intend(lease, record.id, 0, "a", now=NOW + 1))
    store.run(lambda: store.phases.intend(lease, record.id, 0, "a", now=NOW + 2))
    assert intent() == NOW + 1
    store.run(lambda: store.phases.intend_anew(lease, record.id, 0, "a", now=NOW + 3))
    assert intent() == NOW + 3
    store.run(lambda: store.phases.take_back(lease, record.id, 0, "a", now=NOW + 4))
    assert store.load(record.id).phases == []


def test_a_result_is_never_taken_back(store: Store) -> None:
    _, lease, record = store.claim()
    store.run(lambda: store.phases.intend(lease, record.id, 0, "a", now=NOW))
    store.run(lambda: store.phases.write_effect(lease, record.id, 0, "a", b"1", "ch", now=NOW))
    store.run(lambda: store.phases.take_back(lease, record.id, 0, "a", now=NOW))
    store.run(lambda: store.phases.intend_anew(lease, record.id, 0, "a", now=NOW + 9))
    (phase,) = store.load(record.id).phases
    assert (phase.done, phase.result, phase.provider_id, phase.intent_at) == (True, b"1", "ch", NOW)


def test_a_result_without_an_intent_is_refused(store: Store) -> None:
    _, lease, record = store.claim()
    with pytest.raises(LeaseLost):
        store.run(lambda: store.phases.write_effect(lease, record.id, 0, "a", b"1", None, now=NOW))


def test_a_late_result_regains_the_lease(store: Store) -> None:
    """Also where the holder had said that nobody knew."""
    claim, lease, record = store.claim()
    store.run(lambda: store.phases.intend(lease, record.id, 0, "a", now=NOW))
    store.run(lambda: store.keys.lose(lease, "timeout", now=NOW))
    late = NOW + 10 * LEASE
    store.run(lambda: store.phases.write_effect(lease, record.id, 0, "a", b"1", "ch", now=late))
    found = store.run(lambda: store.keys.read(claim.scope, claim.key))
    assert (found.state, found.locked_until, found.provider_id) == ("in_progress", late + LEASE, "ch")
    assert found.error_code is None and found.reconcile_after is None


def test_letting_go_may_or_may_not_count(store: Store) -> None:
    claim, lease, _ = store.claim()
    store.run(lambda: store.phases.let_go(lease, pause_ms=50, error_code="x", counted=False, now=NOW))
    found = store.run(lambda: store.keys.read(claim.scope, claim.key))
    assert (found.locked_until, found.attempts, found.error_code) == (NOW + 50, 0, "x")
    assert store.run(lambda: store.keys.renew([lease], now=NOW)) == set(), "a late heartbeat takes nothing up"
    _, lease, record = store.claim(like=claim, now=NOW + 50)
    assert record.attempts == 1
    store.run(lambda: store.phases.let_go(lease, pause_ms=0, error_code="y", now=NOW + 60))
    assert store.run(lambda: store.keys.read(claim.scope, claim.key)).attempts == 1


@pytest.mark.parametrize("end", ["complete", "release"])
def test_the_end_leaves_nothing_behind(store: Store, end: str) -> None:
    _, lease, record = store.claim()
    store.run(lambda: store.phases.begin(lease, record.id, INPUT, now=NOW))
    store.run(lambda: store.phases.intend(lease, record.id, 0, "a", now=NOW))
    if end == "complete":
        store.run(lambda: store.phases.complete(lease, record.id, Answer(200), now=NOW))
    else:
        store.run(lambda: store.phases.release(lease, record.id, now=NOW))
    work = store.load(record.id)
    assert (work.input, work.phases) == (None, [])


def test_a_former_life_is_not_taken_for_this_one(store: Store) -> None:
    """The record keeps its id when its key is used again after its retention."""
    claim, lease, record = store.claim()
    store.run(lambda: store.phases.begin(lease, record.id, INPUT, now=NOW))
    store.run(lambda: store.phases.intend(lease, record.id, 0, "old", now=NOW))
    store.run(lambda: store.keys.fail(lease, "x", now=NOW))
    later = NOW + 100 * 86_400_000
    _, lease, record = store.claim(like=claim, now=later)
    new = StoredInput("ride", 2, b'"new"')
    # Before it has an input of its own, nobody finds the old one: neither its holder nor the completer.
    assert store.load(record.id).input is None
    taken = store.run(
        lambda: store.phases.take_abandoned(
            "t", ["ride/1", "ride/2"], lease_ms=LEASE, batch=9, now=later + LEASE
        )
    )
    assert taken == []
    work = store.run(lambda: store.phases.begin(lease, record.id, new, now=later))
    assert (work.input, work.phases) == (new, [])


# ------------------------------------------------------------------ for the completer


def take(store: Store, *known: str, now: int, batch: int = 10) -> list[str]:
    token = secrets.token_hex(16)
    records = store.run(
        lambda: store.phases.take_abandoned(token, known, lease_ms=LEASE, batch=batch, now=now)
    )
    for record in records:
        assert record.attempt == token + record.id and record.locked_until == now + LEASE
    return [record.key for record in records]


def begin(store: Store, key: str, *, now: int = NOW, version: int = 1) -> Lease:
    _, lease, record = store.claim(key, now=now)
    stored = StoredInput("ride", version, b"{}")
    store.run(lambda: store.phases.begin(lease, record.id, stored, now=now))
    return lease


def test_the_oldest_abandoned_ones_are_taken_first_and_not_too_many(store: Store) -> None:
    for number in (2, 0, 1):
        begin(store, f"k{number}", now=NOW + number)
    assert take(store, "ride/1", now=NOW + LEASE - 1) == []
    assert take(store, "ride/1", now=NOW + LEASE) == ["k0"]
    assert sorted(take(store, "ride/1", now=NOW + 2 * LEASE - 1, batch=2)) == ["k1", "k2"]
    assert take(store, "ride/1", now=NOW + 2 * LEASE) == ["k0"], "abandoned again"


def test_only_known_definitions_are_taken(store: Store) -> None:
    begin(store, "k1", version=1)
    begin(store, "k2", version=2)
    assert take(store, "ride/2", "other/1", now=NOW + LEASE) == ["k2"]
    assert take(store, now=NOW + LEASE) == []


def test_without_an_input_there_is_nothing_to_resume(store: Store) -> None:
    store.claim("k1")
    assert take(store, "ride/1", now=NOW + LEASE) == []


def test_what_was_taken_is_fenced_off_from_its_former_holder(store: Store) -> None:
    lease = begin(store, "k1")
    take(store, "ride/1", now=NOW + LEASE)
    assert store.run(lambda: store.phases.let_go(lease, pause_ms=0, error_code="x")) is False


def test_the_clock_is_the_stores(store: Store) -> None:
    assert store.run(lambda: store.phases.clock(now=5)) == 5
    assert store.run(store.phases.clock) > NOW
