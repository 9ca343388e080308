"""The completer: it finishes what was abandoned, and only that, with no client and no application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lab.processes import Turn, race, wait_until
from samekey import Backoff, Response
from samekey.testing.crash import Crash
from samekey.workers.completer import Completer
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, column, count, end_lease, execute, kept, now, ride_body, state_of

AT_ONCE = Backoff(first=timedelta(0))


def abandon(world: World, client: ProviderClient, *keys: str, **options: Any) -> None:
    """Rides that died after their row was written and before anything else. Their leases still run."""

    async def dies(op: Any, input: Any) -> Response:
        await now(op.transaction("ride_created", world.insert("rides"), input.json()["ride"]))
        raise Crash("here")

    with World(world.url, "async" if world.is_async else "sync") as doomed:
        doomed.define(dies, backoff=Backoff(first=timedelta(0)), **options)
        for key in keys:
            with pytest.raises(Crash):
                doomed.post(key)


def test_what_is_abandoned_is_finished(world: World, provider: Provider, client: ProviderClient) -> None:
    world.define(ride_body(world, client, provider_window=3600), path=None)
    abandon(world, client, "k1", "k2")
    assert world.complete() == 2
    for key in ("k1", "k2"):
        assert state_of(world.url, key) == "completed"
        assert (count(world.url, "rides", key), len(provider.journal(key))) == (1, 1)
    assert kept(world.url) == {"inputs": 0, "phases": 0}
    assert world.complete() == 0


def test_the_client_gets_the_answer_that_the_completer_made(world: World, client: ProviderClient) -> None:
    world.define(ride_body(world, client, provider_window=3600))
    abandon(world, client, "k1")
    world.complete()
    got = world.post("k1")
    assert (got.status, got.json()) == (201, {"ride": "k1", "charge": "ch_1"})
    assert got.replayed


def test_young_held_finished_failed_unknown_and_dead_ones_are_left_alone(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    states = ("young", "completed", "failed_retryable", "unknown", "dead_letter", "leased")
    abandon(world, client, *states)
    world.define(ride_body(world, client, provider_window=3600), path=None)
    later = "(select max(created_at) from samekey.keys) + 600000"
    execute(world.url, f"update samekey.keys set locked_until = {later} where key = 'young'")
    for state in states[1:-1]:
        execute(world.url, f"update samekey.keys set state = '{state}' where key = '{state}'")
    execute(world.url, "update samekey.keys set answer_version = 1 where key = 'completed'")
    execute(world.url, "update samekey.keys set mode = 'leased' where key = 'leased'")
    before = execute(world.url, "select * from samekey.keys order by key")
    assert world.complete() == 0
    assert execute(world.url, "select * from samekey.keys order by key") == before
    assert provider.calls == 0


def test_one_that_another_process_is_working_on_is_left_alone(
    make_world: Callable[..., World],
    provider: Provider,
    client: ProviderClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease is renewed as long as it lives."""
    monkeypatch.setattr("samekey.engine.keeper.BEATS_PER_LEASE", 300)  # often, of a lease that is long
    busy, idle = make_world(), make_world()
    for world in (busy, idle):
        world.define(ride_body(world, client, provider_window=3600), lease=60, max_run=120)
    provider.next.append("hang")
    answers: list[Any] = []
    request = threading.Thread(target=lambda: answers.append(busy.post("k1")))
    request.start()
    assert provider.arrived.wait(30)
    renewed = column(busy.url, "k1", "locked_until")
    wait_until(lambda: column(busy.url, "k1", "locked_until") > renewed + 300)
    assert idle.complete() == 0
    provider.release.set()
    request.join()
    assert answers[0].status == 201 and len(provider.journal()) == provider.calls == 1


