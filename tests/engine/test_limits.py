"""Limits per tenant on new keys, on look-ups and on the age of requests (T3, T4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest

from samekey import Idempotency, KeyReused, NotExecuted, StillRunning, ietf
from samekey.core.claim import Claim, scope_of, scope_part
from samekey.core.decide import Execute
from samekey.core.program import Program, Statement
from samekey.core.states import Mode
from samekey.drivers.run import run
from samekey.engine.lookups import MAX_CALLERS, LookupLimit
from samekey.errors import LimitExceeded
from samekey.stores.sql.limits import Admission
from samekey.stores.sql.migrations import migrate
from tests.chosen import stores

MINUTE = 60_000


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture
def limited(url: str) -> Iterator[Idempotency]:
    idempotency = Idempotency(url, policy=ietf(new_keys_per_minute=5, active_keys=8))
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    yield idempotency
    idempotency.close()


def test_new_keys_in_a_minute_are_counted_by_the_stores_clock(limited: Idempotency) -> None:
    keys = limited.engine.store.tables.keys

    def admit(tenant: str, now: int) -> None:
        def nothing() -> Program[None]:
            yield from ()

        admission = Admission(keys, scope_of(scope_part(tenant)), "k", per_minute=3, active=None, now=now)
        run(limited.engine.drivers.sync, lambda: admission.before(nothing(), held_ms=1))

    begin = 30 * MINUTE
    for moment in range(3):
        admit("a", begin + moment)
    with pytest.raises(LimitExceeded) as refused:
        admit("a", begin + 20_000)
    assert refused.value.retry_after == 40
    admit("b", begin + 20_000)  # another tenant is unaffected
    admit("a", begin + MINUTE)  # the next minute begins anew


def test_a_retry_of_a_known_key_is_never_limited(limited: Idempotency) -> None:
    for number in range(5):
        assert limited.once(tenant="t", key=f"k{number}", run=partial(int, number)) == number
    with pytest.raises(LimitExceeded, match="5 new keys"):
        limited.once(tenant="t", key="one too many", run=lambda: pytest.fail("it ran"))
    for number in range(5):
        assert limited.once(tenant="t", key=f"k{number}", run=lambda: pytest.fail("it ran")) == number
    with pytest.raises(KeyReused):
        limited.once(tenant="t", key="k0", payload="another", run=lambda: pytest.fail("it ran"))
    assert limited.once(tenant="other", key="k0", run=lambda: "fine") == "fine"


def test_stored_keys_are_bounded_by_the_cap(url: str) -> None:
    idempotency = Idempotency(url, policy=ietf(active_keys=20))
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    refused = 0
    for number in range(50):
        try:
            idempotency.once(tenant="sprayer", key=f"k{number}", run=lambda: None)
        except LimitExceeded:
            refused += 1
    stored = run(
        idempotency.engine.drivers.sync,
        lambda: idempotency.engine.store.finding.find(tenant=scope_part("sprayer"), limit=1000),
    )
    assert (len(stored), refused) == (20, 30)
    # Neither a tenant whose name begins alike nor a longer one shares the cap.
    assert idempotency.once(tenant="sprayer2", key="k", run=lambda: 1) == 1
    assert idempotency.once(tenant="spray", key="k", run=lambda: 1) == 1
    idempotency.close()


def test_lookups_are_limited_per_caller_and_minute() -> None:
    now = 0.0
    limit = LookupLimit(2, clock=lambda: now)
    assert [limit.exceeded("a") for _ in range(3)] == [False, False, True]
    assert not limit.exceeded("b")
    now = 60.0
    assert not limit.exceeded("a")
    assert not LookupLimit(None).exceeded("a")


def test_the_lookup_limit_remembers_a_bounded_number_of_callers() -> None:
    limit = LookupLimit(1, clock=time.monotonic)
    for number in range(MAX_CALLERS + 5):
        limit.exceeded(str(number))
    assert len(limit._used) <= MAX_CALLERS


@pytest.fixture(params=stores("sqlite_url", "postgres_url", "mariadb_url"))
def any_url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("mode", ["atomic", "leased"])
@pytest.mark.filterwarnings("ignore:The atomic handler answered")
def test_a_duplicate_of_running_work_is_no_new_key(any_url: str, mode: Literal["atomic", "leased"]) -> None:
    policy = ietf(new_keys_per_minute=1)
    here, elsewhere = Idempotency(any_url, policy=policy), Idempotency(any_url, policy=policy)
    here.migrate()
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        assert go_on.wait(30)
        return "done"

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(here.once, tenant="t", key="k", run=work, mode=mode)
        assert started.wait(30)
        for idempotency in (here, elsewhere, here, elsewhere):
            with pytest.raises(StillRunning):
                idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"), mode=mode)
        go_on.set()
        assert first.result() == "done"
    assert elsewhere.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"), mode=mode) == "done"
    with pytest.raises(LimitExceeded):
        here.once(tenant="t", key="another", run=lambda: pytest.fail("it ran"), mode=mode)
    for idempotency in (here, elsewhere):
        idempotency.close()


@pytest.mark.parametrize("mode", ["atomic", "leased", "repeatable"])
def test_a_key_that_fails_is_not_tried_for_ever(
    any_url: str, mode: Literal["atomic", "leased", "repeatable"]
) -> None:
    idempotency = Idempotency(any_url, policy=ietf(attempts_per_key=3))
    idempotency.migrate()
    claim = Claim(
        "0" * 32, "1" * 32, "1:=", "k", "=t", "CALL x", b"", "v", lambda _: b"", Mode(mode), 60_000, 3_600_000
    )
    keys, driver = idempotency.engine.keys, idempotency.engine.drivers.sync

    def fail(number: int) -> None:
        again = replace(claim, id=f"{number:032d}", attempt=f"{number:032x}")
        taken = run(driver, lambda: keys.claim(again, idempotency.engine.policy))
        assert isinstance(taken, Execute)
        assert run(driver, lambda: keys.fail(taken.record.lease(60_000), "status_500"))

    for number in range(3):
        fail(number)
    with pytest.raises(LimitExceeded, match="tried 3 times") as refused:
        fail(3)
    assert 3_600 <= refused.value.retry_after <= 3_660
    run(driver, lambda: keys.look(claim, idempotency.engine.policy))  # who only looks is not refused
    idempotency.close()


def test_atomic_work_that_fails_is_not_tried_for_ever(any_url: str) -> None:
    idempotency = Idempotency(any_url, policy=ietf(attempts_per_key=1))
    idempotency.migrate()
    assert idempotency.once(tenant="t", key="k", run=lambda: 1, mode="leased") == 1
    queries = idempotency.engine.store.tables.queries
    failed = queries.build("fail", "update {keys} set state = 'failed_retryable', mode = 'atomic'")
    idempotency.engine.drivers.sync.execute(Statement(failed, {}))
    with pytest.raises(LimitExceeded, match="tried 1 times"):
        idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"), mode="atomic")
    idempotency.close()


AT_ONCE = 12


@pytest.mark.parametrize("mode", ["atomic", "leased"])
@pytest.mark.filterwarnings("ignore:The atomic handler answered")
def test_claims_of_one_moment_do_not_exceed_the_cap(any_url: str, mode: Literal["atomic", "leased"]) -> None:
    idempotency = Idempotency(any_url, policy=ietf(active_keys=AT_ONCE // 2), pool_size=AT_ONCE, timeout=30)
    idempotency.migrate()
    together = threading.Barrier(AT_ONCE)
    decided = threading.Barrier(AT_ONCE)
    # SQLite has one writer: while an atomic handler runs there, nobody can claim.
    waits = not (mode == "atomic" and any_url.startswith("sqlite"))

    def work() -> None:
        if waits:
            decided.wait(30)

    def send(number: int) -> bool:
        together.wait(30)
        try:
            idempotency.once(tenant="t", key=f"k{number}", run=work, mode=mode)
        except LimitExceeded:
            if waits:
                decided.wait(30)
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as threads:
        ran = list(threads.map(send, range(AT_ONCE)))
    assert sum(ran) == AT_ONCE // 2
    for number, known in enumerate(ran):  # one that has run is no new key, and any other still is
        if known:
            idempotency.once(tenant="t", key=f"k{number}", run=lambda: pytest.fail("it ran"), mode=mode)
        else:
            with pytest.raises(LimitExceeded):
                idempotency.once(tenant="t", key=f"k{number}", run=lambda: pytest.fail("it ran"), mode=mode)
    idempotency.close()


@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_work_that_came_to_nothing_takes_no_place(any_url: str, mode: Literal["atomic", "leased"]) -> None:
    idempotency = Idempotency(any_url, policy=ietf(active_keys=1))
    idempotency.migrate()

    def refuse() -> None:
        raise NotExecuted("the account is not ready")

    for number in range(3):
        with pytest.raises(NotExecuted):
            idempotency.once(tenant="t", key="k" if mode == "leased" else f"k{number}", run=refuse, mode=mode)
    idempotency.close()
