"""The applications under fire: one service in each world, with a route for each mode.

A server process imports ``tests.fire.apps:asgi`` or ``tests.fire.apps:wsgi`` and is configured by the
environment; a test or a racing process calls ``build``. Every handler notes that it ran in a journal outside
of any transaction, so that a run is counted even if its effect is rolled back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lab.processes import PATIENCE
from samekey import Idempotency, current_operation, ietf
from samekey.engine.handler.rules import seconds
from samekey.tenants import single_tenant
from tests.fire.checkpoints import POLL, Checkpoints, Journal, current_key, with_checkpoints

World = Literal["asgi", "wsgi"]
Mode = Literal["atomic", "leased"]
Reply = tuple[int, bytes]
Handler = Callable[[], Coroutine[Any, Any, Reply]]
Guarded = tuple[str, dict[str, Any], Handler]
"""A mode, the options of its decorator, and the handler."""

ENVIRONMENT = "SAMEKEY_FIRE"
TENANT = "fire"
BLOCKING_LEASE = 3.0
"""Seconds. Three heartbeats must fit in, with room for a machine that is busy elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a test chooses about an application."""

    world: World
    url: str
    directory: str
    lease: float = 60.0
    max_run: float = 600.0
    pool_size: int = 10
    timeout: float = 5.0
    on_in_progress: Literal["reject", "wait"] = "reject"

    @property
    def environment(self) -> dict[str, str]:
        """For a server process."""
        return {ENVIRONMENT: json.dumps(dataclasses.asdict(self))}

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(Path(self.directory) / "checkpoints")

    def journal(self, name: str = "runs") -> Journal:
        return Journal(Path(self.directory) / f"{name}.journal")

    def engine(self) -> Idempotency:
        policy = ietf(
            lease=seconds(self.lease),
            max_run=seconds(self.max_run),
            on_in_progress=self.on_in_progress,
            wait=seconds(PATIENCE),
        )
        made = Idempotency(self.url, policy=policy, pool_size=self.pool_size, timeout=self.timeout)
        made.engine.drivers = with_checkpoints(made.engine.drivers, self.checkpoints)
        return made


# ------------------------------------------------------------------ the service


async def settled(result: Any) -> Any:
    """A result, awaited if it must be: a connection answers at once in one world and later in the other."""
    return await result if inspect.isawaitable(result) else result


def to_the_end(handler: Handler) -> Callable[[], Reply]:
    """An async handler as a sync one: in the sync world nothing in it ever has to wait."""

    def run() -> Reply:
        try:
            handler().send(None)
        except StopIteration as stop:
            reply: Reply = stop.value
            return reply
        raise AssertionError("a handler waited in a world without an event loop")

    return run


def answer() -> Reply:
    """Different for every run, so that a replay cannot be mistaken for a second run."""
    return 201, json.dumps({"run": secrets.token_hex(8)}).encode()


class Service:
    """The handlers; each notes its run, passes two checkpoints, and takes effect between them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._checkpoints = settings.checkpoints
        self._journal = settings.journal()

    @property
    def handlers(self) -> dict[str, Guarded]:
        hung = {"max_run": self._settings.lease}
        return {
            "/atomic": ("atomic", {}, self.atomic),
            "/leased": ("leased", {}, self.leased),
            "/repeatable": ("leased", {"repeatable": True}, self.leased),
            "/brief": ("leased", {"lease": 1.0}, self.leased),
            "/hung/atomic": ("atomic", hung, self.atomic),
            "/hung/leased": ("leased", hung, self.leased),
            "/patient/atomic": ("atomic", {}, self.patient),
            "/patient/leased": ("leased", {}, self.patient),
            "/blocking": ("leased", {"lease": BLOCKING_LEASE}, self.blocking),
        }

    async def atomic(self) -> Reply:
        self.note("run")
        await self.stop("handler start")
        await self.insert(current_operation().connection)
        await self.stop("handler wrote")
        return answer()

    async def leased(self) -> Reply:
        self.note("run")
        await self.stop("handler start")
        self.note("effect")
        await self.stop("handler wrote")
        return answer()

    async def patient(self) -> Reply:
        """Ends only when all nine duplicates have their answers."""
        key, deadline = current_key.get(), time.monotonic() + PATIENCE
        answers = self._settings.journal(f"answered-{key}")
        while answers.count("answered") < 9:
            assert time.monotonic() < deadline, "a duplicate waits for the handler"
            if self._settings.world == "asgi":
                await asyncio.sleep(POLL)
            else:
                time.sleep(POLL)
        return await (self.atomic if current_operation().mode == "atomic" else self.leased)()

    async def blocking(self) -> Reply:
        """Blocks its thread, and with it any event loop, for two leases, as careless code does."""
        self.note("run")
        time.sleep(2 * BLOCKING_LEASE)
        return answer()

    def note(self, word: str) -> None:
        self._journal.write(word, current_key.get())

    async def stop(self, place: str) -> None:
        if self._settings.world == "asgi":
            await self._checkpoints.pass_by_async(place)
        else:
            self._checkpoints.pass_by(place)

    async def insert(self, connection: Any) -> None:
        """The effect of atomic work, in the words of whichever driver the connection belongs to."""
        key, sql = current_key.get(), "insert into effects (key) values ({})"
        if self._settings.url.startswith("sqlite"):
            await settled(connection.execute(sql.format("?"), [key]))
        elif self._settings.world == "asgi":
            await connection.execute(sql.format("$1"), key)
        else:
            connection.execute(sql.format("%s"), [key])


