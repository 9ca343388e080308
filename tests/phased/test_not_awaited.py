"""A phase that async code begins and never awaits has not happened. It is noticed, and nothing runs twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from samekey import Backoff, ConfigurationError, Idempotency, Response
from samekey.errors import StepNotAwaited
from tests.phased.provider import Provider, ProviderClient
from tests.phased.world import World, count, execute, kept, state_of

AT_ONCE = Backoff(first=timedelta(0))


@pytest.fixture
def style() -> str:
    """Sync code has nothing to await."""
    return "async"


def good(world: World, client: ProviderClient) -> Any:
    async def ride(op: Any, _input: Any) -> Response:
        await op.transaction("ride", world.insert("rides"), "k1")
        await op.effect("charge", world.outside(client.charge), "k1", provider_window=3600)
        return Response(201, {"done": True})

    return ride


@pytest.mark.parametrize("forgotten", ["transaction", "effect"])
def test_a_step_that_was_never_awaited_is_no_success(
    make_world: Callable[..., World],
    provider: Provider,
    client: ProviderClient,
    forgotten: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = make_world()

    async def ride(op: Any, _input: Any) -> Response:
        if forgotten == "transaction":
            op.transaction("ride", world.insert("rides"), "k1")
        else:
            await op.transaction("ride", world.insert("rides"), "k1")
            op.effect("charge", world.outside(client.charge), "k1", provider_window=3600)
        return Response(201, {"done": True})

    world.define(ride, backoff=AT_ONCE)
    got = world.post("k1")
    step = "op.transaction('ride')" if forgotten == "transaction" else "op.effect('charge')"
    assert f"{step} was never awaited" in caplog.text
    if forgotten == "transaction":
        assert isinstance(got.error, StepNotAwaited), got
    else:
        assert got.code == "in_progress", "the row stands, and the operation goes on"
    assert state_of(world.url, "k1") == ("failed_retryable" if forgotten == "transaction" else "in_progress")
    assert len(provider.journal()) == 0
    repaired = make_world()
    repaired.define(good(repaired, client))
    assert repaired.post("k1").status == 201
    assert (count(world.url, "rides", "k1"), len(provider.journal())) == (1, 1)


def test_nothing_is_called_after_a_step_that_was_forgotten(
    make_world: Callable[..., World], provider: Provider, client: ProviderClient
) -> None:
    world = make_world()

    async def ride(op: Any, _input: Any) -> Response:
        label = op.transaction("ride", world.insert("rides"), "k1")
        await op.effect("charge", world.outside(client.charge), label, provider_window=3600)
        return Response(201)

    world.define(ride, backoff=AT_ONCE)
    got = world.post("k1")
    assert isinstance(got.error, StepNotAwaited) and "op.transaction('ride')" in str(got.error)
    assert (len(provider.journal()), kept(world.url)["phases"]) == (0, 0)
    assert execute(world.url, "select count(*) from rides")[0][0] == 0


def test_a_step_that_still_runs_when_the_function_returns_is_no_success(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world, begun = make_world(), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def wait_for_ever(_effect: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def ride(op: Any, _input: Any) -> Response:
        tasks.append(asyncio.create_task(op.effect("charge", wait_for_ever)))
        await begun.wait()
        return Response(201)

    world.define(ride, backoff=AT_ONCE)
    assert world.post("k1").code == "in_progress" and "was still running" in caplog.text
    assert state_of(world.url, "k1") == "in_progress", "it is resumed by its recovery point"

    async def end() -> None:
        tasks[0].cancel()
        await asyncio.wait(tasks)

    world.loop.run(end())


def test_steps_may_be_made_first_and_awaited_in_order(make_world: Callable[..., World]) -> None:
    world = make_world()

    async def ride(op: Any, _input: Any) -> Response:
        first = op.transaction("first", world.insert("rides"), "k1")
        await first
        second = asyncio.create_task(op.transaction("second", world.insert("receipts"), "k1"))
        await second
        return Response(201)

    world.define(ride)
    assert world.post("k1").status == 201
    assert (count(world.url, "rides", "k1"), count(world.url, "receipts", "k1")) == (1, 1)


# ------------------------------------------------------------------ decorators without their parentheses


@pytest.mark.parametrize("name", ["phased", "job", "lookup"])
def test_a_decorator_without_its_parentheses_is_refused(sqlite_url: str, name: str) -> None:
    idempotency = Idempotency(sqlite_url)

    async def create_ride(op: Any, input: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=rf"@idempotency\.{name} was put on .*create_ride without"):
        getattr(idempotency, name)(create_ride)
    for wrong in ("", 7, b"ride"):
        with pytest.raises(ConfigurationError, match="needs a name"):
            getattr(idempotency, name)(wrong)
    idempotency.close()
