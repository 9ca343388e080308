"""An event loop that ends with its call (``asyncio.run`` per task, in a process that lives on).

What the engine owes then is known to a thread: no key is held under which nothing ran, and what ran is
recorded. So it is where nobody cancels what is left: a loop that is closed, or kept for the next call.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest

from lab.processes import wait_until
from lab.servers import mariadb
from lab.servers.redis import RedisUnavailable, find_server
from samekey import Idempotency, Policy, StillRunning, current_operation
from samekey.engine import stranded
from samekey.engine.errands import Errands
from samekey.errors import SamekeyError, StoreBusy
from tests.chosen import stores
from tests.engine.test_cancelled_claims import waiting
from tests.redis.conftest import unavailable

Mode = Literal["leased", "atomic"]

# What a loop leaves behind that was ended in the middle of something is what this is about.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("lands", ["before", "with", "after"])
def test_what_lands_while_the_loop_ends_is_let_go(lands: str) -> None:
    """At each turn of the loop after the caller has left."""
    for turns in range(8):
        let_go(turns, lands)


def let_go(turns: int, lands: str) -> None:
    landed: list[str] = []
    returned: list[str] = []

    async def main() -> None:
        arrives = asyncio.Event()

        async def work() -> str:
            with suppress(asyncio.CancelledError):  # as a thread's statement, which nobody interrupts
                await arrives.wait()
            landed.append("claim")
            return "claim"

        async def unwanted(result: str) -> None:
            returned.append(result)

        begun = asyncio.ensure_future(Errands().begin(work(), unwanted, returned.append))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if lands == "before":
            arrives.set()
        begun.cancel()
        if lands == "with":
            arrives.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        arrives.set()

    asyncio.run(main())
    assert landed and returned == landed, "exactly once"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    try:
        server = find_server()
    except RedisUnavailable as error:
        unavailable(error)
    with server:
        yield server.create_database()


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped event loops are looked for more often, so that nobody has to wait for it."""
    monkeypatch.setattr(stranded, "BEAT", 0.05)


async def write(key: str) -> None:
    connection = current_operation().connection
    await connection.execute(f"insert into effects values ('{key}')")


How = Literal["cancelled", "closed", "kept"]


def torn(
    idempotency: Idempotency, key: str, mode: Mode, turns: int, how: How = "cancelled"
) -> Callable[[], bool]:
    """Calls in a loop that ends after so many turns; gives whether the function ran."""
    ran: list[int] = []

    async def main() -> None:
        async def run() -> str:
            ran.append(1)
            if mode == "atomic":
                await write(key)
            return "first"

        call = idempotency.once_async(tenant="t", key=key, run=run, mode=mode, name="call")
        task = asyncio.ensure_future(call)
        for _ in range(turns):
            await asyncio.sleep(0)
            if task.done():
                break
        task.cancel()
        await asyncio.sleep(0)  # it hears of it, as under a time-out

    if how == "cancelled":
        asyncio.run(main())
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        if how == "closed":
            loop.close()
        else:
            KEPT.append(loop)
    return lambda: bool(ran)