# ------------------------------------------------------------------ the two worlds


def build(settings: Settings, handlers: Mapping[str, Guarded] | None = None) -> tuple[Any, Idempotency]:
    """An application and its engine."""
    engine = settings.engine()
    chosen = Service(settings).handlers if handlers is None else handlers
    make = _asgi if settings.world == "asgi" else _wsgi
    return make(settings, engine, chosen), engine


def _asgi(settings: Settings, engine: Idempotency, handlers: Mapping[str, Guarded]) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from samekey.asgi import IdempotencyMiddleware

    def endpoint(mode: str, options: dict[str, Any], handler: Handler) -> Any:
        async def handle(_request: Request) -> Response:
            status, body = await handler()
            return Response(body, status, media_type="application/json")

        return getattr(engine, mode)(**options)(handle)

    app = Starlette(
        routes=[Route(path, endpoint(*guarded), methods=["POST"]) for path, guarded in handlers.items()],
        middleware=[Middleware(IdempotencyMiddleware, idempotency=engine, tenant=single_tenant(TENANT))],
    )
    checkpoints = settings.checkpoints

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def send_later(message: Any) -> None:
            if message["type"] == "http.response.start":
                await checkpoints.pass_by_async("answer")
            await send(message)

        current_key.set(dict(scope["headers"]).get(b"idempotency-key", b"").decode())
        await app(scope, receive, send_later)

    return outer


def _wsgi(settings: Settings, engine: Idempotency, handlers: Mapping[str, Guarded]) -> Any:
    from flask import Flask, Response

    from samekey.wsgi import IdempotencyMiddleware

    def endpoint(mode: str, options: dict[str, Any], handler: Handler) -> Any:
        def handle() -> Response:
            status, body = to_the_end(handler)()
            return Response(body, status, content_type="application/json")

        return getattr(engine, mode)(**options)(handle)

    app = Flask(__name__)
    for path, guarded in handlers.items():
        app.add_url_rule(path, path, endpoint(*guarded), methods=["POST"])
    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=engine, tenant=single_tenant(TENANT)
    )
    checkpoints = settings.checkpoints

    def outer(environ: dict[str, Any], start_response: Any) -> Any:
        current_key.set(environ.get("HTTP_IDEMPOTENCY_KEY", ""))
        chunks = app(environ, start_response)
        checkpoints.pass_by("answer")
        return chunks

    return outer


def __getattr__(name: str) -> Any:
    """``asgi`` and ``wsgi``: what a server process asks for."""
    if name not in ("asgi", "wsgi"):
        raise AttributeError(name)
    return build(Settings(**json.loads(os.environ[ENVIRONMENT])))[0]
