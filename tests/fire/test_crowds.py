"""Many requests at once: keys that have nothing to do with each other do not get in each other's way."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Literal, get_args

import pytest

from lab.processes import wait_until
from tests.chosen import every_pair, whole
from tests.fire.apps import Mode, Settings, World
from tests.fire.clients import Client, in_process
from tests.fire.evidence import Evidence, prepare
from tests.fire.servers import served

pytestmark = whole


modes = pytest.mark.parametrize("mode", get_args(Mode))
worlds = pytest.mark.parametrize("world", get_args(World))


@every_pair
@worlds
@modes
@pytest.mark.parametrize("place", ["in this process", "behind a server"])
def test_32_slow_handlers_on_sqlite(
    sqlite_url: str, directory: str, mode: Mode, world: World, place: str
) -> None:
    """All of them are inside their handlers at once, then all of them write."""
    prepare(sqlite_url)
    settings = Settings(world=world, url=sqlite_url, directory=directory)
    evidence, checkpoints = Evidence(settings), settings.checkpoints
    keys = [f"slow-{number}" for number in range(32)]
    with ExitStack() as stack:
        client: Client = (
            stack.enter_context(in_process(settings))
            if place == "in this process"
            else stack.enter_context(served(settings))[1]
        )
        for key in keys:
            checkpoints.arm("handler start", key)
        requests = [client.start(f"/{mode}", key) for key in keys]
        for key, request in zip(keys, requests, strict=True):
            checkpoints.wait_reached("handler start", key, request)
        for key in keys:
            checkpoints.open("handler start", key)
        answers = {key: request.result().status for key, request in zip(keys, requests, strict=True)}
        assert answers == dict.fromkeys(keys, 201)
        assert [evidence.effects(key) for key in keys] == [1] * 32


@worlds
@modes
@pytest.mark.parametrize("on_in_progress", ["reject", "wait"])
def test_20_duplicates_on_a_pool_of_10_do_not_delay_other_keys(
    postgres_url: str, directory: str, mode: Mode, world: World, on_in_progress: Literal["reject", "wait"]
) -> None:
    prepare(postgres_url)
    settings = Settings(
        world=world, url=postgres_url, directory=directory, pool_size=10, on_in_progress=on_in_progress
    )
    evidence, checkpoints, path = Evidence(settings), settings.checkpoints, f"/{mode}"
    with in_process(settings) as client:
        checkpoints.arm("handler start", "crowded")
        first = client.start(path, "crowded")
        checkpoints.wait_reached("handler start", "crowded", first)
        duplicates = [client.start(path, "crowded") for _ in range(20)]
        others = [client.start(path, f"other-{number}") for number in range(15)]
        assert all(other.result().is_new for other in others)
        assert not first.done()
        if on_in_progress == "wait":
            # They have not been answered, and cannot be before the first is.
            assert not any(duplicate.done() for duplicate in duplicates)
        else:
            assert {duplicate.result().code for duplicate in duplicates} == {"in_progress"}
            assert not first.done()
        checkpoints.open("handler start", "crowded")
        got = first.result()
        assert got.is_new
        if on_in_progress == "wait":
            assert all(duplicate.result().repeats(got) for duplicate in duplicates)
        assert (evidence.runs("crowded"), evidence.effects("crowded")) == (1, 1)


@worlds
def test_a_paused_writer_on_sqlite_delays_others_for_a_bounded_time(
    sqlite_url: str, directory: str, world: World
) -> None:
    """SQLite has one write lock. Who cannot have it in time is told to come back, and was not run."""
    prepare(sqlite_url)
    settings = Settings(world=world, url=sqlite_url, directory=directory)
    evidence, checkpoints = Evidence(settings), settings.checkpoints
    with served(settings) as (server, holder), in_process(replace(settings, timeout=1.0)) as client:
        checkpoints.arm("handler wrote", "writer")
        request = holder.start("/atomic", "writer")
        checkpoints.wait_reached("handler wrote", "writer", request)
        server.pause()
        got = client.send("/atomic", "reader")
        assert (got.status, got.code) == (503, "store_unavailable")
        assert "retry-after" in got.headers
        assert client.send("/atomic", "writer").code == "in_progress", "reading needs no lock"
        server.resume()
        checkpoints.open("handler wrote", "writer")
        assert request.result().is_new
        assert client.send("/atomic", "reader").is_new
        wait_until(lambda: evidence.effects("reader") == 1)
