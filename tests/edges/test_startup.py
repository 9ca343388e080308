"""What would have no effect is seen before the first request, on real applications."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import flask
import pytest
from fastapi import APIRouter, Depends, FastAPI
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router, WebSocketRoute
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from samekey import ConfigurationError, Idempotency, Input, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.edges.guards import RouteGuard
from samekey.edges.startup import look
from samekey.ops.coverage import How, coverage
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.shop import Shop
from tests.edges.wrong import problems


@pytest.fixture
def idempotency(sqlite_url: str) -> Iterator[Idempotency]:
    made = Idempotency(sqlite_url)
    yield made
    made.close()


async def plain(request: Request) -> Response:
    return Response("done")


def view(**_: Any) -> str:
    return "done"


def fresh() -> Any:
    """A handler that nobody has declared yet."""

    async def handle(request: Request) -> Response:
        return Response("done")

    return handle


def login_required(function: Any) -> Any:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return checked


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


# ------------------------------------------------------------------ nothing is wrong


def test_a_good_application_has_no_problems(idempotency: Idempotency) -> None:
    app = FastAPI()
    router = APIRouter(prefix="/v1")

    @router.post("/pay/{number}")
    @login_required
    @idempotency.leased
    async def pay(number: int) -> str:
        return "paid"

    @router.post("/ride")
    @idempotency.phased("ride")
    async def ride(op: Any, input: Input) -> Any:
        return {}

    class Orders(HTTPEndpoint):
        @idempotency.atomic
        async def post(self, request: Request) -> Response:
            return Response("ordered")

        async def get(self, request: Request) -> Response:
            return Response("orders")

        async def delete(self, request: Request) -> Response:
            return Response("gone")

    router.post("/hook")(idempotency.exempt(fresh()))
    app.include_router(router)
    app.router.routes.append(Route("/orders", Orders))
    app.add_api_route("/form", idempotency.leased(fresh()), methods=["GET", "POST"])
    app.add_api_route("/plain", plain, methods=["POST", "PUT"])
    app.mount("/sub", Starlette(routes=[Route("/x/{y:path}", plain, methods=["POST"])]))
    app.mount("/bare", Bare())
    said: Any = {
        "/plain": "required",
        "/v1/hook": "exempt",
        "/health": "exempt",
        "/sub/x/{y:path}": "optional",
        "/sub/x/one/two": "required",
        "/bare/anything": "exempt",
    }
    app.get("/health")(fresh())
    assert problems(app, idempotency.engine, said) == []


class Bare:
    """An application that nobody can look into."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks it")


def test_a_good_flask_application_has_no_problems(idempotency: Idempotency) -> None:
    app = flask.Flask("shop")
    blueprint = flask.Blueprint("v1", "v1", url_prefix="/v1")

    @blueprint.post("/pay/<int:number>")
    @idempotency.leased
    def pay(number: int) -> str:
        return "paid"

    class Orders(MethodView):
        @idempotency.leased
        def post(self) -> str:
            return "ordered"

        def put(self) -> str:
            return "put"

    class Whole(MethodView):
        decorators = [idempotency.leased]  # noqa: RUF012 - as Flask has it

        def get(self) -> str:
            return "one"

        def post(self) -> str:
            return "ordered"

    app.register_blueprint(blueprint)
    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    app.add_url_rule("/plain/<path:rest>", "plain", view, methods=["POST", "DELETE"])
    said: Any = {"/plain/<path:rest>": "required", "/plain/a/b": "exempt"}
    assert problems(app.wsgi_app, idempotency.engine, said) == []
    both = DispatcherMiddleware(app.wsgi_app, {"/other": app})
    assert problems(both, idempotency.engine, {**said, "/other/plain/<path:rest>": "exempt"}) == []


# ------------------------------------------------------------------ the order of decorators


def test_fastapi_routes_that_call_the_bare_function(idempotency: Idempotency) -> None:
    app = FastAPI()
    router = APIRouter()

    @idempotency.leased
    @app.post("/pay")
    async def pay() -> str:
        return "paid"

    @idempotency.atomic
    @login_required
    @router.post("/order")
    async def order() -> str:
        return "ordered"

    @idempotency.phased("ride")
    @app.post("/ride")
    async def ride(op: Any, input: Any) -> Any:
        return {}

    app.include_router(router, prefix="/v1")
    found = problems(app, idempotency.engine)
    assert len(found) == 3 and all("wrong order" in one for one in found), found
    assert {one.split(" (")[0] for one in found} == {"POST /pay", "POST /v1/order", "POST /ride"}
    with pytest.raises(ConfigurationError, match=r"(?s)POST /pay.*above samekey's.*POST /ride"):
        look(app, idempotency.engine).refuse(None)


