"""Statements that go to the database together: each gets its own answer, as if it had gone alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from samekey.core.decide import Decision, Execute, Outstanding
from samekey.core.policy import ietf
from samekey.core.program import Row, Statement
from samekey.drivers.protocol import AsyncDriver, AsyncSession
from samekey.drivers.run import run_async
from samekey.drivers.wrappers.batched import LARGEST, UNDER_WAY, AsyncBatchedDriver
from samekey.errors import ConnectionLost, StoreBusy, StoreError, StoreUnavailable
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.queries import Queries, queries_for
from samekey.testing.conformance import AsyncSubject, StoreConformance, Subject, new_claim, retry_of
from tests.stores.conftest import migrated

POLICY = ietf()
QUERIES = queries_for("postgres")
TOGETHER = {name: QUERIES[f"{name}_many"] for name in ("find", "reserve")}


class Counting:
    """Notes what reaches the driver, and can be told to fail."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self.names: list[str] = []
        self.fails: Callable[[Statement], Exception | None] = lambda statement: None

    async def execute(self, statement: Statement) -> Sequence[Row]:
        self.names.append(statement.name)
        error = self.fails(statement)
        if error is not None:
            raise error
        return await self._driver.execute(statement)

    async def open(self, connection: Any = None) -> AsyncSession:
        return await self._driver.open(connection)

    async def close(self) -> None:
        await self._driver.close()


class Stuck(Counting):
    """Holds every statement until the gate opens."""

    gate: asyncio.Event
    held = 0

    async def execute(self, statement: Statement) -> Sequence[Row]:
        self.held += 1
        await self.gate.wait()
        return await super().execute(statement)


@pytest.fixture(scope="module")
def subject(migrated_postgres: str) -> Iterator[Subject]:
    drivers = migrated(migrated_postgres)
    batched = AsyncBatchedDriver(drivers.aio, TOGETHER)
    with AsyncSubject(batched, SqlKeys(QUERIES), QUERIES) as found:
        yield found
    drivers.sync.close()


class TestBatched(StoreConformance):
    @pytest.fixture
    def store(self, subject: Subject) -> Subject:
        return subject


def drive(url: str, story: Callable[[Counting, AsyncBatchedDriver], Awaitable[None]]) -> None:
    """Runs a story on one event loop."""

    async def run() -> None:
        drivers = migrated(url)
        counting = Counting(drivers.aio)
        try:
            await story(counting, AsyncBatchedDriver(counting, TOGETHER))
        finally:
            await drivers.aio.close()
            drivers.sync.close()

    asyncio.run(run())


async def claims(driver: AsyncDriver, wanted: Sequence[Any]) -> list[Decision]:
    keys = SqlKeys(QUERIES)
    asked = (run_async(driver, lambda claim=claim: keys.claim(claim, POLICY)) for claim in wanted)  # type: ignore[misc]
    return await asyncio.gather(*asked)


