"""One service for most tests, on each store; those that kill something have their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.servers import mariadb, postgres
from tests.chosen import stores
from tests.payments.running import Service, service


@pytest.fixture(scope="session", params=stores("sqlite", "postgres", "mariadb", first=1))
def shared_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('payments') / 'payments.db'}"
    server: postgres.NamedServer | mariadb.NamedServer = request.getfixturevalue(f"{request.param}_server")
    return server.create_database()


@pytest.fixture(scope="session")
def running(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Application, worker and provider."""
    with service(shared_url, tmp_path_factory.mktemp("running")) as found:
        found.start_worker()
        yield found


@pytest.fixture(params=stores("sqlite", "postgres", "mariadb", first=1))
def fresh_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def without_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("quiet")
    with service(f"sqlite:///{directory / 'payments.db'}", directory) as found:
        yield found


@pytest.fixture
def quiet(without_worker: Service) -> Iterator[Service]:
    """Application and provider; no worker, so nothing is found out behind the test's back."""
    yield without_worker
    without_worker.provider.recover()
    without_worker.cards.recover()
