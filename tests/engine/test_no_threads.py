"""A moment in which no thread can be started: nothing runs unattended, and all is well once it is over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from lab.processes import wait_until
from samekey import Idempotency, current_operation
from samekey.core.program import Program
from samekey.drivers import loan
from samekey.drivers.alarm import Alarm
from samekey.drivers.postgres import psycopg_session
from samekey.drivers.threads import Lane
from samekey.engine.keeper import Keeper
from samekey.errors import StoreBusy, StoreUnavailable
from tests.chosen import stores
from tests.engine.test_keeper import Store, lease

Mode = Literal["leased", "atomic"]


@contextmanager
def no_threads() -> Iterator[None]:
    """As at a container's limit of processes."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield


def test_leases_are_renewed_once_threads_can_be_started_again() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    with no_threads(), pytest.raises(StoreBusy, match="No thread can be started"):
        keeper.watch(lease("refused", 300), 60_000)
    keeper.watch(lease("kept", 300), 60_000)
    wait_until(lambda: store.renewed.get("kept", 0) >= 2)
    assert "refused" not in store.renewed, "nothing runs under it"
    keeper.stop()


def test_what_is_to_be_recorded_later_waits_for_a_thread() -> None:
    store = Store()
    keeper = Keeper(store, store.renew, store.held)  # type: ignore[arg-type]
    recorded: list[str] = []

    def record() -> Program[None]:
        yield from ()
        recorded.append("outcome")

    with no_threads():
        keeper.record_later(lease("late", 60_000), record)
    keeper.watch(lease("another", 60_000), 60_000)
    wait_until(lambda: recorded == ["outcome"])
    keeper.stop()


def test_an_alarm_goes_off_once_threads_can_be_started_again() -> None:
    alarm, called = Alarm(), threading.Event()
    with no_threads(), pytest.raises(StoreBusy):
        alarm.after(0, called.set)
    alarm.after(0, called.set)
    assert called.wait(30)


def test_an_alarm_outlives_what_it_calls() -> None:
    alarm, called = Alarm(), threading.Event()

    def leave() -> None:
        raise SystemExit

    alarm.after(0, leave)
    alarm.after(0, called.set)
    assert called.wait(30)


@pytest.mark.parametrize("mode", ["leased", "atomic"])
@pytest.mark.parametrize("store", stores("postgres", "sqlite", "mariadb"))
def test_a_call_that_cannot_be_attended_to_leaves_its_key_as_it_was(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str, mode: Mode
) -> None:
    alarm = Alarm()  # whose thread has not been needed yet
    monkeypatch.setattr(loan, "ALARM", alarm)
    monkeypatch.setattr(psycopg_session, "ALARM", alarm)
    idempotency = Idempotency(request.getfixturevalue(f"{store}_url"), pool_size=1)
    idempotency.migrate()

    def run() -> str:
        if mode == "atomic":
            current_operation().connection.cursor().execute("select 1")
        return "now"

    with no_threads():
        for _ in range(2):  # more than there are connections
            with pytest.raises(StoreUnavailable, match="No thread can be started"):
                idempotency.once(tenant="t", key="k", run=lambda: pytest.fail("it ran"), mode=mode)
    with pytest.warns(RuntimeWarning) if mode == "atomic" else _nothing():
        assert idempotency.once(tenant="t", key="k", run=run, mode=mode) == "now"
    idempotency.close()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_what_has_no_thread_is_never_done_later_and_an_end_is_made_at_once() -> None:
    done: list[str] = []

    async def story() -> None:
        lane = Lane("lane", 1, 5)
        with no_threads():
            with pytest.raises(StoreBusy):
                await lane.run(lambda: done.append("statement"), after=lambda: done.append("free again"))
            await lane.finish(lambda: done.append("rollback"), after=lambda: done.append("turn given back"))
        await lane.run(lambda: done.append("next"))
        await lane.close()

    asyncio.run(story())
    assert done == ["free again", "rollback", "turn given back", "next"]