def test_flask_routes_that_call_the_bare_function(idempotency: Idempotency) -> None:
    app = flask.Flask("shop")
    blueprint = flask.Blueprint("v1", "v1", url_prefix="/v1")

    @idempotency.leased
    @blueprint.post("/pay")
    def pay() -> str:
        return "paid"

    class Orders(MethodView):
        def post(self) -> str:
            return "ordered"

    made = Orders.as_view("orders")
    app.add_url_rule("/orders", view_func=made)
    idempotency.leased(made)
    app.register_blueprint(blueprint)
    found = problems(app.wsgi_app, idempotency.engine)
    assert sorted(one.split(" (")[0] for one in found) == ["POST /orders", "POST /v1/pay"]
    assert all("wrong order" in one for one in found)


def test_methods_of_an_object_are_known_again(idempotency: Idempotency) -> None:
    class Payments:
        async def pay(self, request: Request) -> Response:
            return Response("paid")

    payments, others = Payments(), Payments()
    guarded = idempotency.leased(payments.pay)
    good = [
        Route("/good", guarded, methods=["POST"]),
        Route("/another", others.pay, methods=["POST"]),
    ]
    assert problems(Starlette(routes=good), idempotency.engine) == []
    bad = [Route("/bad", payments.pay, methods=["POST"]), Route("/read", payments.pay)]
    assert only(problems(Starlette(routes=bad), idempotency.engine)).startswith("POST /bad (")


def test_one_function_on_two_routes_with_its_guard_and_without(idempotency: Idempotency) -> None:
    """The one is guarded by its decorator, the other as ``routes`` says, or not at all; without a word it may
    be a mistake in the order of its decorators."""

    async def pay() -> str:
        return "paid"

    app = FastAPI()
    app.post("/pay")(idempotency.leased(pay))
    app.post("/admin/pay")(pay)
    for undecorated in ("guard", "pass"):
        found = only(problems(app, idempotency.engine, undecorated=undecorated))
        assert found.startswith("POST /admin/pay (") and "routes={'/admin/pay': 'exempt'}" in found
    words: tuple[RouteGuard, ...] = ("exempt", "optional", "required")
    for said in words:
        assert problems(app, idempotency.engine, {"/admin/pay": said}) == []
    stacked = FastAPI()
    stacked.post("/v2/pay")(idempotency.leased(stacked.post("/pay")(fresh())))
    assert only(problems(stacked, idempotency.engine, undecorated="pass")).startswith("POST /pay (")

    async def order() -> str:
        return "ordered"

    idempotency.leased(order)
    app.post("/order")(order)
    meant: dict[str, RouteGuard] = {"/admin/pay": "exempt"}
    assert only(problems(app, idempotency.engine, meant)).startswith("POST /order (")
    assert problems(app, idempotency.engine, meant | {"/order": "exempt"}) == []


def test_exempt_is_said_of_a_route_and_not_of_the_function(idempotency: Idempotency) -> None:
    """Elsewhere the function is guarded as any other; and a copy of the mark says nothing of another one."""

    async def pay() -> str:
        return "paid"

    app = FastAPI()
    app.post("/admin/pay")(idempotency.exempt(pay))
    app.post("/pay")(pay)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=lambda scope: "acme")
    assert {one.path: one.how for one in coverage(app)} == {"/admin/pay": How.EXEMPT, "/pay": How.EDGE}

    @functools.wraps(idempotency.exempt(fresh()))
    async def charge() -> str:
        return "charged"

    copied = FastAPI()
    copied.post("/pay")(charge)
    assert "has copied the mark" in only(problems(copied, idempotency.engine))


@pytest.mark.parametrize("decorated", [True, False])
def test_a_decorated_dependency(idempotency: Idempotency, decorated: bool) -> None:
    @idempotency.leased
    async def charge() -> int:
        return 1

    def basket(charged: int = Depends(charge)) -> int:
        return charged

    async def pay(charged: int = Depends(basket)) -> int:
        return charged

    app = FastAPI()
    app.post("/pay")(idempotency.leased(pay) if decorated else pay)
    found = only(problems(app, idempotency.engine))
    assert "its dependency test_a_decorated_dependency.<locals>.charge is decorated" in found


