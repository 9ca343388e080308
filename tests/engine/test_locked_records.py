"""Somebody who has one record locked does not let the other leases of a process run out (S3)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

import pytest

from lab.processes import wait_until
from samekey import Idempotency
from samekey.core.claim import Claim
from samekey.core.program import Program
from samekey.core.record import Answer, Lease
from samekey.drivers.run import run, run_in
from samekey.engine.keeper import Keeper
from samekey.stores.sql.jobs import Job
from samekey.testing.conformance import new_claim
from tests.chosen import stores
from tests.taking import begin

PAID = Answer(201, (), b"{}")
DAY = 86_400_000


@pytest.fixture(params=stores("postgres_url", "mariadb_url", first=1))
def store(request: pytest.FixtureRequest) -> Iterator[Idempotency]:
    """SQLite has one lock for everything, and nobody can take a lease from under it either."""
    found = Idempotency(request.getfixturevalue(request.param), timeout=2)
    found.migrate()
    yield found
    found.close()


def claimed(store: Idempotency, count: int, lease_ms: int = 60_000) -> list[Lease]:
    claims = [new_claim(lease_ms=lease_ms) for _ in range(count)]
    for claim in claims:
        run(store.engine.drivers.sync, partial(store.engine.keys.claim, claim, store.engine.policy))
    return [Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms) for claim in claims]


def attempts(leases: list[Lease]) -> set[str]:
    return {lease.attempt for lease in leases}


def test_a_renewal_leaves_out_what_is_locked_and_tells_it_from_what_is_lost(store: Idempotency) -> None:
    driver, keys = store.engine.drivers.sync, store.engine.keys
    leases = claimed(store, 4)
    locked, lost, *others = leases
    run(driver, lambda: keys.release(lost))
    session = driver.open()
    run_in(session, keys.complete(locked, PAID))
    assert run(driver, lambda: keys.renew(leases)) == attempts(others)
    assert run(driver, lambda: keys.held([locked, lost])) == {locked.attempt}
    assert run(driver, lambda: keys.renew([locked])) == set()
    session.rollback()
    assert run(driver, lambda: keys.renew(leases)) == attempts([locked, *others])


def test_the_keeper_renews_the_others_meanwhile_and_the_locked_one_afterwards(store: Idempotency) -> None:
    driver, keys = store.engine.drivers.sync, store.engine.keys
    locked, other = claimed(store, 2, lease_ms=900)
    keeper = Keeper(driver, keys.renew, keys.held)

    def ends(lease: Lease) -> int:
        record = run(driver, lambda: keys.read(lease.scope, lease.key))
        assert record is not None and record.locked_until is not None
        return record.locked_until

    session = driver.open()
    run_in(session, keys.complete(locked, PAID))
    before, locked_before = ends(other), ends(locked)
    for lease in (locked, other):
        keeper.watch(lease, 600_000)
    # More than the whole lease further on: without a renewal in time it would have run out.
    wait_until(lambda: ends(other) > before + 1500)
    assert ends(locked) == locked_before
    session.rollback()
    wait_until(lambda: ends(locked) > locked_before)
    wait_until(lambda: keeper.remaining(locked) > 0)
    keeper.stop()


def test_a_locked_job_does_not_let_the_others_of_its_worker_be_taken(store: Idempotency) -> None:
    driver, jobs = store.engine.drivers.sync, store.engine.outbox

    def enqueue(claim: Claim) -> Program[None]:
        name = secrets.token_hex(8)
        yield from jobs.enqueue(name, claim.id, claim, "t", "charge", b"{}", answers=False)

    for _ in range(3):
        run(driver, partial(enqueue, new_claim()))
    taken: list[Job] = run(driver, lambda: begin(jobs, batch=10))
    assert len(taken) == 3
    leases = [Lease(job.id, job.key, job.attempt, 60_000) for job in taken]
    session = driver.open()
    run_in(session, jobs.retry(taken[0], pause_ms=0, error=None, provider_id="ch_1"))
    assert run(driver, lambda: jobs.renew(leases)) == attempts(leases[1:])
    assert run(driver, lambda: jobs.held(leases)) == attempts(leases)
    assert run(driver, lambda: jobs.renew(leases[:1])) == set()
    session.rollback()
    assert run(driver, lambda: jobs.renew(leases)) == attempts(leases)
