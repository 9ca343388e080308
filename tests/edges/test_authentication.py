"""Authentication comes before any look-up, on replay too (T5), wherever the framework does it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi import Request as FastAPIRequest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_state, by_user
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import AsgiClient, Client, Got, LoopThread, WsgiClient
from tests.edges.counting import touches
from tests.edges.scenarios import Ask
from tests.edges.world import Store, Stores, World


class Tokens:
    """Who a token stands for, while it is valid."""

    def __init__(self, world: World) -> None:
        self.valid = {name: f"{world.name}-{name[0]}" for name in ("ann-1", "ann-2", "bob-1")}

    def user(self, header: str | None) -> str | None:
        return None if header is None else self.valid.get(header.removeprefix("Bearer "))


Make = Callable[[Store, World, Tokens, LoopThread, ThreadPoolExecutor], Client]


def _dependency(store: Store, world: World, tokens: Tokens, loop: LoopThread, _: Any) -> Client:
    """FastAPI: a dependency leaves the user in ``request.state``."""
    app = FastAPI()

    async def authenticate(request: FastAPIRequest) -> None:
        user = tokens.user(request.headers.get("authorization"))
        if user is None:
            raise HTTPException(401)
        request.state.account = user

    @app.post("/pay", dependencies=[Depends(authenticate)])
    @store.idempotency.leased
    async def pay() -> Any:
        return {"run": world.begin()[0]}

    app.add_middleware(IdempotencyMiddleware, idempotency=store.idempotency, tenant=by_state("account"))
    return AsgiClient(app, loop)


class _Backend(AuthenticationBackend):
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        user = self._tokens.user(conn.headers.get("authorization"))
        if user is None:
            raise AuthenticationError
        return AuthCredentials(["authenticated"]), SimpleUser(user)


def _refuse(_connection: HTTPConnection, _error: Exception) -> Response:
    return JSONResponse({}, 401)


def _middleware(
    store: Store, world: World, tokens: Tokens, loop: LoopThread, *, outside: bool, decorated: bool
) -> Client:
    """Starlette: AuthenticationMiddleware, in front of ours or behind it."""

    async def pay(request: Request) -> Response:
        return JSONResponse({"run": world.begin(guarded=decorated)[0]})

    handler = store.idempotency.leased(pay) if decorated else pay
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    guard: dict[str, Any] = {"idempotency": store.idempotency, "tenant": by_user}
    if outside:
        app.add_middleware(IdempotencyMiddleware, **guard)
    app.add_middleware(AuthenticationMiddleware, backend=_Backend(tokens), on_error=_refuse)
    if not outside:
        app.add_middleware(IdempotencyMiddleware, **guard)
    return AsgiClient(app, loop)


def _inside(store: Store, world: World, tokens: Tokens, loop: LoopThread, _: Any) -> Client:
    return _middleware(store, world, tokens, loop, outside=False, decorated=True)


def _outside(store: Store, world: World, tokens: Tokens, loop: LoopThread, _: Any) -> Client:
    return _middleware(store, world, tokens, loop, outside=True, decorated=True)


def _in_front(store: Store, world: World, tokens: Tokens, loop: LoopThread, _: Any) -> Client:
    return _middleware(store, world, tokens, loop, outside=True, decorated=False)


def _before_request(
    store: Store, world: World, tokens: Tokens, _: Any, threads: ThreadPoolExecutor
) -> Client:
    """Flask: before_request leaves the user in the environ."""
    app = flask.Flask(__name__)

    @app.before_request
    def authenticate() -> Any:
        user = tokens.user(flask.request.headers.get("Authorization"))
        if user is None:
            return {}, 401
        flask.request.environ["account"] = user
        return None

    @app.post("/pay")
    @store.idempotency.leased
    def pay() -> Any:
        return {"run": world.begin()[0]}

    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=store.idempotency, tenant=by_state("account")
    )
    return WsgiClient(app, threads)


PLACES: dict[str, Make] = {
    "FastAPI dependency": _dependency,
    "Starlette middleware behind ours": _inside,
    "Starlette middleware in front of ours": _outside,
    "Starlette middleware, claimed at the edge": _in_front,
    "Flask before_request": _before_request,
}


@pytest.mark.parametrize("place", PLACES)
def test_authentication_first(
    place: str, stores: Stores, loop: LoopThread, threads: ThreadPoolExecutor
) -> None:
    store, world = stores.get(), World()
    tokens = Tokens(world)
    client = PLACES[place](store, world, tokens, loop, threads)

    def ask(token: str | None, **changes: Any) -> Got:
        headers = () if token is None else ((b"authorization", f"Bearer {token}".encode()),)
        return client.send(Ask(tenant=None, headers=headers, **changes).request("/pay", world.name))

    with touches(store.idempotency) as touched:
        assert ask(None).status == 401
        assert ask("forged").status == 401
    assert (touched, world.runs) == ([], 0)

    assert ask("ann-1").json() == {"run": 1}
    assert ask("ann-1").replayed
    assert ask("ann-2").replayed, "a refreshed token is still the same caller"
    assert ask("bob-1").json() == {"run": 2}, "another caller's key is another key"

    del tokens.valid["ann-1"]
    with touches(store.idempotency) as touched:
        revoked = ask("ann-1")
    assert (revoked.status, revoked.replayed, touched) == (401, False, [])
    assert b"run" not in revoked.body
    assert ask("ann-2").json() == {"run": 1}
