"""What is handed over while the last tries of a stop run is tried too: by them, or by who comes after."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from lab.processes import wait_until
from samekey.core.program import Program
from samekey.engine.late import LateOutcomes
from samekey.errors import StoreUnavailable


class Away:
    """A store that is away until it is told otherwise, and what was recorded."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.asked: list[str] = []
        self.recorded: list[str] = []

    def record(self, name: str) -> Program[bool]:
        yield from ()
        self.asked.append(name)
        if not self.there.is_set():
            raise StoreUnavailable("away")
        self.recorded.append(name)
        return True


def stopped_in_a_thread(late: LateOutcomes) -> threading.Thread:
    """One whose last tries have begun: they have everything in hand."""
    stopping = threading.Thread(target=late.stop)
    stopping.start()
    wait_until(lambda: late._stopping and not late._items and not late._trying)
    return stopping


def attend_late(late: LateOutcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hands something over gets to see that somebody attends to it only after the last tries have
    taken it: so they find nothing to attend to."""
    attend = late.attend

    def after_it_was_taken() -> None:
        wait_until(lambda: not late._items)
        attend()

    monkeypatch.setattr(late, "attend", after_it_was_taken)


def test_what_the_last_tries_take_and_cannot_do_is_attended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=time.sleep)
    monkeypatch.setattr("samekey.engine.late.LAST_TRIES", 60)
    monkeypatch.setattr("samekey.engine.late.time", clock)
    store, late = Away(), LateOutcomes(None)  # type: ignore[arg-type]
    late.record(lambda: store.record("before"), 600)
    stopping = stopped_in_a_thread(late)
    with monkeypatch.context() as patched:
        attend_late(late, patched)
        late.record(lambda: store.record("meanwhile"), 600)
    later[0] = 60.0  # their time is over, and the store still away
    stopping.join(60)
    store.there.set()
    wait_until(lambda: {*store.recorded} == {"before", "meanwhile"})
    late.stop()


def test_a_claim_that_is_handed_over_in_the_last_tries_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samekey.engine.late.LAST_TRIES", 60)
    store, late = Away(), LateOutcomes(None)  # type: ignore[arg-type]
    late.record(lambda: store.record("before"), 60)
    stopping = stopped_in_a_thread(late)
    attend_late(late, monkeypatch)
    late.give_back(lambda: store.record("claim"))
    store.there.set()
    stopping.join(60)
    assert {*store.recorded} == {"before", "claim"}


def test_a_thread_that_was_followed_by_another_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was busy when it was stopped, and somebody went on before it saw that."""
    monkeypatch.setattr("samekey.engine.late.LAST_TRIES", 60)
    store, late, busy, go_on = Away(), LateOutcomes(None), threading.Event(), threading.Event()  # type: ignore[arg-type]
    store.there.set()

    def slow() -> Program[None]:
        yield from ()
        busy.set()
        assert go_on.wait(60)

    late.record(slow, 60)
    assert busy.wait(60)
    stopping = threading.Thread(target=late.stop)
    stopping.start()
    wait_until(lambda: late._thread is None)
    late.record(lambda: store.record("after"), 60)
    wait_until(lambda: store.recorded == ["after"])
    go_on.set()
    stopping.join(30)
    assert not stopping.is_alive()
    late.stop()
