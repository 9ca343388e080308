"""The application of the matrix, in each framework: one handler, and what stands around it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import flask
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from samekey import ConfigurationError, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import AsgiApp, WsgiApp, call_asgi, call_wsgi
from tests.edges.callers import Request as CallerRequest
from tests.edges.world import Store, World
from tests.matrix.rows import (
    Around,
    Breaks,
    FailsBefore,
    Notes,
    Raises,
    Refuses,
    Returns,
    ReturnsNonsense,
    Row,
    Stays,
)

Kind = Literal["starlette", "fastapi", "threadpool", "flask"]
Mode = Literal["leased", "retry", "atomic", "undecorated"]
DEADLINE = 1.0
"""Seconds until a deadline of the matrix strikes. Handlers that wait for the test are still running then;
whatever else is late on a slow machine is judged by the same rule."""


class Breakdown(Exception):
    """What a middleware of the application raises on the way out."""


@dataclass(slots=True)
class Play:
    """One cell: the first run ends as its row says; every later one succeeds."""

    row: Row
    mode: Mode
    around: Around
    store: Store
    world: World
    runs: int = 0
    effects: int = 0
    """Of leased work; atomic work's are the rows that stand."""
    entered: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> int:
        with self._lock:
            self.runs += 1
            return self.runs

    def effect(self) -> None:
        with self._lock:
            self.effects += 1

    def is_first(self, number: int) -> bool:
        return number == 1

    def decorate(self, handler: Any) -> Any:
        idempotency = self.store.idempotency
        match self.mode:
            case "leased":
                return idempotency.leased(handler)
            case "retry":
                return idempotency.leased(on_error="retry")(handler)
            case "atomic":
                return idempotency.atomic(handler)
            case "undecorated":
                return handler

    # How a run ends, in the words of a framework

    def end(self, number: int, respond: Callable[[int], Any], refuse: Callable[[int], BaseException]) -> Any:
        if not self.is_first(number):
            return respond(201)
        act = self.row.act
        if isinstance(act, Notes):
            current_operation().provider_id = f"ch_{self.world.name}"
            act = act.then
        match act:
            case Returns(status):
                return respond(status)
            case ReturnsNonsense(value):
                return value()
            case Raises(make):
                raise make()
            case Refuses(status, made_of):
                raise refuse(status) from (None if made_of is None else made_of())
            case _:
                return respond(201)


def _broken() -> Iterator[bytes]:
    yield b"half"
    raise Breakdown


async def _broken_async() -> AsyncIterator[bytes]:
    yield b"half"
    raise Breakdown


def starlette_app(play: Play, kind: Kind) -> AsgiApp:
    async def act(number: int) -> None:
        if play.mode == "atomic":
            connection = current_operation().connection
            insert = (
                "insert into effects values ($1, $2)"
                if play.store.dialect == "postgres"
                else play.store.insert
            )
            values = (play.world.name, number)
            await (
                connection.execute(insert, *values)
                if play.store.dialect == "postgres"
                else connection.execute(insert, values)
            )
        else:
            play.effect()

    def respond(status: int) -> Any:
        return JSONResponse({"run": play.runs}, status)

    async def handler(request: Request) -> Any:
        number = play.begin()
        if play.is_first(number) and isinstance(play.row.act, FailsBefore):
            with current_operation().before_effect():
                raise KeyError
        await act(number)
        play.entered.set()
        if play.is_first(number) and isinstance(play.row.act, Stays):
            await asyncio.to_thread(play.gate.wait, 30)
        if play.is_first(number) and isinstance(play.row.act, Breaks):
            return StreamingResponse(_broken_async(), 201)
        return play.end(number, respond, HTTPException)

    def sync_handler(request: Request) -> Any:
        number = play.begin()
        if play.is_first(number) and isinstance(play.row.act, FailsBefore):
            with current_operation().before_effect():
                raise KeyError
        if play.mode == "atomic":
            current_operation().connection.execute(play.store.insert, (play.world.name, number))
        else:
            play.effect()
        play.entered.set()
        if play.is_first(number) and isinstance(play.row.act, Stays):
            play.gate.wait(30)
        if play.is_first(number) and isinstance(play.row.act, Breaks):
            return StreamingResponse(_broken(), 201)
        return play.end(number, respond, HTTPException)

    guarded = play.decorate(sync_handler if kind == "threadpool" else handler)
    app: Any
    if kind == "starlette":
        app = Starlette(routes=[Route("/pay", guarded, methods=["POST"])])
    else:
        app = FastAPI(openapi_url=None)
        app.add_api_route("/pay", guarded, methods=["POST"], response_model=None)
    _surround(app, play)
    return _with_deadline(app) if play.around == "outer deadline" else app


