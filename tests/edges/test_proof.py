"""Only proof frees a key, whatever stands around a handler and whatever shape it has.

Each test is an application that ordinary people write, in which a key was once freed, an answer lost, or a
guard walked past.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from samekey import ConfigurationError, NotExecuted, Outcome, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient, Got, LoopThread, call_wsgi
from tests.edges.scenarios import Ask
from tests.edges.world import Store, Stores, World


class Shop:
    """Counts charges, and sends the same request as often as it is told."""

    def __init__(self, store: Store, loop: LoopThread) -> None:
        self.store, self.loop = store, loop
        self.idempotency = store.idempotency
        self.world = World()
        self.charges = 0

    def charge(self) -> None:
        self.charges += 1

    def guard(self, app: Any, **options: Any) -> Any:
        app.add_middleware(IdempotencyMiddleware, idempotency=self.idempotency, tenant=tenant_of, **options)
        return app

    def send(self, app: Any, times: int = 2, path: str = "/pay") -> list[Got]:
        ask = Ask().request(path, self.world.name)
        if isinstance(app, flask.Flask | WsgiMiddleware):
            return [call_wsgi(app, ask) for _ in range(times)]
        client = AsgiClient(app, self.loop)
        return [client.send(ask) for _ in range(times)]

    def states(self) -> list[str]:
        return [state for state, _ in self.store.records(f"{self.world.name}-alice")]


@pytest.fixture
def shop(stores: Stores, loop: LoopThread) -> Shop:
    return Shop(stores.get(), loop)


def test_middleware_of_a_route_stays_where_it_is(shop: Shop) -> None:
    """Also one that looks like Starlette's own closure: the guard goes below it, or stays at the edge."""

    def require_login(app: Any) -> Any:
        @functools.wraps(app)
        async def checked(scope: Any, receive: Any, send: Any) -> None:
            if not any(name == b"authorization" for name, _ in scope["headers"]):
                await Response(status_code=401)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return checked

    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    route = Route("/pay", pay, methods=["POST"], middleware=[Middleware(require_login)])
    got = shop.send(shop.guard(Starlette(routes=[route])))
    assert [one.status for one in got] == [401, 401] and shop.charges == 0


