"""A service whose database fails: a server process, a proxy before PostgreSQL, and a node past the proxy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab.processes import ServedApp
from lab.proxy import FaultProxy
from lab.servers.postgres import PostgresServer
from tests.fire.apps import Settings, World
from tests.fire.checkpoints import Checkpoints
from tests.fire.clients import AsgiClient, Got, HttpClient, WsgiClient, in_process
from tests.fire.evidence import Evidence, prepare
from tests.fire.servers import retry_while, served

LEASE = 20.0
"""Seconds. Longer than any fault here lasts, so that no lease ends by accident."""
TIMEOUT = 2.0
"""Seconds that the service waits for its database."""


@dataclass(frozen=True, slots=True)
class Front:
    """Everything that a test of a failing database needs."""

    postgres: PostgresServer
    proxy: FaultProxy
    server: ServedApp
    client: HttpClient
    """To the server, whose way to the database is the proxy."""
    other: AsgiClient | WsgiClient
    """Another node of the service, with a sound connection."""
    checkpoints: Checkpoints
    evidence: Evidence

    def hold(self, path: str, key: str, place: str = "handler wrote") -> Future[Got]:
        """A request that stands at a place."""
        self.checkpoints.arm(place, key)
        request = self.client.start(path, key)
        self.checkpoints.wait_reached(place, key, request)
        return request

    def let_go(self, key: str, place: str = "handler wrote") -> None:
        self.checkpoints.open(place, key)

    def persist(self, path: str, key: str) -> Got:
        """A client that comes back until it is told something final."""
        return retry_while(self.client, path, key, "store_unavailable", "in_progress")

    def go_down(self) -> None:
        self.proxy.refuse()
        self.proxy.cut_all()

    def come_back(self) -> None:
        self.proxy.accept()


@contextmanager
def front(postgres: PostgresServer, world: World, directory: Path) -> Iterator[Front]:
    url = postgres.create_database()
    prepare(url)
    direct = Settings(
        world=world, url=url, directory=str(directory), lease=LEASE, max_run=60, timeout=TIMEOUT
    )
    with (
        FaultProxy.before(url) as proxy,
        served(replace(direct, url=proxy.url_for(url))) as (server, client),
        in_process(direct) as other,
    ):
        yield Front(postgres, proxy, server, client, other, direct.checkpoints, Evidence(direct))
