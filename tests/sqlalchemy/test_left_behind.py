"""What a handler has started and what outlives its operation, with a copy of its context."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey.asgi import IdempotencyMiddleware
from samekey.errors import OperationOver
from tests.chosen import whole
from tests.sqlalchemy.stacks import Stack, write

pytestmark = pytest.mark.filterwarnings("ignore:The atomic handler answered")
STACKS = [
    "async-postgres",
    "sync-sqlite",
    *(pytest.param(one, marks=whole) for one in ("async-sqlite", "sync-postgres")),
]


def run_and_leave(stack: Stack, during: Callable[[], Any], afterwards: Callable[[Any], Any]) -> Any:
    """What ``afterwards`` gives, or its error: it is started by the handler, and runs once the answer is out.
    It is given what ``during`` has made in the handler."""
    left: list[Any] = []

    async def handler_async(_: Any) -> JSONResponse:
        made, go_on = during(), asyncio.Event()

        async def task() -> Any:
            await go_on.wait()
            try:
                return await afterwards(made)
            except Exception as error:
                return error

        left.extend((go_on, asyncio.create_task(task())))
        return JSONResponse({}, 201)

    def handler(_: Any) -> JSONResponse:
        left.extend((during(), contextvars.copy_context()))
        return JSONResponse({}, 201)

    async def finish() -> Any:
        left[0].set()
        return await left[1]

    def finish_sync() -> Any:
        try:
            return left[1].run(afterwards, left[0])
        except Exception as error:
            return error

    guarded = stack.idempotency.atomic(handler_async if stack.is_async else handler)
    app = Starlette(routes=[Route("/", guarded, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=stack.idempotency, tenant=lambda _: stack.tenant)
    with TestClient(app) as client:
        assert client.post("/", headers={"Idempotency-Key": "k"}).status_code == 201
        assert client.portal is not None
        result = client.portal.call(finish) if stack.is_async else finish_sync()
        if isinstance(stack.given, AsyncEngine):
            client.portal.call(stack.idempotency.aclose)
            client.portal.call(stack.given.dispose)
        else:
            stack.idempotency.close()
            stack.engine.dispose()
    return result


def writes_with(stack: Stack, session: Any) -> Any:
    if not stack.is_async:
        return write("late")(session)

    async def run() -> Any:
        return await session.run_sync(write("late"))

    return run()


@pytest.mark.parametrize("make", STACKS, indirect=True)
def test_a_session_that_is_made_after_the_end_is_an_ordinary_one(stack: Stack) -> None:
    found = run_and_leave(stack, lambda: None, lambda _: writes_with(stack, stack.sessions()))
    assert (found, stack.rows()) == (["late"], ["late"])


@pytest.mark.parametrize("make", STACKS, indirect=True)
def test_a_session_that_was_made_in_the_operation_is_refused_after_its_end(stack: Stack) -> None:
    found = run_and_leave(stack, stack.sessions, lambda session: writes_with(stack, session))
    assert isinstance(found, OperationOver)
    assert stack.rows() == []
