"""A caller that is cancelled before its handler began leaves its key as it was: nothing ran."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import psycopg
import pytest

from lab.processes import wait_until
from lab.proxy import FaultProxy
from samekey import Idempotency, StoreUnavailable
from samekey.core.claim import call_part, scope_of
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.run import run, run_in
from samekey.testing.conformance import new_claim
from tests.chosen import whole

Mode = Literal["leased", "repeatable", "atomic"]
SCOPE = scope_of(call_part("t"))


@pytest.fixture
def direct(postgres_url: str) -> Iterator[Idempotency]:
    """For looking at the store while another one is in trouble."""
    found = Idempotency(postgres_url)
    found.migrate()
    yield found
    found.close()


def record_of(idempotency: Idempotency, key: str) -> Record | None:
    # By a row that no lock and no other pool is in the way of.
    return run(idempotency.engine.drivers.sync, lambda: idempotency.engine.keys.read(SCOPE, key))


def settled(idempotency: Idempotency, key: str) -> bool:
    record = record_of(idempotency, key)
    return record is None or record.state is not State.IN_PROGRESS


class Blocker:
    """Somebody whose uncommitted claims of some keys make every other claim of them wait."""

    def __init__(self, idempotency: Idempotency, *keys: str) -> None:
        self._session = idempotency.engine.drivers.sync.open()
        for key in keys:
            claim = new_claim(scope=SCOPE, key=key)
            run_in(self._session, idempotency.engine.keys.claim(claim, idempotency.engine.policy))

    def go_away(self) -> None:
        self._session.rollback()


def waiting(url: str, count: int) -> bool:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        ).fetchone()
    connection.close()
    return row is not None and row[0] >= count


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def call(idempotency: Idempotency, key: str, mode: Mode = "leased") -> asyncio.Task[Any]:
    def never() -> None:
        pytest.fail("the handler was entered")

    return asyncio.ensure_future(idempotency.once_async(tenant="t", key=key, run=never, mode=mode))


def story(url: str, told: Callable[[Idempotency], Awaitable[None]]) -> None:
    async def whole() -> None:
        idempotency = Idempotency(url)
        await told(idempotency)
        await idempotency.aclose()

    asyncio.run(whole())


@pytest.mark.parametrize("mode", ["leased", "repeatable"])
def test_a_claim_that_lands_after_its_caller_left_is_given_back(
    postgres_url: str, direct: Idempotency, mode: Mode
) -> None:
    blocker = Blocker(direct, "k")

    async def told(idempotency: Idempotency) -> None:
        task = call(idempotency, "k", mode)
        await until(lambda: waiting(postgres_url, 1))
        await cancelled(task)  # at once, though the claim is on its way
        blocker.go_away()
        await until(lambda: not waiting(postgres_url, 1) and record_of(direct, "k") is None)
        again = await idempotency.once_async(tenant="t", key="k", run=lambda: "now", mode=mode)
        assert again == "now"

    story(postgres_url, told)
    with psycopg.connect(postgres_url) as connection:
        states = [row[0] for row in connection.execute("select to_state from samekey.audit order by id")]
    connection.close()
    assert "unknown" not in states, states


def test_a_claim_that_waits_in_a_batch_is_not_sent_for_a_caller_that_left(
    postgres_url: str, direct: Idempotency
) -> None:
    blocker = Blocker(direct, "a", "b")

    async def told(idempotency: Idempotency) -> None:
        blocked = []
        for number, key in enumerate("ab"):
            blocked.append(call(idempotency, key))
            await until(lambda number=number: waiting(postgres_url, number + 1))  # type: ignore[misc]
        left = [call(idempotency, f"left {number}") for number in range(20)]
        await asyncio.sleep(0)  # they are in the queue now
        for task in left:
            await cancelled(task)
        for task in blocked:
            await cancelled(task)
        blocker.go_away()
        await until(lambda: settled(direct, "a") and settled(direct, "b"))
        assert await idempotency.once_async(tenant="t", key="left 0", run=lambda: "now") == "now"

    story(postgres_url, told)
    with psycopg.connect(postgres_url) as connection:
        query = "select distinct key from samekey.audit where key like 'left%'"
        claimed = {row[0] for row in connection.execute(query)}
    connection.close()
    assert claimed == {"left 0"}, "nobody waited for the others"


def test_atomic_work_whose_caller_left_before_the_handler_gives_its_connection_back(
    postgres_url: str, direct: Idempotency
) -> None:
    blocker = psycopg.connect(postgres_url)

    async def told(idempotency: Idempotency) -> None:
        await idempotency.once_async(tenant="t", key="first", run=lambda: None)  # everything is set up
        blocker.execute("lock table samekey.keys in access exclusive mode")
        tasks = [call(idempotency, f"k{number}", "atomic") for number in range(30)]
        await until(lambda: waiting(postgres_url, 1))
        for task in tasks:
            await cancelled(task)
        blocker.rollback()
        # Every connection is there again, also for handlers that all hold one at the same time.
        together = asyncio.Barrier(10)

        async def hold() -> str:
            await together.wait()
            return "held"

        holders = [
            idempotency.once_async(tenant="t", key=f"h{number}", run=hold, mode="atomic")
            for number in range(10)
        ]
        with pytest.warns(RuntimeWarning, match="wrote nothing"):
            assert await asyncio.gather(*holders) == ["held"] * 10

    story(postgres_url, told)
    blocker.close()
    assert record_of(direct, "k0") is None


@whole
def test_atomic_work_on_mariadb_gives_its_claim_back_if_no_connection_is_free(mariadb_url: str) -> None:
    direct = Idempotency(mariadb_url)
    direct.migrate()

    async def told() -> None:
        idempotency = Idempotency(mariadb_url, pool_size=1, timeout=1)
        holds, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> str:
            holds.set()
            await go_on.wait()
            return "held"

        first = asyncio.ensure_future(
            idempotency.once_async(tenant="t", key="first", run=hold, mode="atomic")
        )
        await holds.wait()
        second = call(idempotency, "second", "atomic")
        await until(lambda: record_of(direct, "second") is not None)
        await cancelled(second)
        await until(lambda: record_of(direct, "second") is None)
        go_on.set()
        with pytest.warns(RuntimeWarning, match="wrote nothing"):
            assert await first == "held"
        await idempotency.aclose()

    asyncio.run(told())
    direct.close()


def test_requests_that_are_refused_leave_no_work_behind(postgres_url: str, direct: Idempotency) -> None:
    with FaultProxy.before(postgres_url) as proxy:
        idempotency = Idempotency(proxy.url_for(postgres_url))
        idempotency.check()
        proxy.refuse()
        proxy.cut_all()
        for number in range(50):
            with pytest.raises(StoreUnavailable):
                idempotency.once(tenant="t", key=f"k{number}", run=lambda: pytest.fail("it ran"))
        # At most the ones whose pooled connection was cut under them may have landed.
        assert len(idempotency.engine.keeper._late._items) <= 1
        proxy.accept()
        idempotency.close()
