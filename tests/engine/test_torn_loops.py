"""An event loop that ends with its call (``asyncio.run`` per task, in a process that lives on).

What the engine owes then is known to a thread: no key is held under which nothing ran, and what ran is
recorded.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

import psycopg
import pytest

from lab.processes import wait_until
from lab.servers.redis import RedisUnavailable, find_server
from samekey import Idempotency, StillRunning
from samekey.engine.errands import Errands
from tests.engine.test_cancelled_claims import waiting
from tests.redis.conftest import unavailable

Mode = Literal["leased", "atomic"]

# What a loop leaves behind that was ended in the middle of something is what this is about.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("lands", ["before", "with", "after"])
def test_what_lands_while_the_loop_ends_is_let_go(turns: int, lands: str) -> None:
    """At each turn of the loop after the caller has left."""
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


def torn(idempotency: Idempotency, key: str, mode: Mode, turns: int) -> Callable[[], bool]:
    """Calls in a loop that ends after so many turns; gives whether the function ran."""
    ran: list[int] = []

    async def main() -> None:
        async def run() -> str:
            ran.append(1)
            return "first"

        call = idempotency.once_async(tenant="t", key=key, run=run, mode=mode, name="call")
        task = asyncio.ensure_future(call)
        for _ in range(turns):
            await asyncio.sleep(0)
            if task.done():
                break
        task.cancel()

    asyncio.run(main())
    return lambda: bool(ran)


@pytest.mark.parametrize("store", ["redis", "postgres", "sqlite", "mariadb"])
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
