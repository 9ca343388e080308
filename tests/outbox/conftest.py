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
