"""kill -9 at each step of both modes, through a real server; then a restart and a retry.

Several requests stand at different steps when the process dies, each with a key of its own, since one death
is as good as another. Only SQLite's write lock can be held by just one of them at a time.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import get_args

import pytest

from lab.processes import ServedApp
from tests.chosen import every_pair
from tests.fire.apps import Mode, Settings, World
from tests.fire.clients import HttpClient
from tests.fire.evidence import Evidence
from tests.fire.servers import retry_while, serve

LEASE = 1.0
"""Seconds. A killed holder's lease must run out while the test waits."""

STEPS = {
    ("sqlite", "atomic"): {
        "before the claim": "before find",
        "after the claim": "after reserve",
        "before the effect": "handler start",
        "after the effect": "handler wrote",
        "before the completion": "before complete",
        "before the commit": "before commit",
        "after the commit": "after commit",
        "before the answer": "answer",
    },
    ("postgresql", "atomic"): {
        "before the claim": "before find",
        "after the claim": "after atomic_enter",
        "before the effect": "handler start",
        "after the effect": "handler wrote",
        "before the completion": "before atomic_commit",
        "before the commit": "before commit",
        "after the commit": "after commit",
        "before the answer": "answer",
    },
    ("sqlite", "leased"): {
        "before the claim": "before find",
        "after the claim": "after reserve",
        "before the effect": "handler start",
        "after the effect": "handler wrote",
        "before the completion": "before complete",
        "after the completion": "after complete",
        "before the answer": "answer",
    },
    ("postgresql", "leased"): {
        "before the claim": "before reserve",
        "after the claim": "after reserve",
        "before the effect": "handler start",
        "after the effect": "handler wrote",
        "before the completion": "before complete",
        "after the completion": "after complete",
        "before the answer": "answer",
    },
}

NOT_RUN = {"before the claim", "after the claim"}
DURABLE = {"after the commit", "after the completion", "before the answer"}
LOCKING = ("after the effect", "before the completion", "before the commit")
"""Steps of atomic work that hold SQLite's only write lock."""


def deaths(store: str, mode: Mode) -> Iterator[list[str]]:
    """The steps, by the deaths that they share."""
    steps = list(STEPS[store, mode])
    if (store, mode) != ("sqlite", "atomic"):
        yield steps
        return
    first, *rest = LOCKING
    yield [step for step in steps if step not in LOCKING] + [first]  # the lock is taken last
    yield from ([step] for step in rest)


def die_at(server: ServedApp, settings: Settings, path: str, places: dict[str, str]) -> None:
    """Brings one request to each place, then kills the server."""
    with HttpClient(server.port) as client:
        requests = []
        for key, place in places.items():
            settings.checkpoints.arm(place, key)
            requests.append(client.start(path, key))
            settings.checkpoints.wait_reached(place, key, requests[-1])
        server.kill9()
        for request in requests:
            with pytest.raises((OSError, http.client.HTTPException)):
                request.result()


@every_pair
@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("world", get_args(World))
def test_killed_at_every_step(store: str, url: str, directory: str, mode: Mode, world: World) -> None:
    settings = Settings(world=world, url=url, directory=directory, lease=LEASE, max_run=30)
    evidence, path = Evidence(settings), f"/{mode}"
    steps = STEPS[store, mode]
    server = serve(settings)
    try:
        for together in deaths(store, mode):
            keys = {step: step.replace(" ", "-") for step in together}
            die_at(server, settings, path, {keys[step]: steps[step] for step in together})
            before = {step: evidence.runs(key) for step, key in keys.items()}
            assert before == {step: int(step not in NOT_RUN) for step in together}
            server = serve(settings)
            with HttpClient(server.port) as client:
                for step, key in keys.items():
                    check = check_atomic if mode == "atomic" else check_leased
                    check(client, evidence, step, key)
    finally:
        server.stop()


def check_atomic(client: HttpClient, evidence: Evidence, step: str, key: str) -> None:
    """One effect, and the retry succeeds: by a replay, or by a run of its own."""
    ran = evidence.runs(key)
    assert evidence.effects(key) == int(step in DURABLE), step
    got = retry_while(client, "/atomic", key, "in_progress")
    assert got.status == 201, step
    assert got.replayed == (step in DURABLE), step
    assert evidence.runs(key) == ran + int(step not in DURABLE), step
    assert evidence.effects(key) == 1, step
    assert client.send("/atomic", key).repeats(got), step


def check_leased(client: HttpClient, evidence: Evidence, step: str, key: str) -> None:
    """Never a silent second run: what may have happened is unknown, and says so."""
    ran, effects = evidence.runs(key), evidence.effects(key)
    got = retry_while(client, "/leased", key, "in_progress")
    if step == "before the claim":
        assert got.is_new
        assert (evidence.runs(key), evidence.effects(key)) == (1, 1)
        return
    if step in DURABLE:
        assert got.status == 201 and got.replayed, step
    else:
        assert (got.status, got.code) == (409, "outcome_unknown"), step
        assert "retry-after" in got.headers and 'rel="status"' in got.headers["link"], step
        assert evidence.state(key) == "unknown", step
        assert client.send("/leased", key).code == "outcome_unknown", step
    assert (evidence.runs(key), evidence.effects(key)) == (ran, effects), step
