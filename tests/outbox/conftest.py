"""The stores of the outbox's tests: each a fresh database."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.provider import Provider
from samekey.workers import apart
from tests.chosen import stores
from tests.edges.callers import LoopThread
from tests.outbox.world import Outbox
from tests.thrift import leave_out


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def outbox(request: pytest.FixtureRequest, loop: LoopThread, threads: ThreadPoolExecutor) -> Iterator[Outbox]:
    """On every transactional store; where PostgreSQL matters in each run, for ``ON_POSTGRES_TOO``."""
    found = Outbox(request.getfixturevalue(f"{request.param}_url"), loop, threads)
    yield found
    found.close()


ON_POSTGRES_TOO = pytest.mark.parametrize("outbox", stores("sqlite", "postgres", "mariadb"), indirect=True)


@pytest.fixture
def postgres_outbox(postgres_url: str, loop: LoopThread, threads: ThreadPoolExecutor) -> Iterator[Outbox]:
    found = Outbox(postgres_url, loop, threads)
    yield found
    found.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stopped may take as long as the machine needs to be given back."""
    monkeypatch.setattr(apart, "FAREWELL", 20.0)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with Provider.start(tmp_path / "provider") as found:
        yield found


NOT_ON_MARIADB = {
    "test_a_job_that_kills_its_process_takes_nobody_with_it",
    "test_a_job_that_blocks_the_event_loop_ends_as_a_dead_letter",
    "test_a_worker_paused_past_its_lease_cannot_finish_what_another_has_taken",
    "test_whatever_the_provider_does_the_charge_is_one",
    "test_sigterm_gives_back_what_does_not_finish",
    "test_sigterm_lets_jobs_finish_and_takes_no_more",
    "test_an_idle_worker_costs_next_to_nothing",
    "test_sigterm_ends_a_worker_that_cannot_even_hear_it",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items, Path(__file__).parent, NOT_ON_MARIADB)
