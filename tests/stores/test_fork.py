"""After a fork: a child never uses a connection, a thread or a lock of its parent's."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from samekey import Idempotency, current_operation
from samekey.core.record import Lease
from samekey.drivers.pool import Pool
from samekey.errors import StillRunning, StoreUnavailable
from tests.chosen import stores
from tests.stores.crash_scenarios import execute

PATIENCE = 20
"""Seconds after which a child that hangs is ended."""


def in_child(story: Callable[[], object]) -> None:
    """Runs it in a forked child, and fails where it fails or hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            story()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write(result: Any) -> Any:
    """Something that an atomic handler does."""
    current_operation().connection.cursor().execute("insert into effects values (1)")
    return result


def ready(url: str) -> Idempotency:
    made = Idempotency(url)
    made.migrate()
    execute(url, "create table effects (n int)")
    return made


def call(idempotency: Idempotency, key: str, run: Callable[[], Any]) -> Any:
    return idempotency.once(tenant="t", key=key, name="call", run=run, mode="atomic")


class Held:
    """A lock that a thread of this process holds while something happens."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._holding, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._lock:
            self._holding.set()
            self._done.wait(2 * PATIENCE)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._holding.wait(PATIENCE)

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def test_threads_of_a_child_are_never_handed_a_connection_of_the_parents() -> None:
    closed: list[object] = []
    pool: Pool[object] = Pool(object, closed.append, size=6)
    idle = [pool.take() for _ in range(6)]
    parents = {id(one) for one in idle}
    for one in idle:
        pool.give_back(one)

    def story() -> None:
        sys.setswitchinterval(1e-6)  # whoever looks in between is sure to be found
        together = threading.Barrier(6)
        taken: list[object] = []

        def take() -> None:
            together.wait(PATIENCE)
            taken.append(pool.take())

        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(taken) == 6 and not parents & {id(one) for one in taken}
        for one in idle:  # as a session that was open at the fork ends
            pool.give_back(one)
            pool.forget(one)
        assert pool.in_use == 6 and closed == []

    for _ in range(20):
        in_child(story)
    assert pool.take() in idle


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb"))
def idempotency(request: pytest.FixtureRequest) -> Any:
    made = ready(request.getfixturevalue(f"{request.param}_url"))
    assert call(made, "warm", lambda: write(1)) == 1
    yield made
    made.close()


def test_no_lock_that_a_thread_of_the_parent_held_is_waited_for(idempotency: Idempotency) -> None:
    driver: Any = idempotency.engine.drivers.sync
    pools = [one for one in vars(driver).values() if isinstance(one, Pool)]
    lanes = [one for one in vars(idempotency.engine.drivers.aio).values() if type(one).__name__ == "Lane"]
    keeper, breaker = idempotency.engine.keeper, idempotency.engine.breaker
    assert pools
    locks = [*(pool._lock for pool in pools), *(lane._lock for lane in lanes)]
    locks += [keeper._wake, keeper._late._wake, breaker._lock]

    async def use() -> None:
        async def run() -> int:
            await current_operation().connection.execute("insert into effects values (1)")
            return 3

        assert await idempotency.once_async(tenant="t", key="async", run=run, mode="atomic") == 3
        await idempotency.aclose()

    def story() -> None:
        keeper.forget(Lease("s", "k", "a", 1000))
        with pytest.raises(StoreUnavailable), breaker:
            raise StoreUnavailable("away")
        idempotency.engine.drivers.sync.close()
        assert call(idempotency, "child", lambda: write(2)) == 2
        asyncio.run(use())
        idempotency.close()

    for lock in locks:
        with Held(lock):
            in_child(story)
    assert call(idempotency, "child", lambda: write(4)) == 2


def test_what_runs_in_the_parent_does_not_keep_its_key_in_the_child_for_ever(postgres_url: str) -> None:
    idempotency = ready(postgres_url)
    begun, ended = threading.Event(), threading.Event()
    (from_child, to_parent), (from_parent, to_child) = os.pipe(), os.pipe()

    def slow() -> str:
        begun.set()
        assert ended.wait(PATIENCE)
        raise ValueError("the parent's fails")

    def run() -> None:
        with pytest.raises(ValueError, match="fails"):
            call(idempotency, "k", slow)

    running = threading.Thread(target=run)
    running.start()
    assert begun.wait(PATIENCE)

    def parent() -> None:
        os.read(from_child, 1)
        ended.set()
        running.join(PATIENCE)
        os.write(to_child, b"!")

    def story() -> None:
        with pytest.raises(StillRunning):
            call(idempotency, "k", lambda: write("child"))
        os.write(to_parent, b"!")
        os.read(from_parent, 1)
        assert call(idempotency, "k", lambda: write("child")) == "child"

    beside = threading.Thread(target=parent)
    beside.start()
    try:
        in_child(story)
    finally:
        os.write(to_parent, b"!")
        beside.join(PATIENCE)
        idempotency.close()
