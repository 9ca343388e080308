"""What async functions give to threads, and leave there, holds their places and nobody else's threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from lab import environment
from lab.processes import wait_until
from samekey import JobContext
from samekey.workers import apart, own_threads
from tests.outbox.test_fairness import crowd, is_done, serving
from tests.outbox.world import NO_PAUSE, Outbox


@pytest.fixture(autouse=True)
def farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "FAREWELL", 0.02)


class Sdk:
    """A provider's library, which is sync: it hangs until the provider is there again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0
        self.answers = threading.Event()

    def call(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.answers.wait(60)
        with self._lock:
            self.inside -= 1


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    found = Sdk()
    yield found
    found.answers.set()


async def waits(sdk: Sdk) -> None:
    await asyncio.to_thread(sdk.call)


async def gives_up(sdk: Sdk) -> None:
    """A time-out of its own, which is over as soon as the library is at work."""
    inside, loop = asyncio.Event(), asyncio.get_running_loop()

    def call() -> None:
        loop.call_soon_threadsafe(inside.set)
        sdk.call()

    calling = asyncio.ensure_future(asyncio.to_thread(call))
    await inside.wait()
    calling.cancel()
    raise TimeoutError


@pytest.mark.parametrize("how", [waits, gives_up])
def test_calls_that_hang_in_threads_hold_their_places_and_harm_no_other_kind(
    outbox: Outbox, sdk: Sdk, how: Any
) -> None:
    """They are told to end, or have a time-out of their own: the thread goes on in either case."""

    @outbox.idempotency.job("hung", timeout=1, backoff=NO_PAUSE, max_attempts=1000)
    async def hung(job: JobContext, _: Any) -> None:
        await how(sdk)

    @outbox.idempotency.job("well", max_attempts=1)
    async def well(job: JobContext, _: Any) -> None:
        await asyncio.to_thread(threading.get_ident)

    crowd(outbox, "hung", 30)
    with serving(outbox, concurrency=10) as service:
        wait_until(lambda: "outbox, hanging" in service.troubles, 60)
        outbox.place("well")
        wait_until(is_done(outbox, "well"), 60)
        wait_until(lambda: sdk.inside == sum(service.hanging.values()) == 7, 60)
        assert sdk.most == 7
        sdk.answers.set()
        wait_until(lambda: service.healthy and not service.hanging, 60)


def test_one_call_has_no_more_threads_than_asyncio_has(outbox: Outbox) -> None:
    ours: set[int] = set()

    @outbox.idempotency.job("many")
    async def many(job: JobContext, _: Any) -> None:
        began = threading.Barrier(own_threads.WIDEST)

        def together(number: int) -> None:
            began.wait(60)
            ours.add(number)

        await asyncio.gather(*(asyncio.to_thread(together, n) for n in range(3 * own_threads.WIDEST)))

    outbox.place("many")
    with serving(outbox):
        wait_until(is_done(outbox, "many"), 60)
    assert len(ours) == 3 * own_threads.WIDEST


ENDS = """
import asyncio, threading
from datetime import timedelta
from samekey.workers.apart import Apart, TooLong
from samekey.workers.own_threads import use_own_threads

async def main():
    use_own_threads(asyncio.get_running_loop())
    calls = Apart()
    try:
        await calls.at_most(timedelta(seconds=0.05), "job", asyncio.to_thread(threading.Event().wait))
    except TooLong:
        print(dict(calls.hanging))

asyncio.run(main())
"""


def test_a_process_does_not_wait_for_a_call_that_hangs_in_a_thread() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ENDS],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.strip() == "{'job': 1}"


def test_what_ends_soon_after_it_was_stopped_is_given_back(
    outbox: Outbox, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is still at work when the worker stops, and not for long: nobody waits for its lease."""
    monkeypatch.setattr(apart, "FAREWELL", 20.0)

    @outbox.idempotency.job("brief")
    async def brief(job: JobContext, _: Any) -> None:
        await waits(sdk)

    outbox.place("brief")
    worker = outbox.worker(grace=timedelta(0))

    async def story() -> None:
        own_threads.use_own_threads(asyncio.get_running_loop())
        await worker.run_once()
        async with asyncio.timeout(60):
            while not sdk.inside:
                await asyncio.sleep(0.01)
        threading.Timer(0.3, sdk.answers.set).start()
        await worker.stop()

    outbox.run(story())
    found = outbox.job()
    assert (found.state, found.attempts, found.attempt) == ("live", 0, None)
