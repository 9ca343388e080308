"""Fixtures for the stores that tests run on: real servers, and a fresh database for each test."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lab.servers import mariadb
from lab.servers.postgres import MEMORY, NamedServer, PostgresUnavailable, find_server, roomy
from tests.chosen import LEFT, leave_to_the_whole, summary, thin_out

# An example may take as long as the machine likes. In CI there are the same ones in every run, so that a
# failure belongs to the change; elsewhere they are new.
settings.register_profile(
    "samekey",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.load_profile("samekey")

# SQLite waits for the disk at each commit. Like the servers' files, those of tests are kept in memory.
if "TMPDIR" not in os.environ and roomy(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# By name, so that it is there before this version is installed; an installed one is loaded by itself.
pytest_plugins = ["samekey.testing.plugin"]

# Before anything imports them: the bodies of the conformance suite assert as tests do.
pytest.register_assert_rewrite(
    *(
        f"samekey.testing.conformance_{part}"
        for part in ("subject", "claims", "leases", "records", "transactions")
    )
)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[NamedServer]:
    """One server for the run, or for each worker of a parallel run."""
    try:
        server = find_server()
    except PostgresUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)  # in CI a missing store is an error
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres_session_url(postgres_server: NamedServer) -> str:
    """One database for the run: for tests that only read, or that keep to a scope of their own."""
    return postgres_server.create_database()


@pytest.fixture
def postgres_url(postgres_server: NamedServer) -> Iterator[str]:
    """A fresh database for this test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[mariadb.NamedServer]:
    """One server for the run, or for each worker of a parallel run."""
    try:
        server = mariadb.find_server()
    except mariadb.MariaDBUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)  # in CI a missing store is an error
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: mariadb.NamedServer) -> Iterator[str]:
    """A fresh database for this test."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A database file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'samekey.db'}"


@pytest.fixture(autouse=True)
def no_words_of_other_tests(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a thread says that another test has left behind, and that goes on for a while, is not heard."""
    others = {one for one in threading.enumerate() if one.name.startswith("samekey-")}

    def is_its_own(_record: logging.LogRecord) -> bool:
        return threading.current_thread() not in others

    caplog.handler.addFilter(is_its_own)
    yield
    caplog.handler.removeFilter(is_its_own)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "whole: part of the whole matrix, which make test-all runs")
    config.addinivalue_line("markers", "without(**values): these cases of it are left out of every run")
    config.addinivalue_line("markers", "every_pair: of three choices, those in which every pair meets")


def pytest_collection_finish() -> None:
    """What was collected stays: no later search for garbage has to look through it again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    thin_out(config, items)
    leave_to_the_whole(config, items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What did not run, in a line for each reason."""
    if hasattr(config, "workerinput"):
        return
    for line in summary(terminalreporter.stats.get("skipped", []), config.stash.get(LEFT, 0)):
        terminalreporter.write_line(line)