KEPT: list[asyncio.AbstractEventLoop] = []


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Those loops are closed in the end."""
    yield
    while KEPT:
        KEPT.pop().close()
    gc.collect()


@pytest.mark.parametrize("store", stores("postgres", "sqlite", "redis", "mariadb"))
def test_whenever_the_loop_ends_no_key_is_left_behind(request: pytest.FixtureRequest, store: str) -> None:
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"))
    if store != "redis":
        idempotency.migrate()
    turns = [*range(20), *range(20, 200, 10), *range(200, 2_000, 100)]
    runs = {f"k{number}": torn(idempotency, f"k{number}", "leased", number) for number in turns}

    def settled(key: str) -> bool:
        """Free if nothing ran, its outcome known if something did."""
        try:
            again = idempotency.once(tenant="t", key=key, run=lambda: "again", name="call")
        except StillRunning:
            return False
        return bool(again == ("first" if runs[key]() else "again"))

    for key in list(runs):
        wait_until(lambda key=key: settled(key))  # type: ignore[misc]
    idempotency.close()
    gc.collect()  # connections of loops that have ended


@pytest.mark.parametrize("how", ["closed", "kept"])
@pytest.mark.parametrize("store", stores("sqlite", "postgres", "redis", "mariadb", first=1))
@pytest.mark.usefixtures("beat")
def test_whenever_the_loop_stops_no_key_is_left_behind(
    request: pytest.FixtureRequest, store: str, how: How
) -> None:
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"))
    if store != "redis":
        idempotency.migrate()
    turns = [*range(20), *range(20, 200, 20), *range(200, 2_000, 200)]
    runs = {f"{how}{n}": torn(idempotency, f"{how}{n}", "leased", n, how) for n in turns}

    def settled(key: str) -> bool:
        try:
            again = idempotency.once(tenant="t", key=key, run=lambda: "again", name="call")
        except StillRunning:
            return False
        return bool(again == ("first" if runs[key]() else "again"))

    for key in list(runs):
        wait_until(lambda key=key: settled(key))  # type: ignore[misc]
    idempotency.close()


@pytest.mark.parametrize("how", ["closed", "kept"])
@pytest.mark.parametrize("store", stores("postgres", "sqlite", "mariadb", first=1))
@pytest.mark.usefixtures("beat")
def test_whenever_the_loop_stops_atomic_work_is_done_once_and_holds_up_nobody(
    request: pytest.FixtureRequest, store: str, how: How
) -> None:
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"), pool_size=3)
    idempotency.migrate()
    ask = asker(idempotency)
    ask("create table effects (k varchar(50))")
    turns = [*range(20), *range(20, 200, 20), *range(200, 2_000, 200)]
    keys = [f"{how}{n}" for n in turns]
    for key, number in zip(keys, turns, strict=True):
        torn(idempotency, key, "atomic", number, how)

    async def again(key: str) -> bool:
        try:
            await idempotency.once_async(
                tenant="t", key=key, run=lambda: write(key), mode="atomic", name="call"
            )
        except (StillRunning, StoreBusy):
            return False
        return True

    async def story() -> None:
        for key in keys:
            async with asyncio.timeout(60):
                while not await again(key):
                    await asyncio.sleep(0.05)
        await idempotency.aclose()

    asyncio.run(story())
    assert sorted(ask("select k from effects")) == sorted((key,) for key in keys)


@pytest.mark.parametrize("how", ["closed", "kept"])
@pytest.mark.parametrize("store", stores("postgres", "sqlite", "mariadb", first=1))
def test_the_longest_run_ends_also_in_a_loop_that_has_stopped(
    request: pytest.FixtureRequest, store: str, how: How
) -> None:
    """In the middle of the handler, which nobody has cancelled."""
    policy = Policy(max_run=timedelta(seconds=1), lease=timedelta(seconds=1))
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"), policy=policy)
    idempotency.migrate()
    ask = asker(idempotency)
    ask("create table effects (k varchar(50))")
    loop = asyncio.new_event_loop()

    async def hangs() -> None:
        await write("first")
        loop.stop()
        await asyncio.Event().wait()

    async def call(key: str, run: Callable[[], Awaitable[None]]) -> None:
        await idempotency.once_async(tenant="t", key=key, run=run, mode="atomic", name="call")

    hanging = loop.create_task(call("k", hangs))
    loop.run_forever()
    if how == "closed":
        loop.close()

    async def story() -> None:
        for key in ("k", "other"):
            async with asyncio.timeout(60):
                while True:
                    try:
                        await call(key, lambda key=key: write(f"again-{key}"))  # type: ignore[misc]
                        break
                    except (StillRunning, StoreBusy):
                        await asyncio.sleep(0.05)
        await idempotency.aclose()

    asyncio.run(story())
    assert sorted(ask("select k from effects")) == [("again-k",), ("again-other",)]
    if how == "kept":
        hanging.cancel()
        with suppress(asyncio.CancelledError, SamekeyError):
            loop.run_until_complete(hanging)
        loop.close()
    else:
        hanging._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.usefixtures("beat")
def test_a_loop_that_goes_on_finds_what_a_thread_has_recorded_meanwhile(postgres_url: str) -> None:
    idempotency = Idempotency(postgres_url)
    idempotency.migrate()
    blocker = psycopg.connect(postgres_url)

    async def run() -> str:
        blocker.execute("select 1 from samekey.keys for update")  # whoever records the outcome has to wait
        return "first"

    async def begin() -> asyncio.Task[Any]:
        task = asyncio.ensure_future(idempotency.once_async(tenant="t", key="k", run=run, name="call"))
        await asyncio.to_thread(wait_until, lambda: waiting(postgres_url, 1))
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    wait_until(lambda: waiting(postgres_url, 2))  # a thread does it, too
    blocker.rollback()
    blocker.close()
    again = idempotency.once
    wait_until(lambda: not waiting(postgres_url, 1))
    assert again(tenant="t", key="k", run=lambda: "again", name="call") == "first"
    assert loop.run_until_complete(task) == "first"
    loop.run_until_complete(idempotency.aclose())
    loop.close()


def asker(idempotency: Idempotency) -> Callable[[str], Any]:
    """Asks the database itself."""
    url = idempotency.engine.url
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")

        def ask(sql: str) -> Any:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()

        return ask
    if url.startswith("mysql"):
        return lambda sql: [tuple(row) for row in mariadb.ask(url, sql)]

    def ask_postgres(sql: str) -> Any:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(sql)
            return found.fetchall() if found.description else []

    return ask_postgres


def test_an_outcome_that_was_being_recorded_when_the_loop_ended_is_recorded(postgres_url: str) -> None:
    idempotency = Idempotency(postgres_url)
    idempotency.migrate()
    blocker = psycopg.connect(postgres_url)

    async def run() -> str:
        blocker.execute("select 1 from samekey.keys for update")  # whoever records the outcome has to wait
        return "first"

    async def main() -> None:
        call = idempotency.once_async(tenant="t", key="k", run=run, name="call")
        task = asyncio.ensure_future(call)
        await asyncio.to_thread(wait_until, lambda: waiting(postgres_url, 1))
        task.cancel()

    asyncio.run(main())
    gc.collect()
    # Its connection is lost with the loop, and with it what was on its way.
    blocker.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()"
    )
    blocker.rollback()
    blocker.close()

    def again() -> str | None:
        try:
            told = idempotency.once(tenant="t", key="k", run=lambda: "again", name="call")
        except StillRunning:
            return None
        return str(told)

    wait_until(lambda: again() is not None)
    assert again() == "first"
    idempotency.close()
