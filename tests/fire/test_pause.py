"""A holder that falls silent: paused past its lease, hung, or blocked. Its late result is worth what its
attempt id is worth.

The holder runs behind a real server that is stopped with SIGSTOP; the retry comes in by another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

from lab.processes import ServedApp, wait_until
from tests.chosen import whole
from tests.fire.apps import Settings, World
from tests.fire.checkpoints import Checkpoints
from tests.fire.clients import AsgiClient, Got, HttpClient, WsgiClient, in_process
from tests.fire.conftest import STORES
from tests.fire.evidence import Evidence, prepare
from tests.fire.servers import retry_while, served

pytestmark = whole


LEASE = 0.5
"""Seconds. Only the holder's, which is meant to lose it; the other node's is long."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Two nodes of one service: the holder's server, and another in this process."""

    store: str
    server: ServedApp
    holder: HttpClient
    other: AsgiClient | WsgiClient
    checkpoints: Checkpoints
    evidence: Evidence

    def hold(self, path: str, key: str, place: str = "handler start") -> Future[Got]:
        """A request to the holder that stands at a place inside its handler."""
        self.checkpoints.arm(place, key)
        request = self.holder.start(path, key)
        self.checkpoints.wait_reached(place, key, request)
        return request

    def pause_past_lease(self, key: str) -> None:
        self.server.pause()
        wait_until(lambda: self.evidence.lease_is_over(key))

    def wake(self, key: str, place: str = "handler start") -> None:
        self.checkpoints.open(place, key)
        self.server.resume()


@pytest.fixture(
    scope="module", params=[(store, world) for store in STORES for world in get_args(World)], ids="-".join
)
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    store, world = request.param
    directory: Path = tmp_path_factory.mktemp("pause")
    url = (
        f"sqlite:///{directory / 'samekey.db'}"
        if store == "sqlite"
        else request.getfixturevalue("postgres_server").create_database()
    )
    prepare(url)
    settings = Settings(world=world, url=url, directory=str(directory), lease=LEASE, max_run=30)
    patient = replace(settings, lease=30, max_run=60)
    with served(settings) as (server, holder), in_process(patient) as other:
        yield Arena(store, server, holder, other, settings.checkpoints, Evidence(settings))


def test_a_late_result_completes_what_nobody_touched(arena: Arena) -> None:
    request = arena.hold("/leased", "untouched")
    arena.pause_past_lease("untouched")
    arena.wake("untouched")
    got = request.result()
    assert got.is_new
    assert arena.evidence.state("untouched") == "completed"
    assert arena.other.send("/leased", "untouched").repeats(got)
    assert arena.evidence.runs("untouched") == 1


def test_a_late_result_settles_an_unknown_outcome(arena: Arena) -> None:
    request = arena.hold("/leased", "unknown")
    arena.pause_past_lease("unknown")
    assert arena.other.send("/leased", "unknown").code == "outcome_unknown"
    assert arena.evidence.state("unknown") == "unknown"
    arena.wake("unknown")
    got = request.result()
    assert got.is_new
    assert arena.evidence.state("unknown") == "completed"
    assert arena.other.send("/leased", "unknown").repeats(got)
    assert arena.evidence.runs("unknown") == 1


def test_a_late_result_changes_nothing_once_another_has_completed(arena: Arena) -> None:
    request = arena.hold("/repeatable", "overtaken")
    arena.pause_past_lease("overtaken")
    second = arena.other.send("/repeatable", "overtaken")
    assert second.is_new
    attempt = arena.evidence.attempt("overtaken")
    arena.wake("overtaken")
    assert request.result().repeats(second), "the paused client gets what is stored, not its own"
    assert arena.evidence.attempt("overtaken") == attempt
    assert arena.other.send("/repeatable", "overtaken").repeats(second)


def test_a_late_result_changes_nothing_while_another_runs(arena: Arena) -> None:
    request = arena.hold("/repeatable", "running")
    arena.pause_past_lease("running")
    arena.checkpoints.arm("handler wrote", "running")
    second = arena.other.start("/repeatable", "running")
    arena.checkpoints.wait_reached("handler wrote", "running", second)
    attempt = arena.evidence.attempt("running")
    arena.wake("running")
    late = request.result()
    assert (late.status, late.code) == (409, "in_progress")
    assert (arena.evidence.state("running"), arena.evidence.attempt("running")) == ("in_progress", attempt)
    arena.checkpoints.open("handler wrote", "running")
    assert second.result().is_new
    assert arena.other.send("/repeatable", "running").repeats(second.result())


def test_atomic_work_of_a_paused_holder_is_undone(arena: Arena) -> None:
    """On PostgreSQL the server ends its silent transaction; on SQLite it is cut off when its time is over."""
    place = "handler wrote" if arena.store == "postgresql" else "handler start"
    request = arena.hold("/hung/atomic", "undone", place)
    arena.server.pause()
    second = retry_while(arena.other, "/hung/atomic", "undone", "in_progress")
    assert second.is_new
    arena.wake("undone", place)
    late = request.result()
    # Its time is over when it wakes: it is cut off, unless it comes to its last statement first, which finds
    # the other's record. Either way it is undone; never is the answer its own.
    assert late.repeats(second) or (late.status, late.code) == (503, "store_unavailable")
    assert (arena.evidence.runs("undone"), arena.evidence.effects("undone")) == (2, 1)
    assert arena.holder.send("/hung/atomic", "undone").repeats(second)


def test_a_handler_that_blocks_its_thread_keeps_its_lease(arena: Arena) -> None:
    """Nor does an event loop in that thread matter: the heartbeat has one of its own."""
    request = arena.holder.start("/blocking", "blocked")
    wait_until(lambda: arena.evidence.runs("blocked"))
    retry = retry_while(arena.other, "/blocking", "blocked", "in_progress")
    got = request.result()
    assert got.is_new
    assert retry.repeats(got)
    assert arena.evidence.runs("blocked") == 1


def test_a_hung_handler_becomes_unknown_after_its_longest_run(arena: Arena) -> None:
    request = arena.hold("/hung/leased", "hung")
    got = retry_while(arena.other, "/hung/leased", "hung", "in_progress")
    assert (got.status, got.code) == (409, "outcome_unknown")
    assert not request.done()
    # It was only slow: its result is the truth, however late.
    arena.checkpoints.open("handler start", "hung")
    assert request.result().is_new
    assert arena.other.send("/hung/leased", "hung").repeats(request.result())
    assert arena.evidence.runs("hung") == 1


def test_an_old_holder_cannot_complete_a_new_life_of_its_key(arena: Arena) -> None:
    request = arena.hold("/leased", "reborn")
    first_attempt = arena.evidence.attempt("reborn")
    arena.evidence.delete("reborn")
    arena.checkpoints.arm("handler wrote", "reborn")
    second = arena.other.start("/leased", "reborn")
    arena.checkpoints.wait_reached("handler wrote", "reborn", second)
    attempt = arena.evidence.attempt("reborn")
    assert attempt != first_attempt
    arena.checkpoints.open("handler start", "reborn")
    late = request.result()
    assert (late.status, late.code) == (409, "in_progress")
    assert (arena.evidence.state("reborn"), arena.evidence.attempt("reborn")) == ("in_progress", attempt)
    arena.checkpoints.open("handler wrote", "reborn")
    assert second.result().is_new
    assert arena.holder.send("/leased", "reborn").repeats(second.result())
