"""Background work never stops silently: it outlives an absent store, and what falls out of its loop is begun
anew. It is never held by one piece of work, not even at its end."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from lab.proxy import FaultProxy
from samekey import ConfigurationError, Idempotency, OutcomeUnknown
from samekey.drivers.run import run
from samekey.engine.events import Event
from samekey.stores.sql.migrations import migrate
from samekey.workers import service as service_module
from samekey.workers.service import Services, WorkerService
from samekey.workers.sweeper import Sweeper
from tests.chosen import stores

OFTEN = timedelta(milliseconds=50)


async def until(condition: Any, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("store", stores("postgres", "mariadb", first=1))
def test_background_work_comes_to_life_when_the_store_does(
    request: pytest.FixtureRequest,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url: str = request.getfixturevalue(f"{store}_url")
    ready = Idempotency(url)
    run(ready.engine.drivers.sync, lambda: migrate(ready.engine.queries))
    ready.close()
    monkeypatch.setattr(service_module.STARTING.__class__, "pause_ms", lambda *_: 20)
    told: list[Event] = []
    with FaultProxy.before(url) as proxy:
        proxy.refuse()
        idempotency = Idempotency(proxy.url_for(url), timeout=1)
        idempotency.events.subscribe(told.append)

        async def story() -> None:
            async with idempotency.background(Services(sweeper_interval=OFTEN)) as service:
                assert (service.state, service.healthy) == ("starting", False)
                await until(lambda: sum(event.name == "worker.trouble" for event in told) >= 3)
                assert "store" in service.troubles
                await asyncio.to_thread(proxy.accept)
                await until(lambda: service.healthy)
                # The same when it goes away later on.
                await asyncio.to_thread(proxy.stall)
                await until(lambda: "sweeper" in service.troubles)
                assert (service.state, service.healthy) == ("running", False)
                await asyncio.to_thread(proxy.flow)
                await until(lambda: service.healthy)
            assert service.state == "stopped"
            await idempotency.aclose()

        asyncio.run(story())
    assert "The store failed" in caplog.text and "cannot be reached" in caplog.text


def test_background_work_waits_for_a_migration_that_comes_after_the_store(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Database and application start together: first there is no server, then there are no tables."""
    monkeypatch.setattr(service_module.STARTING.__class__, "pause_ms", lambda *_: 20)
    with FaultProxy.before(postgres_url) as proxy:
        proxy.refuse()
        idempotency = Idempotency(proxy.url_for(postgres_url), timeout=1)

        async def story() -> None:
            async with idempotency.background(Services(sweeper_interval=OFTEN)) as service:
                assert service.state == "starting"
                await asyncio.to_thread(proxy.accept)
                await until(lambda: "samekey migrate" in service.troubles.get("store", ""))
                assert (service.state, service.healthy) == ("starting", False)
                await asyncio.to_thread(migrated, postgres_url)
                await until(lambda: service.healthy)
            await idempotency.aclose()

        asyncio.run(story())
    assert "samekey migrate" in caplog.text


def migrated(url: str) -> None:
    ready = Idempotency(url)
    run(ready.engine.drivers.sync, lambda: migrate(ready.engine.queries))
    ready.close()


@pytest.mark.parametrize("how", ["raises", "cancelled"])
def test_background_work_that_ends_by_itself_says_so_at_once(
    how: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = Idempotency(sqlite_url)

    async def broken(_: WorkerService) -> None:
        raise RuntimeError("a bug") if how == "raises" else asyncio.CancelledError

    monkeypatch.setattr(WorkerService, "_run_loops", broken)

    async def story() -> None:
        async with idempotency.background() as service:
            await until(lambda: "service" in service.troubles)
            assert not service.healthy
            assert [one.levelname for one in caplog.records] == ["CRITICAL"]

    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        asyncio.run(story())
    assert "has ended by itself" in caplog.text
    idempotency.close()


@pytest.mark.parametrize("thrown", [SystemExit, asyncio.CancelledError, RuntimeError, GeneratorExit])
def test_a_service_that_is_thrown_out_of_its_loop_is_started_anew(
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    thrown: type[BaseException],
) -> None:
    idempotency = Idempotency(sqlite_url)
    looks: list[int] = []

    async def falls(_: Any) -> int:
        looks.append(1)
        if len(looks) == 1:
            raise thrown
        return 0

    monkeypatch.setattr(Sweeper, "run_once", falls)

    async def story() -> None:
        async with idempotency.background(Services(sweeper_interval=OFTEN)) as service:
            await until(lambda: len(looks) > 2)
            await until(lambda: service.healthy)
        await idempotency.aclose()

    asyncio.run(story())
    assert "The sweeper failed" in caplog.text


async def ignores_everything(*_: Any) -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@pytest.mark.parametrize("what", ["lookup", "sync lookup", "ledger", "sync ledger", "sweeper"])
def test_whatever_hangs_the_end_comes_after_the_grace_time(
    sqlite_url: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    idempotency = Idempotency(sqlite_url)
    began, release = threading.Event(), threading.Event()

    async def hangs(*_: Any) -> Any:
        began.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass

    def hangs_sync(*_: Any) -> Any:
        began.set()
        release.wait(60)

    function: Any = hangs_sync if what.startswith("sync") else hangs
    if "lookup" in what:
        idempotency.lookup()(function)
    elif "ledger" in what:
        idempotency.compare_ledgers(ours=function, theirs=lambda: [])
    else:
        monkeypatch.setattr(Sweeper, "run_once", hangs)

    def unknown() -> None:
        raise OutcomeUnknown("lost")

    async def story() -> float:
        with pytest.raises(OutcomeUnknown):
            await idempotency.once_async(tenant="t", key="k", run=unknown)
        services = Services(grace=timedelta(seconds=0.2), reconciler_interval=OFTEN)
        async with idempotency.background(services):
            await until(began.is_set)
            stopped = time.monotonic()
        return time.monotonic() - stopped

    loop = asyncio.new_event_loop()
    try:
        took = loop.run_until_complete(story())
        assert took < 10, took  # of an hour
        release.set()
        loop.run_until_complete(asyncio.sleep(0.2))
        loop.run_until_complete(idempotency.aclose())
    finally:
        release.set()
        loop.close()
    assert "left" in caplog.text


def test_two_services_can_be_looked_at(sqlite_url: str) -> None:
    """What a readiness probe asks."""
    service = WorkerService(Idempotency(sqlite_url).engine)
    assert (service.state, service.healthy, service.hanging, service.troubles) == ("starting", False, {}, {})


@pytest.mark.parametrize(
    "setting",
    [
        {"concurrency": 0},
        {"completer_concurrency": -1},
        {"reconciler_tries": True},
        {"lease": timedelta(0)},
        {"lease": -5},
        {"grace": timedelta(seconds=-1)},
        {"lease": timedelta(days=10**6)},
        {"sweeper_interval": "soon"},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_at_once(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Services(**setting)


def test_durations_may_be_seconds() -> None:
    assert Services(lease=30, grace=2.5) == Services(  # type: ignore[arg-type]
        lease=timedelta(seconds=30), grace=timedelta(seconds=2.5)
    )
