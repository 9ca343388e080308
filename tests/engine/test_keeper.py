"""The keeper renews every live lease in time, however they come and go (S3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from samekey.core.program import Program, Row, Statement
from samekey.core.record import Lease
from samekey.engine.keeper import Keeper
from samekey.errors import StoreUnavailable
from samekey.testing.processes import wait_until


class Store:
    """Counts renewals; it can be told to be away, or to have given a lease to somebody else."""

    def __init__(self) -> None:
        self.renewed: dict[str, int] = {}
        self.taken: set[str] = set()
        self.away = False
        self._lock = threading.Lock()

    def renew(self, leases: Sequence[Lease]) -> Program[set[str]]:
        yield from ()  # a program that needs no statement
        if self.away:
            raise StoreUnavailable("away")
        held = {lease.attempt for lease in leases} - self.taken
        with self._lock:
            for attempt in held:
                self.renewed[attempt] = self.renewed.get(attempt, 0) + 1
        return held

    def execute(self, statement: Statement) -> Sequence[Row]:
        raise AssertionError("no statement is asked for")

    def open(self, connection: object = None) -> object:
        raise AssertionError("no transaction is asked for")

    def close(self) -> None:
        return None


def lease(name: str, milliseconds: int) -> Lease:
    return Lease("scope", name, name, milliseconds)


def test_a_lease_that_comes_after_an_idle_time_is_renewed() -> None:
    store = Store()
    keeper = Keeper(store, store.renew)  # type: ignore[arg-type]
    first = lease("first", 300)
    keeper.watch(first, 60_000)
    wait_until(lambda: store.renewed.get("first", 0) >= 2)
    keeper.forget(first)
    keeper.watch(lease("second", 300), 60_000)
    wait_until(lambda: store.renewed.get("second", 0) >= 2)
    keeper.stop()


def test_a_short_lease_beside_a_long_one_is_renewed_in_time() -> None:
    store = Store()
    keeper = Keeper(store, store.renew)  # type: ignore[arg-type]
    keeper.watch(lease("long", 3_600_000), 7_200_000)
    wait_until(lambda: keeper._wakes_at < float("inf"))
    keeper.watch(lease("short", 300), 60_000)
    wait_until(lambda: store.renewed.get("short", 0) >= 2)
    keeper.stop()


def test_a_lease_is_renewed_only_until_its_longest_run() -> None:
    store = Store()
    keeper = Keeper(store, store.renew)  # type: ignore[arg-type]
    hung = lease("hung", 300)
    keeper.watch(hung, 500)
    wait_until(lambda: hung.attempt not in keeper._watched)
    assert keeper.remaining(hung) == 0
    keeper.stop()


def test_a_lease_that_somebody_else_has_taken_is_dropped() -> None:
    store = Store()
    keeper = Keeper(store, store.renew)  # type: ignore[arg-type]
    lost = lease("lost", 300)
    store.taken.add("lost")
    keeper.watch(lost, 60_000)
    assert keeper.remaining(lost) > 0
    wait_until(lambda: keeper.remaining(lost) == 0 and "lost" not in keeper._watched)
    keeper.stop()


def test_a_store_that_was_away_is_used_again() -> None:
    store = Store()
    store.away = True
    keeper = Keeper(store, store.renew)  # type: ignore[arg-type]
    keeper.watch(lease("kept", 300), 60_000)
    recorded = threading.Event()

    def record() -> Program[None]:
        yield from ()
        if store.away:
            raise StoreUnavailable("away")
        recorded.set()

    keeper.record_later(lease("late", 60_000), record)
    time.sleep(0.2)  # not a wait for anything: the store is away for a while
    assert not recorded.is_set()
    store.away = False
    assert recorded.wait(10)
    wait_until(lambda: store.renewed.get("kept", 0) >= 1)
    keeper.stop()


def test_it_stops_at_once_even_with_nothing_to_do() -> None:
    store = Store()
    keeper = Keeper(store, store.renew)  # type: ignore[arg-type]
    keeper.watch(lease("a", 3_600_000), 7_200_000)
    thread = keeper._thread
    assert thread is not None
    keeper.stop()
    assert not thread.is_alive()