def test_definitions_that_this_process_does_not_know_are_left_to_others(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    abandon(world, client, "k1")
    assert world.complete() == 0, "it knows none at all"
    world.define(ride_body(world, client), name="another", path=None)
    world.define(ride_body(world, client), name="ride", version=2, path=None)
    before = execute(world.url, "select attempt, attempts, locked_until from samekey.keys")
    assert world.complete() == 0
    assert execute(world.url, "select attempt, attempts, locked_until from samekey.keys") == before
    assert provider.calls == 0


def test_one_that_fails_does_not_stop_the_others(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    charge = client.charge

    def sometimes(effect: Any, label: str) -> Any:
        if label == "k2":
            raise RuntimeError("no")
        return charge(effect, label)

    abandon(world, client, "k1", "k2", "k3")
    client.charge = sometimes  # type: ignore[method-assign]
    world.define(ride_body(world, client, provider_window=3600), path=None)
    assert world.complete() == 3
    assert [state_of(world.url, key) for key in ("k1", "k2", "k3")] == [
        "completed",
        "in_progress",
        "completed",
    ]
    assert column(world.url, "k2", "error_code") == "RuntimeError"


def test_one_that_hangs_does_not_stop_the_others(url: str, client: ProviderClient) -> None:
    with World(url, "async") as world:
        abandon(world, client, "k1", "k2", "k3", lease=0.5, max_run=4)
        ride = ride_body(world, client, provider_window=3600)

        async def hangs(op: Any, input: Any) -> Any:
            answer = await ride(op, input)
            if input.json()["ride"] == "k2":
                await asyncio.sleep(60)
            return answer

        world.define(hangs, path=None, lease=0.5, max_run=4)
        assert world.complete() == 3
        assert [state_of(url, key) for key in ("k1", "k2", "k3")] == ["completed", "in_progress", "completed"]
        assert column(url, "k2", "error_code") == "CancelledError"


def test_attempts_are_bounded_and_then_an_operator_must_look(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    provider.next.extend(["fail"] * 5)
    abandon(world, client, "k1")
    world.define(
        ride_body(world, client, provider_window=3600), path="/rides", max_attempts=3, backoff=AT_ONCE
    )
    assert [world.complete() for _ in range(4)] == [1, 1, 0, 0]
    assert state_of(world.url, "k1") == "dead_letter"
    assert column(world.url, "k1", "attempts") == 3
    assert column(world.url, "k1", "error_code") == "ProviderFailed"
    assert kept(world.url) == {"inputs": 1, "phases": 2}, "what the operator needs is still there"
    got = world.post("k1")
    assert (got.status, got.code) == (409, "outcome_unknown")
    assert provider.calls == 2


def test_what_kills_its_process_every_time_is_not_tried_for_ever(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    """Such an attempt never reports anything: only the count of attempts shows it."""
    abandon(world, client, "k1")
    world.define(ride_body(world, client, provider_window=3600), path=None, max_attempts=5)
    execute(world.url, "update samekey.keys set attempts = 5, locked_until = 1")
    assert world.complete() == 1
    assert state_of(world.url, "k1") == "dead_letter"
    assert column(world.url, "k1", "error_code") == "attempts_used_up"
    assert provider.calls == 0


def test_the_same_for_a_client_that_comes_back_every_time(
    world: World, provider: Provider, client: ProviderClient
) -> None:
    abandon(world, client, "k1")
    world.define(ride_body(world, client, provider_window=3600), max_attempts=5)
    execute(world.url, "update samekey.keys set attempts = 5, locked_until = 1")
    assert world.post("k1").code == "outcome_unknown"
    assert state_of(world.url, "k1") == "dead_letter" and provider.calls == 0


def test_between_attempts_it_waits_longer_and_longer(
    world: World, provider: Provider, client: ProviderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)
    provider.next.extend(["fail"] * 3)
    abandon(world, client, "k1")
    world.define(
        ride_body(world, client, provider_window=3600),
        path=None,
        backoff=Backoff(first=timedelta(minutes=1), longest=timedelta(minutes=3)),
    )
    pauses = []
    for _ in range(3):
        end_lease(world.url, "k1")
        assert world.complete() == 1
        last = column(world.url, "k1", "last_run_at")
        pauses.append(round((column(world.url, "k1", "locked_until") - last) / 60_000, 1))
        assert world.complete() == 0, "not before its time"
    assert pauses == [2.0, 3.0, 3.0]


def test_a_completer_that_is_stopped_gives_its_work_back(url: str, client: ProviderClient) -> None:
    with World(url, "async") as world:
        abandon(world, client, "k1")
        started = asyncio.Event()

        async def slow(op: Any, _input: Any) -> Any:
            await op.transaction("ride_created", world.insert("rides"), "never")
            started.set()
            await asyncio.sleep(60)

        world.define(slow, path=None, backoff=AT_ONCE)

        async def stopped() -> None:
            task = asyncio.create_task(Completer(world.engine.engine).run_once())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        world.loop.run(stopped())
        assert state_of(url, "k1") == "in_progress"
        assert column(url, "k1", "locked_until") <= column(url, "k1", "last_run_at") + 5000


def test_a_sync_function_runs_beside_the_event_loop(url: str, client: ProviderClient) -> None:
    threads = []

    def ride(op: Any, _input: Any) -> Any:
        threads.append(threading.current_thread().name)
        op.transaction("ride_created", lambda _connection: None)
        return {}

    with World(url, "sync") as world:
        abandon(world, client, "k1")
        world.engine.phased("ride")(ride)
        assert world.complete() == 1
        assert threads != ["test-loop"] and state_of(url, "k1") == "completed"


# ------------------------------------------------------------------ many processes


def complete_all(_turn: Turn, url: str, provider_url: str) -> int:
    """In a process of its own, beside another that does the same."""
    with World(url, "async") as world:
        # It declares a window, so whoever got hold of one would call; the provider does not deduplicate.
        world.define(ride_body(world, ProviderClient(provider_url), provider_window=3600), path=None)
        done = 0
        while taken := world.complete():
            done += taken
        return done


def test_two_completers_at_once_finish_each_operation_once(
    url: str, provider: Provider, client: ProviderClient
) -> None:
    provider.deduplicates = False
    keys = [f"k{number}" for number in range(30)]
    with World(url, "async") as world:
        abandon(world, client, *keys)
    done = race(complete_all, 2, url, provider.url)[0]
    assert sum(done) == 30
    assert sorted(label for _, label in provider.journal()) == sorted(keys)
    assert {count(url, "receipts", key) for key in keys} == {1}
    assert {state_of(url, key) for key in keys} == {"completed"}
