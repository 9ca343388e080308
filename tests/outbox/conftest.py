"""The stores of the outbox's tests: each a fresh database."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from samekey.testing.provider import Provider
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


@pytest.fixture(params=["sqlite", "postgres"])
def outbox(request: pytest.FixtureRequest, loop: LoopThread, threads: ThreadPoolExecutor) -> Iterator[Outbox]:
    """On both stores."""
    found = Outbox(request.getfixturevalue(f"{request.param}_url"), loop, threads)
    yield found
    found.close()


@pytest.fixture
def postgres_outbox(postgres_url: str, loop: LoopThread, threads: ThreadPoolExecutor) -> Iterator[Outbox]:
    found = Outbox(postgres_url, loop, threads)
    yield found
    found.close()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with Provider.start(tmp_path / "provider") as found:
        yield found
