"""A claim whose caller has gone and that still waits at PostgreSQL takes no key once its wait is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lab.processes import wait_until
from lab.servers.postgres import PostgresServer
from samekey import Idempotency, StoreUnavailable
from samekey.core.claim import Claim
from samekey.core.decide import Decision, Execute
from samekey.core.record import Lease
from samekey.drivers.run import run, run_async
from samekey.engine import late
from samekey.stores.sql import queries
from samekey.testing.conformance import new_claim
from tests.chosen import whole

WAITS_MS = 600
TABLE = "lock table samekey.keys in share row exclusive mode"
"""As a foreign key to the table or an index on it takes one. Whoever reads does not mind."""
NOBODY = (
    "select count(*) from pg_stat_activity where datname = current_database() and state = 'active'"
    " and pid <> pg_backend_pid()"
)
ROW = "select from samekey.keys for update"


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(queries, "WAITS_MS", WAITS_MS, raising=False)
    queries.queries_for.cache_clear()
    yield
    queries.queries_for.cache_clear()


class Callers:
    """Claims of sync or async code, each by a store that gives up soon."""

    def __init__(self, url: str, style: str, timeout: float = 2.0) -> None:
        self.idempotency = Idempotency(url, timeout=timeout)
        self.idempotency.migrate()
        self._style = style
        self.runner = asyncio.Runner()

    def claim(self, *claims: Claim) -> list[Decision | BaseException]:
        """What each has got, or why not; async code asks for all at once."""
        drivers, keys, policy = (
            self.idempotency.engine.drivers,
            self.idempotency.engine.keys,
            self.idempotency.engine.policy,
        )

        async def together() -> list[Decision | BaseException]:
            asked = (run_async(drivers.aio, lambda one=one: keys.claim(one, policy)) for one in claims)  # type: ignore[misc]
            return await asyncio.gather(*asked, return_exceptions=True)

        if self._style == "async":
            return self.runner.run(together())
        got: list[Decision | BaseException] = []
        for one in claims:
            try:
                got.append(run(drivers.sync, lambda one=one: keys.claim(one, policy)))  # type: ignore[misc]
            except StoreUnavailable as error:
                got.append(error)
        return got

    def close(self) -> None:
        self.runner.run(self.idempotency.aclose())
        self.runner.close()


@pytest.fixture(params=["sync", "async"])
def callers(request: pytest.FixtureRequest, postgres_url: str, short_waits: None) -> Iterator[Callers]:
    found = Callers(postgres_url, request.param)
    yield found
    found.close()


def waiting(observer: psycopg.Connection[Any], younger_than_ms: int | None = None) -> int:
    """How many statements wait for a lock in this database, or have waited less than that."""
    row = observer.execute(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock'"
        " and (%(ms)s::int is null or xact_start > clock_timestamp() - %(ms)s * interval '1 ms')",
        {"ms": younger_than_ms},
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("kind", ["new", "new ones together", "retry"])
def test_a_claim_that_has_waited_longer_than_anybody_does_takes_nothing(
    callers: Callers, postgres_url: str, kind: str
) -> None:
    """Nobody is left to give it back: the process may have ended."""
    claims = [new_claim() for _ in range(4 if kind == "new ones together" else 1)]
    for _ in range(6):  # what is sent is prepared by now: else it waits before it can be carried out
        callers.claim(*(new_claim() for _ in claims))
    keys, drivers = callers.idempotency.engine.keys, callers.idempotency.engine.drivers
    with (
        psycopg.connect(postgres_url, autocommit=True) as observer,
        psycopg.connect(postgres_url) as other,
    ):
        observer.execute("truncate samekey.keys cascade")
        if kind == "retry":
            (first,) = claims
            assert isinstance(callers.claim(first)[0], Execute)
            run(drivers.sync, lambda: keys.fail(Lease(first.scope, first.key, first.attempt, 1000), "x"))
            claims = [new_claim(scope=first.scope, key=first.key)]
        before = observer.execute("select attempt, state from samekey.keys").fetchall()
        other.execute(ROW if kind == "retry" else TABLE)
        assert all(isinstance(got, StoreUnavailable) for got in callers.claim(*claims))
        wait_until(lambda: not waiting(observer, WAITS_MS + 100))
        other.rollback()
        wait_until(lambda: not waiting(observer))
        wait_until(lambda: observer.execute(NOBODY).fetchone() == (0,))
        assert observer.execute("select attempt, state from samekey.keys").fetchall() == before
    (got, *_) = callers.claim(*claims)
    assert isinstance(got, Execute), "the key is free"


def test_a_caller_that_is_still_there_gets_its_key_after_a_longer_wait(
    postgres_url: str, short_waits: None
) -> None:
    """Its claim was too late, so it asks again."""
    patient = Callers(postgres_url, "async", timeout=30)
    drivers, keys = patient.idempotency.engine.drivers, patient.idempotency.engine.keys
    claim, policy = new_claim(), patient.idempotency.engine.policy

    async def claimed(other: psycopg.Connection[Any], observer: psycopg.Connection[Any]) -> Decision:
        asked = asyncio.ensure_future(run_async(drivers.aio, lambda: keys.claim(claim, policy)))
        await asyncio.to_thread(wait_until, lambda: waiting(observer))
        await asyncio.to_thread(wait_until, lambda: not waiting(observer, WAITS_MS + 100))
        other.rollback()
        return await asked

    for _ in range(6):
        patient.claim(new_claim())
    with (
        psycopg.connect(postgres_url, autocommit=True) as observer,
        psycopg.connect(postgres_url) as other,
    ):
        other.execute(TABLE)
        assert isinstance(patient.runner.run(claimed(other, observer)), Execute)
    patient.close()


@whole
@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_claim_that_waits_for_a_standby_is_given_back_when_that_is_back(
    monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    """It is done and cannot be seen: that it is not there is no word about it, however long that takes."""
    monkeypatch.setattr(late, "SETTLE", 0.0)
    with PostgresServer.start() as server, psycopg.connect(server.url, autocommit=True) as root:
        url = server.create_database()
        idempotency = Idempotency(url, timeout=2.0)
        idempotency.migrate()

        def call(key: str) -> Any:
            if style == "sync":
                return idempotency.once(tenant="t", key=key, run=lambda: "now", name="call")

            return asyncio.run(idempotency.once_async(tenant="t", key=key, run=lambda: "now", name="call"))

        def standby(name: str) -> None:
            root.execute(f"alter system set synchronous_standby_names = '{name}'")
            root.execute("select pg_reload_conf()")

        assert call("warm") == "now"
        standby("away")
        wait_until(lambda: root.execute("show synchronous_standby_names").fetchone() == ("away",))
        with pytest.raises(StoreUnavailable):
            call("k")
        waits = idempotency.engine.keeper._late
        looks = list[bool]()
        real = waits._try

        def tried(item: Any) -> bool:
            done = real(item)
            looks.append(done)
            return done

        monkeypatch.setattr(waits, "_try", tried)
        wait_until(lambda: len(looks) >= 3, timeout=60)
        standby("")
        wait_until(lambda: not (waits._items or waits._trying), timeout=60)
        assert call("k") == "now"
        idempotency.close()
