"""The lives of a key in a database: rows that refer to one, what belongs to one, and late outcomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

import pytest

from samekey import Idempotency, ietf
from samekey.core.decide import Execute
from samekey.core.record import Answer, Record
from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.engine.handler.rules import rules_from
from samekey.engine.modes.mode import Handled
from samekey.stores.protocols import Actor
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.operator import Operator
from samekey.stores.sql.phases import Phases, StoredInput
from samekey.stores.sql.queries import queries_for
from samekey.stores.sql.upkeep import Upkeep
from samekey.testing.conformance import new_claim, retry_of
from samekey.testing.conformance_subject import DAY, HOUR, NOW
from tests.chosen import stores
from tests.stores.conftest import migrated
from tests.stores.crash_scenarios import exchange_of
from tests.stores.schemas import execute

ANSWER = Answer(201, (), b"made")
STORES = ("sqlite", "postgres", "mariadb")


class Store:
    def __init__(self, url: str) -> None:
        self.url, self.drivers = url, migrated(url)
        self.queries = queries_for(self.drivers.dialect)
        self.keys = SqlKeys(self.queries)
        self.upkeep = Upkeep(self.keys)

    def claim(self, claim: object, now: int = NOW) -> Record:
        decision = run(self.drivers.sync, partial(self.keys.claim, claim, ietf(), now=now))  # type: ignore[arg-type]
        assert isinstance(decision, Execute), decision
        return decision.record

    def sql(self, sql: str) -> list[object]:
        return execute(self.url, self.queries.expand(sql))


@pytest.fixture(params=stores(*STORES))
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(request.getfixturevalue(f"{request.param}_url"))
    yield store
    store.drivers.sync.close()


REFERENCE: dict[str, str] = {
    "sqlite": "text references samekey_keys (id) on delete set null",
    "postgres": "text references samekey.keys (id) on delete set null",
    "mysql": "varbinary(128), foreign key (operation) references samekey_keys (id) on delete set null",
}


def test_rows_that_refer_to_a_former_life_do_not_stand_in_the_way_of_the_next(store: Store) -> None:
    claim = new_claim()
    first = store.claim(claim)
    run(store.drivers.sync, lambda: store.keys.complete(first.lease(HOUR), ANSWER, now=NOW))
    execute(store.url, f"create table orders (number integer, operation {REFERENCE[store.drivers.dialect]})")
    execute(store.url, f"insert into orders values (1, '{first.id}')")
    again = retry_of(claim)
    second = store.claim(again, NOW + 2 * DAY)
    assert (second.id, second.life, second.created_at) == (again.id, 2, NOW + 2 * DAY)
    found = execute(store.url, "select operation from orders")
    assert found in ([(None,)], [(first.id,)]), "forgotten, or kept where foreign keys are not enforced"
    execute(store.url, f"insert into orders values (2, '{second.id}')")
    trail = store.sql("select operation_id, to_state from {audit} order by id")
    assert [row[1] for row in trail if _text(row[0]) == second.id] == [_same(trail, "in_progress")]  # type: ignore[index]


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _same(trail: list[object], word: str) -> object:
    """As this database spells it."""
    return next(row[1] for row in trail if _text(row[1]) == word)  # type: ignore[index]


def test_what_belonged_to_a_former_life_goes_with_it(store: Store) -> None:
    claim = new_claim(mode=Mode.PHASED)
    phases = Phases(store.keys)
    first = store.claim(claim)
    lease = first.lease(HOUR)
    run(store.drivers.sync, lambda: phases.begin(lease, first.id, StoredInput("pay", 1, b"first"), now=NOW))
    run(store.drivers.sync, lambda: phases.intend(lease, first.id, 0, "charge", now=NOW))
    run(store.drivers.sync, lambda: store.keys.complete(lease, ANSWER, now=NOW))
    second = store.claim(retry_of(claim), NOW + 2 * DAY)
    assert store.sql("select count(*) from {inputs}") == [(0,)]
    assert store.sql("select count(*) from {phases}") == [(0,)]
    work = run(
        store.drivers.sync,
        lambda: phases.begin(
            second.lease(HOUR), second.id, StoredInput("pay", 1, b"second"), now=NOW + 2 * DAY
        ),
    )
    assert (work.input, work.phases) == (StoredInput("pay", 1, b"second"), [])


def test_phased_work_that_is_settled_late_keeps_its_whole_retention(store: Store) -> None:
    """It was resumed long after its retention would have ended, and then nobody could tell."""
    claim = new_claim(mode=Mode.PHASED)
    store.claim(claim)
    late = NOW + 3 * DAY
    resumed = store.claim(retry_of(claim), late)
    run(store.drivers.sync, lambda: store.keys.lose(resumed.lease(HOUR), "lost", now=late))
    operator = Operator(store.keys)
    run(store.drivers.sync, lambda: operator.executed(resumed.id, ANSWER, Actor("ann"), now=late + HOUR))
    record = run(store.drivers.sync, lambda: store.keys.read(claim.scope, claim.key))
    assert record is not None
    assert (record.completed_at, record.expires_at) == (late + HOUR, late + HOUR + claim.ttl_ms)


def test_retention_from_creation_holds_for_an_outcome_that_was_found(store: Store) -> None:
    claim = dataclasses.replace(new_claim(ttl_ms=5 * DAY), ttl_from="creation")
    first = store.claim(claim)
    run(store.drivers.sync, lambda: store.keys.lose(first.lease(HOUR), "lost", now=NOW))
    operator = Operator(store.keys)
    run(store.drivers.sync, lambda: operator.executed(first.id, ANSWER, Actor("ann"), now=NOW + DAY))
    record = run(store.drivers.sync, lambda: store.keys.read(claim.scope, claim.key))
    assert record is not None and record.expires_at == NOW + 5 * DAY


@pytest.mark.parametrize("reaped", [False, True])
def test_atomic_work_of_a_second_life_is_recorded_under_the_id_that_it_was_told(
    postgres_url: str, reaped: bool
) -> None:
    """Also if the reaper comes by while it runs."""
    migrated(postgres_url).sync.close()
    idempotency = Idempotency(postgres_url)
    rules = rules_from(idempotency.engine.policy, Mode.ATOMIC, {})
    seen = []
    upkeep = Upkeep(idempotency.engine.store.tables.keys)
    for _ in range(2):
        running = idempotency.engine.begin(exchange_of("key"), rules)
        assert running is not None and not isinstance(running, Answer)
        seen.append(running.operation.id)
        if reaped:
            run(idempotency.engine.drivers.sync, lambda: upkeep.reap(batch=10))
        running.session.execute(
            idempotency.engine.queries.build("x", "create temp table if not exists t (n int)")()
        )
        idempotency.engine.finish(running, Handled(ANSWER))
        execute(postgres_url, "update samekey.keys set expires_at = 1, created_at = 1")
    found = execute(postgres_url, "select id, life, attempts from samekey.keys")
    assert seen[0] != seen[1]
    assert found == [(seen[1], 2, 1)]
    idempotency.close()