# ------------------------------------------------------------------ methods


def test_a_decorated_handler_on_a_method_that_is_not_guarded(idempotency: Idempotency) -> None:
    decorated = idempotency.leased(fresh())

    class Orders(HTTPEndpoint):
        @idempotency.leased
        async def delete(self, request: Request) -> Response:
            return Response("gone")

    routes: list[Any] = [Route("/put", decorated, methods=["POST", "PUT"]), Route("/orders", Orders)]
    put, delete = problems(Starlette(routes=[Mount("/v1", routes=routes)]), idempotency.engine)
    assert put.startswith("POST/PUT /v1/put") and "PUT is not guarded (PATCH, POST is)" in put
    assert "methods={'PATCH', 'POST', 'PUT'}" in put
    assert delete.startswith("DELETE /v1/orders") and "DELETE is not guarded" in delete
    reading = Starlette(routes=[Route("/get", decorated)])
    assert "never guarded, so the decorator has no effect" in only(problems(reading, idempotency.engine))

    app = flask.Flask("shop")
    app.add_url_rule("/put", "put", idempotency.leased(lambda: "done"), methods=["PUT"])
    assert only(problems(app.wsgi_app, idempotency.engine)).startswith("PUT /put")


def test_a_method_that_the_policy_guards_is_fine(sqlite_url: str) -> None:
    idempotency = Idempotency(sqlite_url, policy=ietf(methods={"POST", "PUT"}))
    good = Starlette(routes=[Route("/x", idempotency.leased(fresh()), methods=["PUT", "POST"])])
    assert problems(good, idempotency.engine) == []
    bad = Starlette(routes=[Route("/x", idempotency.leased(fresh()), methods=["PATCH"])])
    assert "PATCH is not guarded" in only(problems(bad, idempotency.engine))
    idempotency.close()


# ------------------------------------------------------------------ the routes option


def test_routes_that_the_application_does_not_have(idempotency: Idempotency) -> None:
    app = FastAPI(openapi_url=None)
    app.post("/pay/{number}")(plain)
    app.mount("/files", Starlette(routes=[Route("/up", plain, methods=["POST"])]))
    found = problems(
        app, idempotency.engine, {"/typo": "exempt", "/pays/1": "required", "/files/down": "required"}
    )
    assert len(found) == 3 and all("no such route" in one for one in found)
    assert "/files/up, /pay/{number}" in found[0]

    wsgi = flask.Flask("shop")
    wsgi.add_url_rule("/pay/<int:number>", "pay", view, methods=["POST"])
    assert problems(wsgi.wsgi_app, idempotency.engine, {"/pay/7": "exempt"}) == []
    assert "no such route" in only(problems(wsgi.wsgi_app, idempotency.engine, {"/pay/7/x": "exempt"}))


def test_a_prefix_that_a_mount_or_the_server_takes_off(idempotency: Idempotency) -> None:
    app = Router(routes=[Route("/pay", plain, methods=["POST"])])
    assert problems(app, idempotency.engine, {"/api/pay": "required", "/pay": "required"}, root="/api") == []
    assert "no such route" in only(problems(app, idempotency.engine, {"/api/pay": "required"}))
    decorated = Router(routes=[Route("/pay", idempotency.leased(fresh()), methods=["POST"])])
    assert "Keep one" in only(problems(decorated, idempotency.engine, {"/api/pay": "exempt"}, root="/api"))


def test_routes_that_say_something_of_nothing(idempotency: Idempotency) -> None:
    async def talk(socket: Any) -> None:
        raise AssertionError("nobody talks")

    app = Starlette(routes=[Route("/read", plain), WebSocketRoute("/talk", talk)])
    said: Any = {"/read": "required", "/talk": "exempt"}
    reading, talking = problems(app, idempotency.engine, said)
    assert "has no effect: GET, HEAD is not guarded" in reading
    assert "no such route" in talking


def test_what_is_said_twice(idempotency: Idempotency) -> None:
    app = Starlette(
        routes=[
            Route("/decorated", idempotency.leased(fresh()), methods=["POST"]),
            Route("/optional", idempotency.leased(fresh()), methods=["POST"]),
            Route("/exempt", idempotency.exempt(fresh()), methods=["POST"]),
        ]
    )
    said: Any = {"/decorated": "exempt", "/optional": "optional", "/exempt": "required"}
    first, second, third = problems(app, idempotency.engine, said)
    assert "decorated, but routes={'/decorated': 'exempt'}" in first
    assert "has no effect, because the handler is decorated" in second and "required=False" in second
    assert "declared exempt, but routes={'/exempt': 'required'}" in third