def test_requests_that_come_together_share_a_round_trip(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        wanted = [new_claim() for _ in range(LARGEST)]
        decisions = await claims(batched, wanted)
        for claim, decision in zip(wanted, decisions, strict=True):
            assert isinstance(decision, Execute) and decision.record.attempt == claim.attempt
        assert len(counting.names) <= 2, counting.names
        replays = await claims(batched, [retry_of(claim) for claim in wanted])
        assert all(isinstance(decision, Outstanding) for decision in replays)
        assert [d.operation_id for d in replays if isinstance(d, Outstanding)] == [c.id for c in wanted]

    drive(migrated_postgres, story)


def test_one_request_alone_is_sent_alone(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        await claims(batched, [new_claim()])
        assert counting.names == ["reserve"]

    drive(migrated_postgres, story)


def test_more_than_a_batch_holds_all_get_an_answer(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        wanted = [new_claim() for _ in range(3 * LARGEST + 1)]
        decisions = await claims(batched, wanted)
        assert all(isinstance(decision, Execute) for decision in decisions)
        assert len(counting.names) < 10

    drive(migrated_postgres, story)


def test_of_the_same_key_many_times_in_one_batch_one_wins(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        first = new_claim()
        decisions = await claims(batched, [retry_of(first) for _ in range(20)])
        assert sum(isinstance(decision, Execute) for decision in decisions) == 1
        assert sum(isinstance(decision, Outstanding) for decision in decisions) == 19

    drive(migrated_postgres, story)


def test_one_that_is_refused_does_not_fail_the_others(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        good, bad = new_claim(), new_claim(key="\x00")  # PostgreSQL's text holds no such character
        results = await asyncio.gather(
            *(run_async(batched, lambda c=c: SqlKeys(QUERIES).claim(c, POLICY)) for c in (good, bad)),  # type: ignore[misc]
            return_exceptions=True,
        )
        assert isinstance(results[0], Execute)
        assert isinstance(results[1], StoreError) and not isinstance(results[1], StoreUnavailable)

    drive(migrated_postgres, story)


def test_a_lost_connection_is_everybodys_and_is_tried_again(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        lost = [ConnectionLost("cut"), None, None]
        counting.fails = lambda statement: lost.pop(0) if lost else None
        wanted = [new_claim() for _ in range(8)]
        decisions = await claims(batched, wanted)
        assert all(isinstance(decision, Execute) for decision in decisions)

    drive(migrated_postgres, story)


def test_who_gives_up_does_not_take_the_others_along(migrated_postgres: str) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        keys, wanted = SqlKeys(QUERIES), [new_claim() for _ in range(4)]
        tasks = [
            asyncio.ensure_future(run_async(batched, lambda c=c: keys.claim(c, POLICY)))  # type: ignore[misc]
            for c in wanted
        ]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert all(isinstance(result, Execute) for i, result in enumerate(results) if i != 1)

    drive(migrated_postgres, story)


@pytest.mark.parametrize("many", [1, 4])
def test_a_batch_that_is_torn_down_leaves_nobody_waiting(migrated_postgres: str, many: int) -> None:
    async def story(counting: Counting, batched: AsyncBatchedDriver) -> None:
        torn = [asyncio.CancelledError()]

        def tear(_: Statement) -> Exception | None:
            if torn:
                raise torn.pop()
            return None

        counting.fails = tear
        async with asyncio.timeout(30):
            decisions = await claims(batched, [new_claim() for _ in range(many)])
        # It counts as a lost connection, so each is tried again.
        assert all(isinstance(decision, Execute) for decision in decisions)

    drive(migrated_postgres, story)


def test_the_wait_for_a_batch_is_bounded(migrated_postgres: str) -> None:
    """All batches that may be under way are, and do not come back; what was sent has the driver's bounds."""

    async def run() -> None:
        drivers = migrated(migrated_postgres)
        stuck, gate = Stuck(drivers.aio), asyncio.Event()
        stuck.gate = gate
        batched = AsyncBatchedDriver(stuck, TOGETHER, timeout=0.05)
        sent = []
        for number in range(UNDER_WAY):
            sent.append(asyncio.ensure_future(claims(batched, [new_claim()])))
            while stuck.held <= number:
                await asyncio.sleep(0)
        late = [new_claim() for _ in range(3)]
        async with asyncio.timeout(30):
            with pytest.raises(StoreBusy, match="No batch took this statement"):
                await claims(batched, late)
        held = stuck.held
        gate.set()
        assert all(isinstance(found[0], Execute) for found in await asyncio.gather(*sent))
        assert stuck.held == held == UNDER_WAY, "what was given up was sent all the same"
        await drivers.aio.close()
        drivers.sync.close()

    asyncio.run(run())


def test_it_serves_one_event_loop_after_another(migrated_postgres: str) -> None:
    drivers = migrated(migrated_postgres)
    batched = AsyncBatchedDriver(drivers.aio, TOGETHER)

    async def story() -> None:
        decisions = await claims(batched, [new_claim() for _ in range(4)])
        assert all(isinstance(decision, Execute) for decision in decisions)
        await batched.close()

    asyncio.run(story())
    asyncio.run(story())
    drivers.sync.close()


@pytest.mark.parametrize("name", ["find_many", "reserve_many"])
def test_a_batch_looks_into_the_index_whatever_is_known_about_the_table(postgres_url: str, name: str) -> None:
    """Empty, never analysed, and with many rows: one look for each key, never a scan."""
    migrated(postgres_url).sync.close()
    claim = {
        "scope": ["s1", "s2"],
        "key": ["k1", "k2"],
        "id": ["i1", "i2"],
        "tenant": ["t", "t"],
        "endpoint": ["e", "e"],
        "fingerprint": [b"f", b"f"],
        "fingerprint_version": ["1", "1"],
        "mode": ["leased", "leased"],
        "attempt": ["a1", "a2"],
        "lease_ms": [1, 1],
        "ttl_ms": [1, 1],
        "ttl_from": ["completion", "completion"],
        "after_expiry": ["new", "new"],
        "downstream": ["d1", "d2"],
        "now": None,
    }
    text, names = QUERIES[name].rendered["format"]
    values = [claim[parameter] for parameter in names]
    with psycopg.connect(postgres_url) as connection:
        for prepare in ("select 1", _fill(QUERIES, 20_000), QUERIES.expand("analyze {keys}")):
            connection.execute(prepare.encode())
            plan = "\n".join(str(row[0]) for row in connection.execute(f"explain {text}".encode(), values))
            reads = [line for line in plan.splitlines() if "Scan" in line and " keys" in line]
            assert reads and all("Index" in line for line in reads), plan
        connection.rollback()


def _fill(queries: Queries, rows: int) -> str:
    return queries.expand(
        "insert into {keys} (scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode,"
        " attempt, attempts, created_at, last_run_at, expires_at, completed_at, answer_version,"
        " ttl_ms, ttl_from, after_expiry)"
        " select 's' || n, 'k' || n, 'x' || n, 't', 'e', 'f', '1', 'completed', 'leased', 'b' || n, 1, 1, 1,"
        f" 2, 1, 1, 1, 'completion', 'new' from generate_series(1, {rows}) as n"
    )
