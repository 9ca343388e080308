"""A worker in which no thread can be started says so, and leaves the jobs to others as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from lab.processes import wait_until
from samekey.workers import unable
from samekey.workers.watchdog import STUCK
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.test_fairness import serving
from tests.outbox.world import Outbox


class Threads:
    """Those of jobs cannot be started, as at a container's limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.refused = 0
        start, self.are_there = threading.Thread.start, False

        def refuse(thread: threading.Thread) -> None:
            if not self.are_there and thread.name.startswith(names):
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def nodes(
    request: pytest.FixtureRequest, loop: LoopThread, threads: ThreadPoolExecutor
) -> Iterator[tuple[Outbox, Outbox]]:
    url = request.getfixturevalue(f"{request.param}_url")
    with closing(Outbox(url, loop, threads)) as sick, closing(Outbox(url, loop, threads)) as healthy:
        yield sick, healthy


@pytest.mark.parametrize("names", [("job ",), ("samekey-keeper",)], ids=["of the jobs", "of their keeper"])
def test_what_cannot_be_begun_here_is_left_to_others_at_once(
    nodes: tuple[Outbox, Outbox], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, healthy = nodes
    done: list[str] = []
    for one in nodes:
        one.idempotency.job("charge", max_attempts=1)(lambda job, _: done.append(job.id))
    for _ in range(5):
        sick.place("charge")
    threads, worker = Threads(monkeypatch, *names), sick.worker()

    async def look() -> int:
        await worker.run_once()
        await worker.drain()
        return worker.took

    assert sick.run(look()) == 5 and threads.refused
    assert "left to other workers: charge" in worker.unable.sentence
    assert sick.run(look()) == 0, "it takes none that it could not begin"
    assert worker.next_due_ms is not None and worker.next_due_ms > 0
    threads.are_there = True
    other = healthy.worker()
    healthy.run(other.run_once())  # without waiting for anything to become due
    healthy.run(other.drain())
    assert len(done) == 5 and {job.attempts for job in healthy.jobs()} == {1}


def test_the_pause_grows_and_ends_with_a_job_that_is_begun(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.idempotency.job("charge")(lambda job, _: None)
    for _ in range(3):
        outbox.place("charge")
    threads, worker = Threads(monkeypatch, "job "), outbox.worker()
    taken, tries = [], []
    for _ in range(4):
        outbox.work(worker)
        taken.append(worker.took)
        tries.append(worker.unable._kinds["charge"].tries)
        worker.unable._kinds["charge"].until = 0.0  # its pause is over
    assert tries == [1, 2, 3, 4], "what was taken together counts once"
    assert unable.PAUSES.pause_ms(1, 1) < unable.PAUSES.pause_ms(4, 1)
    assert taken == [3, 1, 1, 1], "one is enough to try"
    threads.are_there = True
    outbox.work(worker, rounds=2)
    assert worker.unable.sentence == "" and {job.state for job in outbox.jobs()} == {"done"}


def test_the_service_is_not_healthy(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox.idempotency.job("charge")(lambda job, _: None)
    outbox.place("charge")
    threads = Threads(monkeypatch, "job ")
    with serving(outbox) as service:
        wait_until(lambda: "outbox, unable" in service.troubles, 30)
        assert not service.healthy
        threads.are_there = True
        wait_until(lambda: outbox.job().state == "done", 60)
        wait_until(lambda: service.healthy, 30)


def test_a_process_of_its_own_ends_where_that_lasts(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unable, "ENDURED", -1.0)
    outbox.idempotency.job("charge")(lambda job, _: None)
    with serving(outbox) as service:
        wait_until(lambda: service.state == "running", 30)
        monkeypatch.setattr(service, "_own_process", True)
        Threads(monkeypatch, "job ")
        outbox.place("charge")
        wait_until(lambda: service.state == "stopped", 60)
        assert service._exit_code == STUCK
