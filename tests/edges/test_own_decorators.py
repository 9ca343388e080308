"""Handlers with decorators of their own: those may authenticate, so the key must not decide before them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest
import wrapt
from fastapi import FastAPI, HTTPException, Request
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import NotExecuted, current_operation
from samekey.edges.startup import problems
from samekey.errors import ConfigurationError
from tests.edges.callers import Got
from tests.edges.shop import Shop

Decorator = Callable[[Any], Any]
TOKEN = ((b"authorization", b"good"),)


def statuses(got: list[Got]) -> list[int]:
    return [one.status for one in got]


class Tokens(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> Any:
        if conn.headers.get("authorization") == "good":
            return AuthCredentials(["authenticated"]), SimpleUser("alice")
        return None


def check_flask() -> None:
    if flask.request.headers.get("Authorization") != "good":
        flask.abort(401)


def login_required(function: Any) -> Any:
    """As flask-login and flask-jwt-extended have it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        check_flask()
        return flask.current_app.ensure_sync(function)(*args, **kwargs)

    return wrapper


def renamed(function: Any) -> Any:
    """As it was done before there was ``functools.wraps``."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        check_flask()
        return function(*args, **kwargs)

    wrapper.__name__ = function.__name__
    return wrapper


def by_helper(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        check_flask()
        return call(*args, **kwargs)

    return wrapper


def in_a_list(function: Any) -> Any:
    chain = [function]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        check_flask()
        return chain[0](*args, **kwargs)

    return wrapper


class InAnObject:
    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_flask()
        return self.function(*args, **kwargs)


@wrapt.decorator
def proxied(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    check_flask()
    return wrapped(*args, **kwargs)


def in_a_partial(function: Any) -> Any:
    call = functools.partial(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        check_flask()
        return call(*args, **kwargs)

    return wrapper


def twice(function: Any) -> Any:
    return login_required(by_helper(function))


SEEN: list[Decorator] = [login_required, renamed, by_helper, in_a_list, InAnObject, proxied, twice]


def payments(shop: Shop, decorator: Decorator) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.post("/pay")
    @decorator
    def pay() -> Any:
        shop.charge()
        return {"card": "4242", "mode": current_operation().mode}

    return app


@pytest.mark.parametrize("decorator", SEEN)
def test_flask_authenticates_before_the_key_decides(shop: Shop, decorator: Decorator) -> None:
    app = payments(shop, decorator)
    assert problems(app, shop.idempotency.engine) == []
    guarded = shop.guard_wsgi(app)
    assert statuses(shop.send(guarded)) == [401, 401] and shop.states() == []
    paid = shop.send(guarded, headers=TOKEN)
    assert statuses(paid) == [200, 200] and paid[1].replayed and shop.charges == 1
    assert paid[0].json() == {"card": "4242", "mode": "leased"}
    assert statuses(shop.send(guarded)) == [401, 401]


def test_starlette_requires_before_the_key_decides(shop: Shop) -> None:
    @requires("authenticated")
    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    @requires("authenticated")
    def pay_in_thread(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    for number, handler in enumerate((pay, pay_in_thread), 1):
        app = Starlette(
            routes=[Route("/pay", handler, methods=["POST"])],
            middleware=[Middleware(AuthenticationMiddleware, backend=Tokens())],
        )
        guarded, key = shop.guard(app), (str(number).encode(),)
        assert statuses(shop.send(guarded, keys=key)) == [403, 403]
        paid = shop.send(guarded, keys=key, headers=TOKEN)
        assert statuses(paid) == [200, 200] and paid[1].replayed and shop.charges == number
        assert statuses(shop.send(guarded, keys=key)) == [403, 403]


def test_fastapi_runs_decorators_before_the_key_decides(shop: Shop) -> None:
    def only_good(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*args: Any, request: Request, **kwargs: Any) -> Any:
            if request.headers.get("authorization") != "good":
                raise HTTPException(401)
            return await function(*args, request=request, **kwargs)

        return wrapper

    app = FastAPI()

    @app.post("/pay")
    @only_good
    async def pay(amount: int, request: Request) -> dict[str, int]:
        shop.charge()
        return {"amount": amount}

    guarded, query = shop.guard(app), b"amount=1"
    assert statuses(shop.send(guarded, query=query)) == [401, 401]
    paid = shop.send(guarded, headers=TOKEN, query=query)
    assert statuses(paid) == [200, 200] and paid[1].replayed and shop.charges == 1
    assert statuses(shop.send(guarded, query=query)) == [401, 401]


def test_decorators_of_a_view_that_is_a_class(shop: Shop) -> None:
    class Whole(MethodView):
        decorators = [login_required]  # noqa: RUF012 - as Flask has it

        def post(self) -> Any:
            shop.charge()
            return {}

    class ByMethod(MethodView):
        @login_required
        def post(self) -> Any:
            shop.charge()
            return {}

    app = flask.Flask(__name__)
    app.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    app.add_url_rule("/method", view_func=ByMethod.as_view("method"))
    guarded = shop.guard_wsgi(app)
    for number, path in enumerate(("/whole", "/method"), 1):
        key = (path.encode(),)
        paid = shop.send(guarded, path=path, keys=key, headers=TOKEN)
        assert statuses(paid) == [200, 200] and paid[1].replayed and shop.charges == number, path
        assert statuses(shop.send(guarded, path=path, keys=key)) == [401, 401]


def test_the_answer_is_that_of_the_decorators(shop: Shop) -> None:
    """One that turns errors into answers, and one that tries again: the boundary is around both."""

    def answered(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            try:
                return function()
            except ValueError:
                return {"error": "no such card"}, 400

        return wrapper

    def tried_again(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            try:
                return function()
            except KeyError:
                return function()

        return wrapper

    app = flask.Flask(__name__)

    @app.post("/refused")
    @answered
    def refused() -> Any:
        shop.charge()
        raise ValueError

    @app.post("/again")
    @tried_again
    def again() -> Any:
        shop.charge()
        if shop.charges == 2:
            raise KeyError
        return {"operation": current_operation().id}

    guarded = shop.guard_wsgi(app)
    got = shop.send(guarded, path="/refused", keys=(b"r",))
    assert statuses(got) == [400, 400] and got[1].replayed and shop.charges == 1
    got = shop.send(guarded, path="/again", keys=(b"a",))
    assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == 3


def test_the_word_of_the_last_try_says_nothing_about_the_first(shop: Shop) -> None:
    def tried_again(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            with contextlib.suppress(TimeoutError):
                return function()
            return function()

        return wrapper

    app = flask.Flask(__name__)

    @app.post("/pay")
    @tried_again
    def pay() -> Any:
        shop.charge()
        raise TimeoutError if shop.charges % 2 else NotExecuted

    shop.send(shop.guard_wsgi(app), times=3)
    assert shop.charges == 2 and shop.states() == ["unknown"]


def test_where_it_cannot_be_seen_how_a_decorator_calls_its_function(shop: Shop) -> None:
    """Refused at start-up, and on a route that was added later; not where the route is left alone, or the
    function is decorated by samekey too."""
    app = payments(shop, in_a_partial)
    (found,) = problems(app, shop.idempotency.engine)
    assert "cannot be seen how they call it" in found and "@login_required above @idempotency.leased" in found
    got = shop.send(shop.guard_wsgi(app), headers=TOKEN)
    assert all(isinstance(one.error, ConfigurationError) for one in got) and shop.charges == 0
    assert problems(app, shop.idempotency.engine, {"/pay": "exempt"}) == []
    assert problems(app, shop.idempotency.engine, undecorated="pass") == []
    assert problems(app, shop.idempotency.engine, {"/pay": "optional"}, undecorated="pass") == [found]
    assert problems(payments(shop, shop.idempotency.leased), shop.idempotency.engine) == []

    @in_a_partial
    def pay(request: Request) -> Response:
        raise AssertionError("never called")

    late = Starlette()
    later = shop.guard(late)
    assert statuses(shop.send(later, times=1, path="/nothing", keys=(b"first",))) == [404]
    late.router.routes.append(Route("/pay", pay, methods=["POST"]))
    assert all(isinstance(one.error, ConfigurationError) for one in shop.send(later))


def test_decorators_around_a_decorated_function_are_as_they_were(shop: Shop) -> None:
    app = payments(shop, lambda function: login_required(shop.idempotency.leased(function)))
    guarded = shop.guard_wsgi(app)
    paid = shop.send(guarded, headers=TOKEN)
    assert paid[1].replayed and statuses(shop.send(guarded)) == [401, 401] and shop.charges == 1


def test_a_decorator_that_loses_the_request_on_its_way_to_a_thread(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as pool:

        def in_a_thread(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper() -> Any:
                return pool.submit(function).result(10)

            return wrapper

        app = flask.Flask(__name__)

        @app.post("/pay")
        @in_a_thread
        def pay() -> Any:
            shop.charge()
            return {"thread": threading.get_ident()}

        got = shop.send(shop.guard_wsgi(app))
    assert statuses(got) == [500, 500] and shop.charges == 0


def test_an_async_decorator_around_a_sync_function(shop: Shop) -> None:
    """A claim would block the event loop, so it is told what to do."""

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(request: Request) -> Any:
            return function(request)

        return wrapper

    @logged
    def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    for one in shop.send(app):
        assert isinstance(one.error, ConfigurationError) and "@idempotency.leased above" in str(one.error)
    assert shop.charges == 0
