"""The keeper renews every live lease in time, however they come and go (S3)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from lab import environment
from lab.processes import wait_until
from samekey.core.program import Program, Row, Statement
from samekey.core.record import Lease
from samekey.engine.keeper import AT_ONCE, Keeper
from samekey.engine.late import MOST, SETTLE, LateOutcomes
from samekey.errors import StoreError, StoreUnavailable


class Store:
    """Counts renewals; it can be told to be away, or to have given a lease to somebody else."""

    def __init__(self) -> None:
        self.renewed: dict[str, int] = {}
        self.taken: set[str] = set()
        self.locked: set[str] = set()
        self.refused: set[str] = set()
        self.largest = 0
        self.away = False
        self.closed = 0
        self._lock = threading.Lock()

    def renew(self, leases: Sequence[Lease]) -> Program[set[str]]:
        yield from ()  # a program that needs no statement
        if self.away:
            raise StoreUnavailable("away")
        asked = {lease.attempt for lease in leases}
        self.largest = max(self.largest, len(leases))
        if asked & self.refused:
            raise StoreError("refused")
        held = asked - self.taken - self.locked
        with self._lock:
            for attempt in held:
                self.renewed[attempt] = self.renewed.get(attempt, 0) + 1
        return held

    def held(self, leases: Sequence[Lease]) -> Program[set[str]]:
        yield from ()
        return {lease.attempt for lease in leases} - self.taken

    def execute(self, statement: Statement) -> Sequence[Row]:
        raise AssertionError("no statement is asked for")

    def open(self, connection: object = None) -> object:
        raise AssertionError("no transaction is asked for")

    def close(self) -> None:
        self.closed += 1


def lease(name: str, milliseconds: int) -> Lease:
    return Lease("scope", name, name, milliseconds)


def end(keeper: Keeper) -> None:
    """With whatever the test has left."""
    with keeper._wake:
        keeper._watched.clear()
    keeper.stop()


def renewal_is_due(keeper: Keeper) -> None:
    """The next one of every lease, without waiting for it."""
    with keeper._wake:
        for watch in keeper._watched.values():
            watch.due = 0
        keeper._wake.notify()


def test_a_lease_that_comes_after_an_idle_time_is_renewed() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    first = lease("first", 300)
    keeper.watch(first, 60_000)
    wait_until(lambda: store.renewed.get("first", 0) >= 2)
    keeper.forget(first)
    keeper.watch(lease("second", 300), 60_000)
    wait_until(lambda: store.renewed.get("second", 0) >= 2)
    end(keeper)


def test_a_short_lease_beside_a_long_one_is_renewed_in_time() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    keeper.watch(lease("long", 3_600_000), 7_200_000)
    wait_until(lambda: keeper._wakes_at < float("inf"))
    keeper.watch(lease("short", 300), 60_000)
    wait_until(lambda: store.renewed.get("short", 0) >= 2)
    end(keeper)


def test_a_lease_is_renewed_only_until_its_longest_run() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    hung = lease("hung", 300)
    keeper.watch(hung, 500)
    wait_until(lambda: hung.attempt not in keeper._watched)
    assert keeper.remaining(hung) == 0
    end(keeper)


def test_a_lease_that_somebody_else_has_taken_is_dropped() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    lost = lease("lost", 3_600_000)
    keeper.watch(lost, 7_200_000)
    assert keeper.remaining(lost) > 0
    store.taken.add("lost")
    renewal_is_due(keeper)
    wait_until(lambda: keeper.remaining(lost) == 0 and "lost" not in keeper._watched)
    end(keeper)


def test_a_store_that_was_away_is_used_again() -> None:
    store = Store()
    store.away = True
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
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
    end(keeper)


def test_it_stops_at_once_even_with_nothing_to_do() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    keeper.watch(lease("a", 3_600_000), 7_200_000)
    thread = keeper._thread
    assert thread is not None
    keeper.forget(lease("a", 3_600_000))
    keeper.stop()
    assert not thread.is_alive()


def test_what_runs_when_it_is_stopped_is_renewed_until_it_has_ended() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    running = lease("running", 300)
    keeper.watch(running, 60_000)
    thread = keeper._thread
    assert thread is not None
    keeper.stop()
    seen = store.renewed.get("running", 0)
    wait_until(lambda: store.renewed.get("running", 0) >= seen + 2)
    closed = store.closed
    keeper.forget(running)
    thread.join(30)
    assert not thread.is_alive() and store.closed == closed + 1, "it has closed what it had opened again"
    keeper.watch(lease("next", 300), 60_000)
    wait_until(lambda: store.renewed.get("next", 0) >= 1)
    end(keeper)


def test_what_waits_for_the_store_when_it_is_stopped_is_tried_by_who_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("samekey.engine.late.LAST_TRIES", 0.1)
    store = Store()
    store.away = True
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    recorded = threading.Event()

    def record() -> Program[None]:
        yield from ()
        if store.away:
            raise StoreUnavailable("away")
        recorded.set()

    keeper.record_later(lease("late", 60_000), record)
    tries = keeper._late._thread
    assert tries is not None
    keeper.stop()  # one of two applications has ended
    tries.join(30)  # and has put back what it could not record
    store.away = False
    keeper.watch(lease("a", 3_600_000), 7_200_000)
    assert recorded.wait(30)
    end(keeper)


def test_a_locked_record_is_tried_again_and_not_given_up() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    locked, other = lease("locked", 300), lease("other", 300)
    store.locked.add("locked")
    keeper.watch(locked, 60_000)
    keeper.watch(other, 60_000)
    wait_until(lambda: store.renewed.get("other", 0) >= 3)
    assert "locked" in keeper._watched, "it is still ours as far as anybody knows"
    wait_until(lambda: keeper.remaining(locked) == 0)  # but nobody may rely on it
    store.locked.clear()
    wait_until(lambda: keeper.remaining(locked) > 0)
    assert store.renewed["locked"] >= 1
    end(keeper)


def test_leases_are_renewed_in_statements_of_bounded_size_that_fail_alone() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    store.refused.add("0")
    leases = [lease(str(number), 3000) for number in range(3 * AT_ONCE)]
    for one in leases:
        keeper.watch(one, 60_000)
    wait_until(lambda: len(store.renewed) >= 2 * AT_ONCE)
    assert store.largest <= AT_ONCE
    end(keeper)


def test_an_outcome_that_is_refused_for_good_does_not_keep_others_from_being_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    tried, recorded = [], threading.Event()

    def refused(error: Exception) -> Program[None]:
        yield from ()
        tried.append(error)
        raise error

    def record() -> Program[None]:
        yield from ()
        recorded.set()

    keeper.record_later(lease("nul", 60_000), lambda: refused(StoreError("it cannot take a NUL")))
    keeper.record_later(lease("bug", 60_000), lambda: refused(ValueError("a bug of a driver's")))
    keeper.record_later(lease("slow", 60_000), lambda: refused(StoreUnavailable("no answer to this one")))
    keeper.record_later(lease("good", 60_000), record)
    assert recorded.wait(10)
    keeper.stop()
    assert [type(error) for error in tried[:2]] == [StoreError, ValueError]
    assert sum(isinstance(error, StoreError) and "NUL" in str(error) for error in tried) == 1, "dropped"
    assert "refused an outcome for good" in caplog.text


def test_late_outcomes_that_hang_do_not_hold_up_a_live_lease() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    entered, go_on = threading.Event(), threading.Event()

    def hang() -> Program[None]:
        yield from ()
        entered.set()
        go_on.wait(30)

    keeper.record_later(lease("late", 60_000), hang)
    assert entered.wait(10)
    keeper.watch(lease("live", 300), 60_000)
    wait_until(lambda: store.renewed.get("live", 0) >= 3)
    go_on.set()
    end(keeper)


def test_what_waits_for_the_store_is_bounded() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]

    def away() -> Program[None]:
        yield from ()
        raise StoreUnavailable("away")

    for _ in range(MOST + 100):
        keeper.record_later(lease("late", 60_000), away)
    assert len(keeper._late._items) <= MOST
    end(keeper)


def test_a_claim_to_give_back_is_looked_for_until_it_has_had_time_to_land() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    answers = iter([False, False, True])
    asked: list[bool] = []

    def give_back() -> Program[bool]:
        yield from ()
        asked.append(next(answers))
        return asked[-1]

    keeper.give_back_later(give_back)
    wait_until(lambda: asked == [False, False, True] and not keeper._late._items)
    end(keeper)


def test_a_claim_is_given_back_however_long_the_store_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was sent before the silence may be carried out after it."""
    clock = [0.0]
    monkeypatch.setattr("samekey.engine.late.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=None))
    late, asked = LateOutcomes(Store()), list[str]()  # type: ignore[arg-type]
    silence = StoreUnavailable("silence")
    given: list[bool | StoreUnavailable] = [silence, silence, False, True]
    answers = iter(given)
    monkeypatch.setattr(late, "attend", lambda: None)

    def give_back() -> Program[bool]:
        yield from ()
        answer = next(answers)
        asked.append(repr(answer))
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    late.give_back(give_back)
    for _ in range(4):
        clock[0] += 7_200
        if len(asked) == 3:
            clock[0] += SETTLE / 2 - 7_200
        late._try_due()
    assert len(asked) == 4 and not late._items


def test_a_claim_that_lands_half_a_minute_after_it_was_looked_for_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited at the server, for a lock that only writers mind or for a standby, while a look passed."""
    clock = [0.0]
    monkeypatch.setattr("samekey.engine.late.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=None))
    late, asked = LateOutcomes(Store()), list[bool]()  # type: ignore[arg-type]
    monkeypatch.setattr(late, "attend", lambda: None)

    def give_back() -> Program[bool]:
        yield from ()
        asked.append(clock[0] >= 30)
        return asked[-1]

    late.give_back(give_back)
    for _ in range(8):
        late._try_due()
        clock[0] += 5
    assert asked[-1] and not late._items


def test_what_waits_is_tried_for_a_while_when_the_process_stops(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    tries: list[int] = []

    def record() -> Program[None]:
        yield from ()
        tries.append(threading.get_ident())
        if len(tries) < 4:
            raise StoreUnavailable("away")

    def record_another() -> Program[None]:
        yield from ()
        if len(tries) < 4:  # the store is away for both, whichever is tried first
            raise StoreUnavailable("away")
        another.append(len(tries))

    another: list[int] = []
    store.away = True
    keeper.record_later(lease("late", 60_000), record)
    keeper.record_later(lease("later", 60_000), record_another)
    keeper.stop()
    assert len(tries) >= 4 and another
    assert caplog.text.count("will be tried again: away") == 1


AT_EXIT = """
from samekey.engine.late import LateOutcomes
from samekey.errors import StoreUnavailable

tries = []

def record():
    yield from ()
    tries.append(1)
    if len(tries) < 4:
        raise StoreUnavailable("away")
    print("recorded", flush=True)

late = LateOutcomes(None)
late.record(record, 60)
"""


def test_a_program_that_just_ends_records_what_waits() -> None:
    child = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        check=True,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.stdout == "recorded\n", child.stderr


def test_what_waits_is_tried_once_more_when_the_process_stops() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    tries: list[bool] = []

    def record() -> Program[None]:
        yield from ()
        tries.append(store.away)
        if store.away:
            raise StoreUnavailable("away")

    store.away = True
    keeper.record_later(lease("late", 60_000), record)
    wait_until(lambda: bool(tries))
    store.away = False
    keeper.stop()
    assert tries[-1] is False