# ------------------------------------------------------------------ who guards


def test_a_decorator_of_another_idempotency(idempotency: Idempotency, sqlite_url: str) -> None:
    other = Idempotency(sqlite_url)
    handlers = [other.leased(fresh()), other.phased("ride")(phases), login_required(other.atomic(fresh()))]
    app = Starlette(routes=[Route(f"/{n}", one, methods=["POST"]) for n, one in enumerate(handlers)])
    found = problems(app, idempotency.engine)
    assert len(found) == 3 and all("another Idempotency" in one for one in found)
    assert problems(app, other.engine) == []
    wsgi = flask.Flask("shop")
    wsgi.add_url_rule("/pay", "pay", other.leased(lambda: "done"), methods=["POST"])
    assert "another Idempotency" in only(problems(wsgi.wsgi_app, idempotency.engine))
    other.close()


def phases(op: Any, input: Input) -> Any:
    return {}


def test_two_middlewares_around_one_application(idempotency: Idempotency) -> None:
    options: Any = {"idempotency": idempotency, "tenant": single_tenant()}
    inner = FastAPI(openapi_url=None)
    inner.post("/pay")(plain)
    inner.add_middleware(IdempotencyMiddleware, **options)
    assert "Two IdempotencyMiddlewares are around /pay" in only(problems(inner, idempotency.engine))
    outer = Starlette(routes=[Mount("/v1", inner), Route("/out", plain, methods=["POST"])])
    assert "around /v1/pay:" in only(problems(outer, idempotency.engine))
    assert problems(outer, idempotency.engine, {"/v1/pay": "exempt"}) == []

    app = flask.Flask("shop")
    app.add_url_rule("/pay", "pay", view, methods=["POST"])
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, **options)  # type: ignore[method-assign]
    assert "Two IdempotencyMiddlewares" in only(problems(app.wsgi_app, idempotency.engine))


# ------------------------------------------------------------------ what is no function


def test_a_class_is_not_decorated_as_a_whole(idempotency: Idempotency) -> None:
    class Orders(HTTPEndpoint):
        pass

    for declare in (idempotency.leased, idempotency.atomic, idempotency.exempt):
        with pytest.raises(ConfigurationError, match=r"Orders is a class.*Decorate its methods"):
            declare(Orders)


# ------------------------------------------------------------------ one wrong route among others


@pytest.mark.parametrize("kind", ["flask", "starlette", "fastapi"])
def test_one_wrong_route_does_not_take_the_others_down(shop: Shop, kind: str) -> None:
    """Where no server says when it starts, the first request does: under WSGI, and without a lifespan."""

    def pay(request: Request) -> Any:
        shop.charge()
        return flask.jsonify(1) if kind == "flask" else Response("1")

    def wrapped(request: Request) -> Any:
        raise AssertionError("never called")

    wrapped.__wrapped__ = pay  # type: ignore[attr-defined]
    app: Any
    if kind == "flask":
        app = flask.Flask("shop")
        for path, view in {"/pay": lambda: pay(None), "/wrong": wrapped}.items():  # type: ignore[arg-type]
            app.add_url_rule(path, path[1:], view, methods=["POST"])
        guarded: Any = shop.guard_wsgi(app)
    else:
        app = Starlette() if kind == "starlette" else FastAPI()
        for path, view in {"/pay": pay, "/wrong": wrapped}.items():
            app.router.routes.append(Route(path, view, methods=["POST"]))
        guarded = shop.guard(app)
    for _ in range(2):
        (refused,) = shop.send(guarded, times=1, path="/wrong", keys=(b"wrong",))
        assert isinstance(refused.error, ConfigurationError) and "POST /wrong" in str(refused.error)
        (without,) = shop.send(guarded, times=1, path="/pay", keys=())
        assert without.status == 200
    got = shop.send(guarded)
    assert [one.status for one in got] == [200, 200] and got[1].replayed and shop.charges == 3
    (unknown,) = shop.send(guarded, times=1, path="/nowhere", keys=(b"other",))
    assert isinstance(unknown.error, ConfigurationError)
