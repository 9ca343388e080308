"""All of the background work in one service: in a process of its own, or inside the application (B7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from samekey import Executed, Idempotency, OutcomeUnknown, ietf
from samekey.core.claim import call_part, scope_of
from samekey.core.ledger import Comparison, Entry
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.run import run, run_async
from samekey.engine.events import Event
from samekey.stores.sql.migrations import migrate
from samekey.workers.service import Services

OFTEN = timedelta(milliseconds=50)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    found: str = request.getfixturevalue(name)
    return found


def test_every_service_does_its_work_inside_an_application(url: str) -> None:
    with pytest.warns(UserWarning, match="under an hour"):
        policy = ietf(ttl=1, lease=0.3, max_run=0.3)
    idempotency = Idempotency(url, policy=policy)
    run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
    scope = scope_of(call_part("t"))
    compared: list[Comparison] = []
    freed: list[Event] = []
    idempotency.events.subscribe(lambda event: freed.append(event) if event.name == "zombie_key" else None)

    @idempotency.lookup()
    async def found(record: Record) -> Executed:
        return Executed({"found": record.key})

    idempotency.compare_ledgers(
        ours=lambda: [Entry("a", 1, "EUR")], theirs=lambda: [Entry("b", 1, "EUR")], report=compared.append
    )

    async def state(key: str) -> State | None:
        record = await run_async(
            idempotency.engine.drivers.aio, lambda: idempotency.engine.keys.read(scope, key)
        )
        return None if record is None else record.state

    async def until(key: str, *wanted: State | None) -> None:
        async with asyncio.timeout(30):
            while await state(key) not in wanted:
                await asyncio.sleep(0.02)

    def unknown() -> None:
        raise OutcomeUnknown("lost")

    async def story() -> None:
        services = Services(
            sweeper_interval=OFTEN, reaper_interval=OFTEN, reconciler_interval=OFTEN, completer_interval=OFTEN
        )
        hung = asyncio.Event()
        abandoned = asyncio.create_task(
            idempotency.once_async(tenant="t", key="hung", run=hung.wait, mode="repeatable")
        )
        with pytest.raises(OutcomeUnknown):
            await idempotency.once_async(tenant="t", key="lost", run=unknown)
        assert await state("lost") is State.UNKNOWN
        async with idempotency.background(services):
            # The reconciler finds out what was lost. When its time has come the reaper leaves only the fact:
            # a lookup is asked before the key may run again.
            await until("lost", State.COMPLETED, State.EXPIRED)
            await until("lost", State.EXPIRED)
            # The sweeper frees what hung past its longest run; it too is forgotten in the end, soon after.
            async with asyncio.timeout(30):
                while not compared or not freed:
                    await asyncio.sleep(0.02)
            await until("hung", State.FAILED_RETRYABLE, State.EXPIRED, None)
        hung.set()
        await asyncio.gather(abandoned, return_exceptions=True)
        await idempotency.aclose()

    asyncio.run(story())
    assert len(compared[0].missing) == len(compared[0].extra) == 1
    assert [event.facts for event in freed] == [{"mode": "repeatable", "became": "failed_retryable"}]


def test_a_failing_start_is_told_at_once(postgres_url: str) -> None:
    """The tables are missing: the application's own start fails with the sentence that says so."""
    from samekey.errors import SchemaMismatch

    idempotency = Idempotency(postgres_url)

    async def story() -> None:
        async with idempotency.background() as service:
            await asyncio.sleep(0)
            service.stop()

    with pytest.raises(SchemaMismatch, match="samekey migrate"):
        asyncio.run(story())
    idempotency.close()
