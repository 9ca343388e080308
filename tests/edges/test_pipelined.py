"""Requests that follow each other over one connection: each is a request of its own, to every part of us."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from typing import Any

import pytest

from lab.fuzz.sending import Sender
from lab.processes import serve_asgi
from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.edges.messages import from_outside
from samekey.errors import NoOperation
from samekey.tenants import single_tenant


def edge() -> Any:
    """An application without handlers of its own: the edge claims. It tells of no operation but its own."""

    async def tells(scope: Any, receive: Any, send: Any) -> None:
        try:
            running = current_operation().id
        except NoOperation:
            running = None
        inside = running is not None
        status = 201 if inside is (scope["method"] == "POST") else 418
        body = json.dumps({"operation": running}).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    idempotency = Idempotency("sqlite:///:memory:")
    return IdempotencyMiddleware(tells, idempotency=idempotency, tenant=single_tenant(), undecorated="guard")


def handlers() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    idempotency = Idempotency("sqlite:///:memory:")

    @idempotency.leased
    async def pay(_: Request) -> JSONResponse:
        return JSONResponse({"paid": current_operation().id}, 201)

    async def look(_: Request) -> JSONResponse:
        return JSONResponse({}, 201)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"]), Route("/look", look)])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return app


def post(key: str, size: int = 0) -> bytes:
    head = f"POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + b"x" * size


LOOK = b"GET /look HTTP/1.1\r\nHost: x\r\n\r\n"


BIG = 400_000
"""More than a server reads ahead: it pauses, and goes on when the body is asked for."""


@pytest.mark.parametrize("app", ["edge", "handlers"])
def test_what_follows_a_large_body_is_no_part_of_it(app: str) -> None:
    with serve_asgi(f"tests.edges.test_pipelined:{app}", options=["--factory"]) as served:
        sender = Sender(served.port)
        requests = [post("a", BIG), post("a", BIG), post("a", BIG), LOOK, post("b"), post("b"), LOOK]
        try:
            statuses = [status for one in requests for status in sender.send([one])]
        finally:
            sender.close()
        assert statuses == [201] * 7, served.output()


@pytest.mark.parametrize("app", ["edge", "handlers"])
def test_each_that_is_pipelined_is_a_request_of_its_own(app: str) -> None:
    with serve_asgi(f"tests.edges.test_pipelined:{app}", options=["--factory"]) as served:
        sender = Sender(served.port)
        try:
            statuses = [
                *sender.send([post("a"), post("a"), post("a"), LOOK, post("b"), post("b"), LOOK, LOOK])
            ]
        finally:
            sender.close()
        assert statuses == [201] * 8, served.output()


def test_what_is_sent_is_sent_from_where_the_request_came_in() -> None:
    inside = ContextVar("inside", default=False)
    seen: list[object] = []

    async def send(message: Any) -> None:
        seen.append(inside.get())
        await asyncio.sleep(0)
        seen.append(inside.get())
        if message["type"] == "bad":
            raise RuntimeError("no")

    async def answer() -> None:
        sending = from_outside(send)
        inside.set(True)
        await sending({"type": "good"})
        with pytest.raises(RuntimeError, match="no"):
            await sending({"type": "bad"})
        assert inside.get()

    asyncio.run(answer())
    assert seen == [False] * 4


def test_it_is_cancelled_as_any_other() -> None:
    met: list[BaseException] = []

    async def send(_: Any) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            met.append(error)
            raise

    async def answer() -> None:
        task = asyncio.ensure_future(from_outside(send)({"type": "x"}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(answer())
    assert len(met) == 1
