"""One request that meets several guards: one after the other is what cascades and retries do; one inside the
other is two records of one request."""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import ConfigurationError, current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import call_asgi, call_wsgi
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop
from tests.edges.world import Stores

Run = dict[str, Any]


def guarded_at(shop: Shop, path: str, **options: Any) -> Any:
    app = FastAPI()

    @app.post(path)
    async def pay(request: Request) -> Run:
        shop.charge()
        return {"at": path, "sent": (await request.body()).decode()}

    return IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of, **options)


def test_a_cascade_of_guarded_applications(shop: Shop) -> None:
    """The second has the body that the first has read."""
    one, two = guarded_at(shop, "/one"), guarded_at(shop, "/two")

    async def cascade(scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []

        async def hold(message: Any) -> None:
            held.append(message)

        await one(scope, receive, hold)
        if held[0]["status"] == 404:
            await two(scope, receive, send)
        for message in held if held[0]["status"] != 404 else ():
            await send(message)

    for number, path in enumerate(("/one", "/two"), 1):
        got = shop.send(cascade, path=path, keys=(path.encode(),), body=b'{"amount": 1}')
        assert [one.status for one in got] == [200, 200] and got[1].replayed, got
        assert got[0].json() == {"at": path, "sent": '{"amount": 1}'} and shop.charges == number


@pytest.mark.parametrize("mode", ["undecorated", "leased"])
def test_a_retry_outside(shop: Shop, mode: str) -> None:
    """The first try is refused before the effect, and frees its key; the second is the operation."""

    async def pay(request: Request) -> Response:
        tries.append(1)
        if len(tries) == 1:
            raise HTTPException(429)
        shop.charge()
        return JSONResponse({"run": shop.charges})

    tries: list[int] = []
    handler = pay if mode == "undecorated" else shop.idempotency.leased(pay)
    inner = shop.guard(Starlette(routes=[Route("/pay", handler, methods=["POST"])]))

    async def retry(scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []
        for _ in range(2):
            held = []
            await inner(scope, receive, _into(held))
            if held[0]["status"] != 429:
                break
        for message in held:
            await send(message)

    got = shop.send(retry, times=3)
    assert [one.json() for one in got] == [{"run": 1}] * 3 and got[2].replayed
    assert (shop.charges, len(tries)) == (1, 2)


def _into(held: list[Any]) -> Any:
    async def hold(message: Any) -> None:
        held.append(message)

    return hold


def test_a_retry_outside_while_the_first_try_still_runs(shop: Shop) -> None:
    """Each try keeps its own exchange, whichever reaches its handler first."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Slow:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if not entered.is_set():
                entered.set()
                await gate.wait()
            await self.app(scope, receive, send)

    app = FastAPI()

    @app.post("/pay")
    async def pay() -> Run:
        shop.charge()
        return {"run": shop.charges}

    app.add_middleware(Slow)
    inner = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of)

    async def hedge(scope: Any, receive: Any, send: Any) -> None:
        first = asyncio.ensure_future(inner(scope, receive, _into(late)))
        await entered.wait()
        await inner(scope, receive, send)
        gate.set()
        await first

    late: list[Any] = []
    (got,) = shop.send(hedge, times=1)
    assert got.json() == {"run": 1} and not got.replayed and shop.charges == 1
    assert late[0]["status"] == 200 and (b"idempotent-replayed", b"true") in late[0]["headers"]


def test_a_cascade_over_one_environ(shop: Shop) -> None:
    def at(path: str) -> Any:
        app = flask.Flask(__name__)

        @app.post(path)
        def pay() -> Any:
            shop.charge()
            return {"at": path, "sent": flask.request.get_data(as_text=True)}

        @app.errorhandler(404)
        def missing(error: Any) -> Any:
            return flask.request.get_data(as_text=True), 404  # it reads the body, too

        return shop.guard_wsgi(app.wsgi_app)

    one, two = at("/one"), at("/two")

    def cascade(environ: Any, start_response: Any) -> Any:
        begun: list[Any] = []

        def start(*args: Any) -> Any:
            begun.append(args)
            return lambda data: None

        chunks = one(environ, start)
        body = list(chunks)
        chunks.close()
        if begun[0][0].startswith("404"):
            return two(environ, start_response)
        start_response(*begun[0])
        return body

    for number, path in enumerate(("/one", "/two"), 1):
        ask = Ask(keys=(path.encode(),), body=b'{"amount": 1}').request(path, shop.world.name)
        got = [call_wsgi(cascade, ask) for _ in range(2)]
        assert [one.status for one in got] == [200, 200] and got[1].replayed, got
        assert got[0].json() == {"at": path, "sent": '{"amount": 1}'} and shop.charges == number


# --- one inside the other ------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True])
def test_a_guard_inside_a_guard_is_refused(shop: Shop, copied: bool) -> None:
    inner = guarded_at(shop, "/pay")
    shop.idempotency.leased(lambda: None)  # the outer one has something to guard, somewhere

    async def between(scope: Any, receive: Any, send: Any) -> None:
        await inner(dict(scope) if copied else scope, receive, send)

    outer = IdempotencyMiddleware(between, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass")
    (got,) = shop.send(outer, times=1)
    assert isinstance(got.error, ConfigurationError) and "already passed" in str(got.error)
    assert shop.charges == 0 and shop.states() == []


@pytest.mark.parametrize("copied", [False, True])
def test_a_guard_inside_a_guard_in_a_context_of_its_own(shop: Shop, copied: bool) -> None:
    """It cannot be told from one after the other; the inner one claims, and nobody else."""
    inner = guarded_at(shop, "/pay")

    async def between(scope: Any, receive: Any, send: Any) -> None:
        call = inner(dict(scope) if copied else scope, receive, send)
        await asyncio.get_running_loop().create_task(call, context=contextvars.Context())

    outer = IdempotencyMiddleware(between, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass")
    got = shop.send(outer, times=3)
    assert [one.status for one in got] == [200] * 3 and got[2].replayed and shop.charges == 1


def test_a_wsgi_guard_inside_an_asgi_guard_is_refused(shop: Shop) -> None:
    """The adapter between them makes the request anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.middleware.wsgi import WSGIMiddleware

    app, outer = flask.Flask(__name__), FastAPI()

    @app.post("/pay")
    def pay() -> Any:
        shop.charge()
        return {}

    hidden = shop.guard_wsgi(app.wsgi_app)
    shop.idempotency.leased(lambda: None)  # the outer one has something to guard, somewhere

    def adapted(environ: Any, start_response: Any) -> Any:
        return hidden(environ, start_response)

    outer.mount("/shop", WSGIMiddleware(adapted))
    (got,) = shop.send(shop.guard(outer, undecorated="pass"), times=1, path="/shop/pay")
    assert isinstance(got.error, ConfigurationError) and "already passed" in str(got.error)
    assert shop.charges == 0 and shop.states() == []


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_guard_inside_that_lets_a_request_pass_leaves_it_to_the_one_outside(
    shop: Shop, stores: Stores, method: str
) -> None:
    """The inner one leaves undecorated routes alone, and knows nothing of DELETE. What the handler notes is
    the outer one's: a provider was called, so the key is not free."""
    api = FastAPI()

    @api.api_route("/pay", methods=["POST", "DELETE"])
    async def pay() -> Run:
        shop.charge()
        current_operation().provider_id = "ch_1"
        raise HTTPException(429)

    shop.guard(api, undecorated="pass")

    async def closure(scope: Any, receive: Any, send: Any) -> None:
        await api(scope, receive, send)

    wide = stores.get(methods={"POST", "DELETE"}).idempotency
    outer = IdempotencyMiddleware(closure, idempotency=wide, tenant=tenant_of, undecorated="guard")
    got = shop.send(outer, times=3, method=method)
    assert [one.status for one in got] == [429, 409, 409] and shop.charges == 1, got


def test_a_duplicate_that_the_handler_sends_is_answered_as_one(shop: Shop) -> None:
    app = FastAPI()
    answers: list[str | None] = []

    @app.post("/pay")
    async def pay() -> Run:
        shop.charge()
        answers.append((await call_asgi(app, Ask().request("/pay", shop.world.name))).code)
        return {"run": shop.charges}

    got = shop.send(shop.guard(app))
    assert [one.json() for one in got] == [{"run": 1}] * 2 and got[1].replayed and shop.charges == 1
    assert answers == ["in_progress"]


def test_an_application_may_call_itself_through_its_guard(shop: Shop) -> None:
    """As remote procedure calls do: the same method and path, with a key of its own or none."""
    app = FastAPI()

    @app.post("/rpc")
    async def rpc(depth: int = 0) -> Run:
        shop.charge()
        if depth == 2:
            return {"run": shop.charges}
        keys = () if depth else (b"of-its-own",)
        ask = Ask(keys=keys, query=f"depth={depth + 1}".encode()).request("/rpc", shop.world.name)
        return {"inner": (await call_asgi(guarded, ask)).json()}

    guarded = shop.guard(app)
    got = shop.send(guarded, times=3, path="/rpc")
    assert [one.json() for one in got] == [{"inner": {"inner": {"run": 3}}}] * 3 and got[2].replayed
    assert shop.charges == 3 and shop.states() == ["completed", "completed"]
