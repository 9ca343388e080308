"""A server that is told to end while a guarded handler runs: the handler ends first, its record is kept."""

from __future__ import annotations

import http.client
import os
import signal
from typing import get_args

import pytest

from lab.processes import LOOPBACK, ServedApp, wait_until
from tests.chosen import every_pair, whole
from tests.fire.apps import Mode, Settings, World
from tests.fire.clients import BODY, in_process
from tests.fire.evidence import Evidence
from tests.fire.servers import served

pytestmark = whole


SHUTTING_DOWN = {"asgi": "Shutting down", "wsgi": "Handling signal: term"}


@every_pair
@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("world", get_args(World))
def test_a_running_handler_is_waited_for(url: str, directory: str, mode: Mode, world: World) -> None:
    settings = Settings(world=world, url=url, directory=directory)
    checkpoints, evidence, path = settings.checkpoints, Evidence(settings), f"/{mode}"
    with served(settings) as (server, client):
        checkpoints.arm("handler start", "last")
        request = client.start(path, "last")
        checkpoints.wait_reached("handler start", "last", request)
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: SHUTTING_DOWN[world] in server.output())
        assert server.running and not request.done()
        checkpoints.open("handler start", "last")
        got = request.result()
        assert got.is_new
        wait_until(lambda: not server.running)
    assert (evidence.state("last"), evidence.effects("last")) == ("completed", 1)
    with in_process(settings) as again:
        assert again.send(path, "last").repeats(got)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_handler_whose_client_has_left_is_waited_for(url: str, directory: str, mode: Mode) -> None:
    """No connection is left; the operation runs on all the same."""
    settings = Settings(world="asgi", url=url, directory=directory)
    with served(settings) as (server, _):
        connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=30)
        headers = {"Idempotency-Key": "last", "Content-Type": "application/json"}
        settings.checkpoints.arm("handler start", "last")
        connection.request("POST", f"/{mode}", BODY, headers)
        wait_until(lambda: Evidence(settings).runs("last"))
        connection.close()
        assert_kept(settings, server, f"/{mode}", "Waiting for background tasks to complete")


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_handler_that_the_server_has_given_up_is_waited_for(url: str, directory: str, mode: Mode) -> None:
    """The server's own patience is over and it cancels the request; the operation is shielded from that."""
    settings = Settings(world="asgi", url=url, directory=directory)
    with served(settings, options=["--timeout-graceful-shutdown", "1"]) as (server, client):
        settings.checkpoints.arm("handler start", "last")
        request = client.start(f"/{mode}", "last")
        settings.checkpoints.wait_reached("handler start", "last", request)
        assert_kept(settings, server, f"/{mode}", "Waiting for application shutdown")
        assert request.result().status == 500, "the server's own word for it"


def assert_kept(settings: Settings, server: ServedApp, path: str, waiting: str) -> None:
    """Told to end, the server says what it waits for; the handler ends, then the server."""
    evidence = Evidence(settings)
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: waiting in server.output())
    assert server.running and evidence.state("last") != "completed"
    settings.checkpoints.open("handler start", "last")
    wait_until(lambda: not server.running)
    assert "Application shutdown complete" in server.output()
    assert (evidence.state("last"), evidence.effects("last")) == ("completed", 1)
    with in_process(settings) as again:
        got = again.send(path, "last")
        assert got.status == 201 and got.replayed
