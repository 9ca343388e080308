"""Encryption keys rotate while applications and workers run: no job is lost, counted or buried for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from cryptography.fernet import Fernet

from samekey.encryption import fernet
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.world import Outbox, order

OLD, NEW = Fernet.generate_key(), Fernet.generate_key()


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb"))
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@contextmanager
def process(url: str, loop: LoopThread, threads: ThreadPoolExecutor, *keys: bytes) -> Iterator[Outbox]:
    """An application or a worker that was started with these keys."""
    with closing(Outbox(url, loop, threads, {"encryption": fernet(*keys)})) as outbox:
        outbox.idempotency.job("charge", max_attempts=1)(lambda job, payload: payload)
        yield outbox


def test_the_documented_rotation_loses_nothing(
    url: str, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    """In each roll-out old and new processes run side by side, and each does the other's jobs."""
    stages: list[tuple[bytes, ...]] = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
    placed: list[str] = []
    for before, after in itertools.pairwise(stages):
        with process(url, loop, threads, *before) as one, process(url, loop, threads, *after) as other:
            for writer, worker in ((one, other), (other, one)):
                key = f"{len(placed)}"
                placed.append(key)
                writer.place("charge", {"number": key}, key=key)
                worker.work()
                assert worker.client("async").send(order(key)).json() == {"number": key}
        with process(url, loop, threads, *after) as one:
            states = {(job.state, job.attempts) for job in one.jobs()}
            assert states == {("done", 1)}


def test_a_job_waits_for_a_worker_with_its_key(
    url: str, loop: LoopThread, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """The new key was put in front everywhere at once: the old workers leave the new jobs alone."""
    with process(url, loop, threads, NEW, OLD) as app, process(url, loop, threads, OLD) as old:
        app.place("charge", {"a": 1}, key="k")
        old.work(rounds=5)
        waiting = app.job()
        assert (waiting.state, waiting.attempts, waiting.attempt) == ("live", 0, None)
        assert app.states() == [("pending", None)]
        assert caplog.text.count("lacks the encryption key") == 1
        app.work()
        assert (app.job().state, app.job().attempts) == ("done", 1)
        assert app.client("async").send(order("k")).json() == {"a": 1}