def test_a_deadline_that_answers_while_the_claim_is_under_way(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs for a request that has been answered, and nothing is left behind."""
    reached = asyncio.Event()

    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({"charges": shop.charges})

    class Impatient:
        def __init__(self, app: Any) -> None:
            self.app = app
            self.first = True

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or not self.first:
                await self.app(scope, receive, send)
                return
            self.first = False
            task = asyncio.ensure_future(self.app(scope, receive, send))
            await reached.wait()
            await Response(status_code=503)(scope, receive, send)
            go_on.set()
            await asyncio.wait({task})
            task.exception()

    go_on = asyncio.Event()
    begin = shop.idempotency.engine.begin_async

    async def slow(*arguments: Any) -> Any:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return await begin(*arguments)

    monkeypatch.setattr(shop.idempotency.engine, "begin_async", slow)
    app = Starlette(routes=[Route("/pay", shop.idempotency.leased(pay), methods=["POST"])])
    app.add_middleware(Impatient)
    first, again = shop.send(shop.guard(app))
    assert first.status == 503 and again.json() == {"charges": 1} and shop.states() == ["completed"]


def test_whichever_handler_is_reached_claims(shop: Shop) -> None:
    """A middleware may lead a request to another route than the router was asked for."""

    class Rewrites:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app({**scope, "path": "/v2/pay"}, receive, send)

    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    app = Starlette(routes=[Route("/v2/pay", pay, methods=["POST"])])
    app.add_middleware(Rewrites)
    first, again = shop.send(shop.guard(app))
    assert again.replayed and first.status == 200 and shop.charges == 1


def test_behind_a_dispatcher(shop: Shop) -> None:
    main, api = flask.Flask("main"), flask.Flask("api")

    @api.post("/pay")
    def pay() -> Any:
        shop.charge()
        return {}

    app = WsgiMiddleware(
        DispatcherMiddleware(main, {"/api": api}), idempotency=shop.idempotency, tenant=tenant_of
    )
    first, again = shop.send(app, path="/api/pay")
    assert (first.status, again.replayed, shop.charges) == (200, True, 1)


@pytest.mark.parametrize("shape", ["raised again", "in a loop", "beside another"])
def test_before_effect_proves_no_more_than_it_says(shop: Shop, shape: str) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        operation = current_operation()
        if shape == "raised again":
            try:
                with operation.before_effect():
                    dict[str, int]()["missing"]
            except KeyError as error:
                problem = error
            shop.charge()
            raise problem
        if shape == "in a loop":
            for number in range(2):
                with operation.before_effect():
                    if number:
                        raise KeyError
                shop.charge()

        async def charge() -> None:
            shop.charge()

        async def check() -> None:
            with operation.before_effect():
                raise KeyError

        await asyncio.gather(charge(), check())
        return Response()

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    assert {got.code for got in shop.send(app, 3)} == {"outcome_unknown"} and shop.charges == 1


def test_a_classifier_does_not_free_a_key_by_somebody_elses_page(shop: Shop) -> None:
    def classify(status: int | None, error: BaseException | None) -> Outcome | None:
        return Outcome.RELEASE if status == 422 else None

    class Refuses:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def refuse(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "status": 422}
                await send(message)

            await self.app(scope, receive, refuse)

    @shop.idempotency.leased(classify=classify)
    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(Refuses)
    first, again = shop.send(shop.guard(app))
    assert (first.status, again.replayed, shop.charges) == (422, True, 1)


@pytest.mark.parametrize("decorated", [True, False])
def test_a_route_that_retries_its_handler(shop: Shop, decorated: bool) -> None:
    class Retrying(APIRoute):
        def get_route_handler(self) -> Any:
            handle = super().get_route_handler()

            async def twice(request: Any) -> Any:
                try:
                    return await handle(request)
                except ConnectionError:
                    return await handle(request)

            return twice

    async def pay() -> Any:
        shop.charge()
        raise ConnectionError

    app = FastAPI()
    app.router.route_class = Retrying
    app.post("/pay")(shop.idempotency.leased(pay) if decorated else pay)
    got = shop.send(shop.guard(app))
    assert {one.code for one in got} == {"outcome_unknown"} and shop.charges == 1


def test_a_bare_application_may_be_a_method(shop: Shop) -> None:
    class App:
        @shop.idempotency.leased
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            shop.charge()
            await JSONResponse({"charges": shop.charges})(scope, receive, send)

    guarded = IdempotencyMiddleware(App(), idempotency=shop.idempotency, tenant=tenant_of)
    first, again = shop.send(guarded.__call__)
    assert (first.status, again.replayed, shop.states()) == (200, True, ["completed"])


def test_a_handler_that_sends_by_itself(shop: Shop) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        await JSONResponse({}, 201)(request.scope, request.receive, request._send)
        return Response()

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    first, again = shop.send(app)
    assert (first.status, again.status, again.replayed, shop.charges) == (201, 201, True, 1)


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_a_message_before_the_claim_decides_nothing(shop: Shop, mode: str) -> None:
    class Hints:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.early_hint", "links": []})
            await self.app(scope, receive, send)

    async def pay(request: Request) -> Response:
        if mode == "atomic":
            await current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        return JSONResponse({})

    handler = getattr(shop.idempotency, mode)(pay)
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])])
    app.add_middleware(Hints)
    _, again = shop.send(shop.guard(app))
    assert again.replayed and shop.states() == ["completed"]
    assert shop.store.effects(shop.world) == (1 if mode == "atomic" else 0)


def test_wrapped_from_outside_the_framework_is_the_same(shop: Shop) -> None:
    @shop.idempotency.leased
    async def pay() -> Any:
        shop.charge()
        raise HTTPException(409, "sold out")

    app = FastAPI()
    app.post("/pay")(pay)
    outside = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of)
    first, again = shop.send(outside.__call__)
    assert (first.status, again.status, again.replayed, again.error) == (409, 409, True, None)


def test_an_async_atomic_view_behind_wsgi_is_refused_before_anything_is_claimed(shop: Shop) -> None:
    app = flask.Flask(__name__)

    async def pay() -> Any:
        shop.charge()
        return {}

    guarded = shop.idempotency.atomic(pay)
    app.add_url_rule("/pay", "pay", lambda: asyncio.run(guarded()), methods=["POST"])
    app.config["PROPAGATE_EXCEPTIONS"] = True
    app.view_functions["pay"].__dict__.update(guarded.__dict__)
    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=shop.idempotency, tenant=tenant_of
    )
    got = shop.send(app)[0]
    assert isinstance(got.error, ConfigurationError) and "def" in str(got.error)
    assert shop.charges == 0 and shop.states() == []


def test_without_a_key_an_undecorated_handler_has_an_operation_too(shop: Shop) -> None:
    seen: list[str] = []

    async def pay(request: Request) -> Response:
        seen.append(current_operation().downstream_key())
        return JSONResponse({})

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    client = AsgiClient(app, shop.loop)
    ask = Ask(keys=()).request("/pay", shop.world.name)
    assert [client.send(ask).status for _ in range(2)] == [200, 200] and len(set(seen)) == 2


def test_generators_are_refused_and_never_taken_for_done(shop: Shop) -> None:
    def pieces() -> Any:
        shop.charge()
        yield 1

    with pytest.raises(ConfigurationError, match="generator"):
        shop.idempotency.leased(pieces)
    for _ in range(2):
        with pytest.raises(NotExecuted):
            shop.idempotency.once(tenant=shop.world.name, key="k", run=pieces)
    assert shop.charges == 0


@pytest.mark.parametrize("own", ["dispatch and post", "dispatch"])
def test_an_endpoint_that_dispatches_by_itself(shop: Shop, own: str) -> None:
    class Pay(HTTPEndpoint):
        async def dispatch(self) -> None:
            shop.charge()
            await JSONResponse({})(self.scope, self.receive, self.send)

    class PayWithPost(Pay):
        async def post(self, request: Request) -> Response:
            raise AssertionError("never called")

    endpoint = Pay if own == "dispatch" else PayWithPost
    _, again = shop.send(shop.guard(Starlette(routes=[Route("/pay", endpoint)])))
    assert again.replayed and shop.charges == 1


@pytest.mark.parametrize("status", [408, 429])
def test_a_refusal_that_is_made_of_a_time_out(shop: Shop, status: int) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError as error:
            raise HTTPException(status) from error
        return Response()

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    _, again = shop.send(app)
    assert again.code == "outcome_unknown" and shop.charges == 1


def test_a_body_that_the_framework_does_not_like_after_the_effect(shop: Shop) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    @shop.idempotency.leased
    def pay() -> Any:
        shop.charge()
        return flask.request.get_json()

    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, idempotency=shop.idempotency, tenant=tenant_of
    )
    ask = Ask(media=b"text/plain").request("/pay", shop.world.name)
    first, again = (call_wsgi(app, ask) for _ in range(2))
    assert (first.status, again.status, again.replayed, shop.charges) == (415, 415, True, 1)


def test_header_names_are_lower_case_for_middleware_further_out(shop: Shop) -> None:
    async def pay(request: Request) -> Response:
        return JSONResponse({})

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    for got in shop.send(app):
        assert all(name == name.lower() for name, _ in got.headers), got


def test_a_401_of_ours_says_how_to_authenticate(shop: Shop) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        return JSONResponse({})

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    got = AsgiClient(app, shop.loop).send(Ask(tenant=None).request("/pay", shop.world.name))
    assert (got.status, got.header("www-authenticate")) == (401, "Bearer")


@pytest.mark.parametrize("classify", ["raises", "says fail"])
def test_a_success_that_was_rolled_back_is_not_told_as_one(shop: Shop, classify: str) -> None:
    def judge(status: int | None, error: BaseException | None) -> Outcome:
        if classify == "raises":
            raise KeyError
        return Outcome.FAIL

    @shop.idempotency.atomic(classify=judge)
    async def pay(request: Request) -> Response:
        await current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        return JSONResponse({"paid": True}, 201)

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    assert {got.status for got in shop.send(app)} == {500}
    assert shop.store.effects(shop.world) == 0
