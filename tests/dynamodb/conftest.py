"""A DynamoDB server for the tests of this folder, and tables on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.servers.dynamodb import CREDENTIALS, DynamoUnavailable, NamedServer, find_server
from samekey.drivers.run import run
from samekey.drivers.url import Drivers, drivers_for
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.dynamodb.table import migrate


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[NamedServer]:
    """One server for the run, or for each worker of a parallel run."""
    try:
        server = find_server()
    except DynamoUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)  # in CI a missing store is an error
        pytest.skip(str(error))
    with server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def dynamodb_session_url(dynamodb_server: NamedServer) -> str:
    """One table for the run: for tests that keep to a scope of their own."""
    return migrated(dynamodb_server.url())


@pytest.fixture
def dynamodb_url(dynamodb_server: NamedServer) -> str:
    """A fresh table for this test."""
    return migrated(dynamodb_server.url())


@pytest.fixture
def dynamodb(dynamodb_session_url: str) -> Iterator[Drivers]:
    """Drivers of the table of the run."""
    drivers = drivers_for(dynamodb_session_url)
    yield drivers
    drivers.sync.close()


def migrated(url: str) -> str:
    """The same URL, when its table is there."""
    drivers = drivers_for(url)
    run(drivers.sync, lambda: migrate(DynamoStatements()))
    drivers.sync.close()
    return url
