"""Fixtures of the tests under fire: a prepared database on each store, and places for evidence."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.processes import Racers
from lab.servers.postgres import PostgresServer, PostgresUnavailable
from tests.chosen import stores
from tests.fire.apps import Settings, World
from tests.fire.clients import Got
from tests.fire.evidence import prepare
from tests.fire.scene import Raised

STORES = ("sqlite", "postgresql")


@pytest.fixture(params=stores(*STORES, first=1))
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(request: pytest.FixtureRequest, store: str) -> str:
    """A database with samekey's tables and one for effects."""
    chosen: str = request.getfixturevalue("sqlite_url" if store == "sqlite" else "postgres_url")
    prepare(chosen)
    return chosen


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Where checkpoints and journals are."""
    place = tmp_path / "fire"
    place.mkdir()
    return str(place)


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    """Ten processes, kept for all races: starting them takes longer than most races."""
    with Racers(10) as pool:
        yield pool


@pytest.fixture(scope="session")
def crashing_postgres() -> Iterator[PostgresServer]:
    """A server of our own: its restarts must not disturb other tests."""
    try:
        server = PostgresServer.start()
    except PostgresUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def settings(world: World, url: str, directory: str) -> Settings:
    return Settings(world=world, url=url, directory=directory)


@pytest.fixture
def postgres(world: World, postgres_url: str, directory: str) -> Settings:
    prepare(postgres_url)
    return Settings(world=world, url=postgres_url, directory=directory)


@pytest.fixture
def sqlite(world: World, sqlite_url: str, directory: str) -> Settings:
    prepare(sqlite_url)
    return Settings(world=world, url=sqlite_url, directory=directory)


@pytest.fixture
def raised(caplog: pytest.LogCaptureFixture) -> Raised:
    """The error that a server would log: propagated, or logged by Flask, which answers for it."""

    def find(got: Got) -> BaseException | None:
        if got.error is not None:
            return got.error
        logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
        return logged[-1] if logged else None

    caplog.set_level(logging.ERROR)
    return find