def _surround(app: Any, play: Play) -> None:
    if play.around.startswith("handler to"):
        status = int(play.around.removeprefix("handler to "))

        async def page(request: Request, error: Exception) -> Response:
            return JSONResponse({"sorry": True}, status)

        for kind in (ValueError, KeyError, TimeoutError, ConnectionRefusedError, Exception):
            app.add_exception_handler(kind, page)
    if play.around == "middleware raises":
        app.add_middleware(_Failing, play=play)
    if play.around == "inner deadline":
        app.add_middleware(_Deadline)
    if play.around == "called twice":
        app.add_middleware(_Twice)
    if play.around == "inner request":
        app.add_middleware(_Audited, play=play)
    app.add_middleware(
        IdempotencyMiddleware, idempotency=play.store.idempotency, tenant=lambda scope: play.world.name
    )


class _Failing:
    """Fails on the way out, the first time."""

    def __init__(self, app: AsgiApp, play: Play) -> None:
        self.app = app
        self._play = play

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def fail(message: Any) -> None:
            if self._play.runs == 1:
                raise Breakdown
            await send(message)

        await self.app(scope, receive, fail)


class _Twice:
    """Calls the application twice at once, and takes the first one's answer."""

    def __init__(self, app: AsgiApp) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def drop(message: Any) -> None:
            pass

        calls = (self.app(dict(scope), receive, send), self.app(dict(scope), receive, drop))
        first, _ = await asyncio.gather(*calls, return_exceptions=True)
        if first is not None:
            raise first


class _Audited:
    """Makes a request of its own first, to a handler that is guarded in the same way."""

    def __init__(self, app: AsgiApp, play: Play) -> None:
        self.app = app
        self._audit = Starlette(routes=[Route("/log", play.decorate(self._log), methods=["POST"])])

    async def _log(self, request: Request) -> Any:
        return JSONResponse({})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            with contextlib.suppress(ConfigurationError):
                await call_asgi(self._audit, CallerRequest("POST", "/log"))
        await self.app(scope, receive, send)


class _Deadline:
    """Answers 504 where the application takes too long."""

    def __init__(self, app: AsgiApp) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started = False

        async def note(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(DEADLINE):
                await self.app(scope, receive, note)
        except TimeoutError:
            if not started:  # on a slow machine the answer may be on its way just then
                await JSONResponse({"late": True}, 504)(scope, receive, send)


def _with_deadline(app: AsgiApp) -> AsgiApp:
    return _Deadline(app).__call__


def flask_app(play: Play) -> WsgiApp:
    app = flask.Flask(__name__)

    def respond(status: int) -> Any:
        return {"run": play.runs}, status

    def refuse(status: int) -> BaseException:
        try:
            flask.abort(status)
        except Exception as error:
            return error

    def handler() -> Any:
        number = play.begin()
        if play.is_first(number) and isinstance(play.row.act, FailsBefore):
            with current_operation().before_effect():
                raise KeyError
        if play.mode == "atomic":
            current_operation().connection.execute(play.store.insert, (play.world.name, number))
        else:
            play.effect()
        play.entered.set()
        if play.is_first(number) and isinstance(play.row.act, Breaks):
            return flask.Response(_broken(), 201)
        return play.end(number, respond, refuse)

    app.add_url_rule("/pay", "pay", play.decorate(handler), methods=["POST"])
    if play.around.startswith("handler to"):
        status = int(play.around.removeprefix("handler to "))
        app.register_error_handler(Exception, lambda error: ({"sorry": True}, status))
    app.add_url_rule("/log", "log", lambda: {}, methods=["POST"])
    inner: Any = app.wsgi_app
    if play.around == "inner request":
        own = inner

        def audited(environ: Any, start_response: Any) -> Any:
            call_wsgi(own, CallerRequest("POST", "/log"))
            return own(environ, start_response)

        audited.app = own  # type: ignore[attr-defined]
        inner = audited
    if play.around == "middleware raises":

        def failing(environ: Any, start_response: Any) -> Any:
            answer = inner(environ, start_response)
            if play.runs == 1:
                getattr(answer, "close", lambda: None)()
                raise Breakdown
            return answer

        failing.app = inner  # type: ignore[attr-defined]
        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            failing, idempotency=play.store.idempotency, tenant=lambda environ: play.world.name
        )
    else:
        app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
            inner, idempotency=play.store.idempotency, tenant=lambda environ: play.world.name
        )
    return app
