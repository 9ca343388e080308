"""Wrappers between a route and its handler: sync around async, tasks, objects that are called."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import fastapi
import flask
import pytest

from samekey import OutcomeUnknown
from tests.edges.shop import Shop


def shielded(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.shield(function(*args, **kwargs))

    return wrapper


def in_a_task(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.get_running_loop().create_task(function(*args, **kwargs))

    return wrapper


def plain(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("decorated", [True, False])
@pytest.mark.parametrize("wrap", [shielded, in_a_task, plain])
def test_a_sync_wrapper_around_an_async_endpoint(
    shop: Shop, wrap: Callable[[Any], Any], decorated: bool
) -> None:
    """FastAPI awaits what it gives, and so do we, inside the boundary."""
    app = fastapi.FastAPI()

    async def pay() -> Any:
        shop.charge()
        return {"charge": shop.charges}

    handler = wrap(pay)
    app.post("/pay", status_code=201)(shop.idempotency.leased(handler) if decorated else handler)
    got = shop.send(shop.guard(app, decorators="around"), times=3)
    assert [one.status for one in got] == [201, 201, 201] and shop.charges == 1
    assert [one.replayed for one in got] == [False, True, True]


@pytest.mark.parametrize("wrap", [shielded, in_a_task, plain])
def test_an_error_behind_a_sync_wrapper_is_the_handlers(shop: Shop, wrap: Callable[[Any], Any]) -> None:
    app = fastapi.FastAPI()

    async def pay() -> Any:
        shop.charge()
        await asyncio.sleep(0)
        raise ValueError

    app.post("/pay")(wrap(pay))
    shop.send(shop.guard(app, decorators="around"), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def test_a_call_that_gives_a_running_task_proves_nothing(shop: Shop) -> None:
    """The task runs, whoever waits for it."""

    async def charge() -> None:
        shop.charge()

    async def call() -> None:
        tasks = []

        def start() -> Any:
            tasks.append(asyncio.get_running_loop().create_task(charge()))
            return tasks[-1]

        called: dict[str, Any] = {"tenant": "acme", "key": shop.world.name, "payload": None, "name": "pay"}
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                shop.idempotency.once(run=start, **called)
        await asyncio.gather(*tasks)

    shop.loop.run(call())
    assert shop.charges == 1


@pytest.mark.parametrize("decorated", [True, False])
@pytest.mark.parametrize("framework", ["fastapi", "flask"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_forgotten_await_after_the_effect_frees_nothing(
    shop: Shop, framework: str, decorated: bool
) -> None:
    async def send_mail() -> None:
        raise AssertionError

    def pay() -> Any:
        shop.charge()
        return send_mail()

    handler = shop.idempotency.leased(pay) if decorated else pay
    if framework == "fastapi":
        api = fastapi.FastAPI()
        api.post("/pay")(handler)
        got = shop.send(shop.guard(api), times=3)
    else:
        app = flask.Flask("shop")
        app.post("/pay")(handler)
        got = shop.send(shop.guard_wsgi(app), times=3)
    assert shop.charges == 1
    assert [one.status for one in got] == [409, 409, 409]
