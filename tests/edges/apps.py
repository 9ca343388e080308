"""The same small service in every framework: one builder for each, all with the same routes.

/leased /atomic     decorated handlers
/optional           a decorated handler that does not require a key
/exempt             a handler that is declared exempt
/edge /other …      undecorated: the middleware claims
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import flask
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from samekey.asgi import IdempotencyMiddleware as AsgiMiddleware
from samekey.engine.handler.options import LeasedOptions, TransactionOptions
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import AsgiApp, AsgiClient, Client, LoopThread, WsgiApp, WsgiClient
from tests.edges.litestar_app import litestar_app, litestar_response
from tests.edges.world import Reply, Store, World

Kind = Literal["starlette", "fastapi", "threadpool", "flask", "litestar", "litestar-threads", "asgi", "wsgi"]
FRAMEWORKS: tuple[Kind, ...] = ("starlette", "fastapi", "threadpool", "flask", "litestar", "litestar-threads")
BARE: tuple[Kind, ...] = ("asgi", "wsgi")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class BrokenResolver(Exception):
    """What the test's own tenant resolver raises."""


def tenant_of(context: Any) -> str | None:
    """The caller, as a gateway in front would have written it into a header."""
    if "wsgi.input" in context:
        name = context.get("HTTP_X_TENANT")
    else:
        name = next((v.decode() for k, v in context["headers"] if k == b"x-tenant"), None)
    if name is not None and name.endswith("broken"):
        raise BrokenResolver
    return None if name is None or name.endswith("nobody") else str(name)


@dataclass(slots=True)
class Setup:
    """How an application is guarded, beyond the defaults."""

    leased: LeasedOptions = field(default_factory=LeasedOptions)
    atomic: TransactionOptions = field(default_factory=TransactionOptions)
    routes: dict[str, Any] = field(default_factory=dict)
    undecorated: Literal["guard", "pass"] = "guard"

    @property
    def optional(self) -> LeasedOptions:
        return {**self.leased, "required": False}


def build(
    kind: Kind, store: Store, world: World, loop: LoopThread, threads: ThreadPoolExecutor, setup: Setup
) -> Client:
    """A client of a new application of that kind."""
    app = application(kind, store, world, setup)
    return WsgiClient(app, threads) if kind in ("flask", "wsgi") else AsgiClient(app, loop)


def application(kind: str, store: Store, world: World, setup: Setup) -> Any:
    makers: dict[str, Callable[[Store, World, Setup], Any]] = {
        "starlette": _starlette,
        "fastapi": _fastapi,
        "threadpool": _threadpool,
        "asgi": _bare_asgi,
        "litestar": _litestar,
        "litestar-threads": _litestar_threads,
        "flask": _flask,
        "wsgi": _bare_wsgi,
    }
    return makers[kind](store, world, setup)


def methods_of(store: Store, path: str) -> list[str]:
    """A decorated handler is refused for a method that is not guarded."""
    decorated = path in ("/leased", "/atomic", "/optional")
    return sorted(store.idempotency.engine.policy.methods) if decorated else METHODS


def _options(store: Store, setup: Setup) -> dict[str, Any]:
    return {
        "idempotency": store.idempotency,
        "tenant": tenant_of,
        "routes": setup.routes,
        "undecorated": setup.undecorated,
    }


def starlette_response(reply: Reply) -> Response:
    response: Response
    if reply.chunks is not None:
        response = StreamingResponse(iter(reply.chunks), status_code=reply.status)
        response.raw_headers = list(reply.headers)
    else:
        response = Response(reply.body, status_code=reply.status)
        kept = [pair for pair in response.raw_headers if pair[0] == b"content-length"]
        response.raw_headers = [*reply.headers, *kept]
    return response


def _handlers(
    store: Store, world: World, setup: Setup, respond: Callable[[Reply], Any] = starlette_response
) -> dict[str, Any]:
    """Path to handler, for the async frameworks."""
    idempotency = store.idempotency

    @idempotency.leased(**setup.leased)
    async def leased(request: Request) -> Any:
        return respond(await world.perform_async(store, "leased"))

    @idempotency.atomic(**setup.atomic)
    async def atomic(request: Request) -> Any:
        return respond(await world.perform_async(store, "atomic"))

    @idempotency.leased(**setup.optional)
    async def optional(request: Request) -> Any:
        return respond(await world.perform_async(store, "optional"))

    async def plain(request: Request) -> Any:
        return respond(await world.perform_async(store, "plain"))

    @idempotency.exempt
    async def exempt(request: Request) -> Any:
        return await plain(request)

    return {
        **{"/leased": leased, "/atomic": atomic, "/optional": optional, "/exempt": exempt},
        **dict.fromkeys(("/edge", "/other", "/required", "/exempt-by-path"), plain),
    }


def _starlette(store: Store, world: World, setup: Setup) -> AsgiApp:
    handlers = _handlers(store, world, setup)
    app = Starlette(
        routes=[Route(path, handler, methods=methods_of(store, path)) for path, handler in handlers.items()]
    )
    app.add_middleware(AsgiMiddleware, **_options(store, setup))
    return app


def _fastapi(store: Store, world: World, setup: Setup) -> AsgiApp:
    app = FastAPI(openapi_url=None)
    for path, handler in _handlers(store, world, setup).items():
        app.add_api_route(path, handler, methods=methods_of(store, path))
    app.add_middleware(AsgiMiddleware, **_options(store, setup))
    return app


def _sync_handlers(
    store: Store, world: World, setup: Setup, respond: Callable[[Reply], Any]
) -> dict[str, Any]:
    """Path to handler, for sync code."""
    idempotency = store.idempotency

    @idempotency.leased(**setup.leased)
    def leased() -> Any:
        return respond(world.perform(store, "leased"))

    @idempotency.atomic(**setup.atomic)
    def atomic() -> Any:
        return respond(world.perform(store, "atomic"))

    @idempotency.leased(**setup.optional)
    def optional() -> Any:
        return respond(world.perform(store, "optional"))

    def plain() -> Any:
        return respond(world.perform(store, "plain"))

    @idempotency.exempt
    def exempt() -> Any:
        return plain()

    return {
        **{"/leased": leased, "/atomic": atomic, "/optional": optional, "/exempt": exempt},
        **dict.fromkeys(("/edge", "/other", "/required", "/exempt-by-path"), plain),
    }


def _threadpool(store: Store, world: World, setup: Setup) -> AsgiApp:
    """FastAPI with sync handlers, which it runs in threads."""
    app = FastAPI(openapi_url=None)
    for path, handler in _sync_handlers(store, world, setup, starlette_response).items():
        app.add_api_route(path, handler, methods=methods_of(store, path), response_model=None)
    app.add_middleware(AsgiMiddleware, **_options(store, setup))
    return app


def _litestar(store: Store, world: World, setup: Setup) -> Any:
    handlers = _handlers(store, world, setup, litestar_response)
    return litestar_app(handlers, partial(methods_of, store), _options(store, setup))


def _litestar_threads(store: Store, world: World, setup: Setup) -> Any:
    handlers = _sync_handlers(store, world, setup, litestar_response)
    return litestar_app(handlers, partial(methods_of, store), _options(store, setup))


def flask_response(reply: Reply) -> flask.Response:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
    body: Any = reply.body if reply.chunks is None else iter(reply.chunks)
    response = flask.Response(body, status=reply.status)
    del response.headers["content-type"]
    for name, value in headers:
        response.headers.add(name, value)
    return response


def _flask(store: Store, world: World, setup: Setup) -> WsgiApp:
    app = flask.Flask(__name__)
    for path, view in _sync_handlers(store, world, setup, flask_response).items():
        app.add_url_rule(path, path, view, methods=methods_of(store, path))
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, **_options(store, setup))  # type: ignore[method-assign]
    return app


def _bare_asgi(store: Store, world: World, setup: Setup) -> AsgiApp:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        reply = await world.perform_async(store, "plain")
        await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
        if reply.chunks is not None:
            for chunk in reply.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": reply.body or b""})

    return AsgiMiddleware(app, **_options(store, setup)).__call__


def _bare_wsgi(store: Store, world: World, setup: Setup) -> WsgiApp:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        reply = world.perform(store, "plain")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
        start_response(f"{reply.status} As Told", headers)
        return [reply.body or b""] if reply.chunks is None else _generated(reply.chunks)

    return WsgiMiddleware(app, **_options(store, setup)).__call__


def _generated(chunks: tuple[bytes, ...]) -> Iterator[bytes]:
    yield from chunks
