"""Undecorated routes whose handlers have decorators of their own, or hold a function that they call.

Those may authenticate, act, or call it again, and nobody can see which: they are refused at start-up, or
where that could not see them. With ``decorators="around"`` they are guarded as a whole, and nothing that
comes out of it frees a key."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import MethodType
from typing import Any

import flask
import prometheus_client
import pytest
import wrapt
from fastapi import BackgroundTasks, FastAPI, HTTPException, Request
from flask.views import MethodView
from opentelemetry.sdk.trace import TracerProvider
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from samekey import NotExecuted, OutcomeUnknown, current_operation
from samekey.errors import ConfigurationError
from tests.edges.callers import Got
from tests.edges.shop import Shop
from tests.edges.wrong import problems

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


class LoginRequired:
    """An object that holds the function, and says nothing of it."""

    def __init__(self, function: Any) -> None:
        self.function, self.__name__ = function, "pay"

    def __call__(self) -> Any:
        check_flask()
        return self.function()


class InASlot:
    __slots__ = ("__name__", "chain")

    def __init__(self, function: Any) -> None:
        self.chain, self.__name__ = [check_flask, function], "pay"

    def __call__(self) -> Any:
        return [one() for one in self.chain][-1]


class View:
    """Something with a method, and not a function."""

    def __init__(self, function: Any) -> None:
        self.handle = function


class OfAView:
    def __init__(self, function: Any) -> None:
        self.view, self.__name__ = View(function), "pay"

    def __call__(self) -> Any:
        check_flask()
        return self.view.handle()


class InATable:
    def __init__(self, function: Any) -> None:
        self.table, self.__name__ = {"post": [[function]]}, "pay"

    def __call__(self) -> Any:
        check_flask()
        return self.table["post"][0][0]()


def in_its_class(function: Any) -> Any:
    class Login:
        inner = staticmethod(function)
        __name__ = "pay"

        def __call__(self) -> Any:
            check_flask()
            return self.inner()

    return Login()


def with_another_name(function: Any) -> Any:
    def wrapper() -> Any:
        check_flask()
        return function()

    wrapper.__name__ = "something"
    return wrapper


def of_a_view_in_a_partial(function: Any) -> Any:
    return functools.partial(handled, View(function))


def handled(view: View) -> Any:
    check_flask()
    return view.handle()


def checked(function: Any) -> Any:
    check_flask()
    return function()


def of_a_partial(function: Any) -> Any:
    made = functools.partial(checked, function)
    made.__name__ = "pay"  # type: ignore[attr-defined]
    return made


def as_a_method(function: Any) -> Any:
    return MethodType(checked, function)


@contextlib.contextmanager
def timed() -> Iterator[None]:
    yield


WRAPPED: list[Decorator] = [
    *(login_required, renamed, by_helper, in_a_list, InAnObject, proxied, in_a_partial, twice),
    *(LoginRequired, InASlot, of_a_partial, as_a_method, timed(), functools.cache),
    *(OfAView, InATable, in_its_class, with_another_name, of_a_view_in_a_partial),
]


def payments(shop: Shop, decorator: Decorator) -> flask.Flask:
    app = flask.Flask(__name__)

    def pay() -> Any:
        shop.charge()
        return {"card": "4242", "mode": current_operation().mode}

    app.add_url_rule("/pay", "pay", decorator(pay), methods=["POST"])
    return app


@pytest.mark.parametrize("decorator", WRAPPED)
def test_a_view_with_decorators_is_refused_at_start_up(shop: Shop, decorator: Decorator) -> None:
    app = payments(shop, decorator)
    (found,) = problems(app, shop.idempotency.engine)
    assert found.startswith("POST /pay (") and "directly above the function, below its other" in found
    assert "declare the route exempt" in found and 'decorators="around"' in found
    got = shop.send(shop.guard_wsgi(app), headers=TOKEN)
    assert all(isinstance(one.error, ConfigurationError) for one in got) and shop.charges == 0


@pytest.mark.parametrize("decorator", WRAPPED)
def test_a_view_with_decorators_may_be_left_alone_or_decorated(shop: Shop, decorator: Decorator) -> None:
    app, engine = payments(shop, decorator), shop.idempotency.engine
    assert problems(app, engine, {"/pay": "exempt"}) == []
    assert problems(app, engine, undecorated="pass") == []
    assert problems(app, engine, {"/pay": "optional"}, undecorated="pass") != []
    assert problems(app, engine, decorators="around") == []
    assert problems(payments(shop, shop.idempotency.leased), engine) == []


def test_the_way_out_authenticates_before_the_key_decides(shop: Shop) -> None:
    for number, decorator in enumerate((login_required, InAnObject, by_helper, in_a_list, twice), 1):
        app = payments(shop, lambda pay, wrap=decorator: wrap(shop.idempotency.leased(pay)))  # type: ignore[misc]
        guarded, key = shop.guard_wsgi(app), (str(number).encode(),)
        assert statuses(shop.send(guarded, keys=key)) == [401, 401]
        paid = shop.send(guarded, keys=key, headers=TOKEN)
        assert statuses(paid) == [200, 200] and paid[1].replayed and shop.charges == number
        assert statuses(shop.send(guarded, keys=key)) == [401, 401]


def plain_handlers(shop: Shop) -> dict[str, Any]:
    def pay(amount: int = 1) -> Any:
        shop.charge()
        return {"mode": current_operation().mode}

    class Pay:
        currency = "EUR"

        def __init__(self) -> None:
            self.limits, self.kind = {"EUR": [1, Decimal("2.5")]}, int

        def __call__(self) -> Any:
            return pay()

        def method(self) -> Any:
            return pay()

        @classmethod
        def of_class(cls) -> Any:
            return pay()

        @staticmethod
        def static() -> Any:
            return pay()

    def named() -> Any:
        shop.charge()
        return {"mode": current_operation().mode}

    named.__name__ = "create_payment"
    one = Pay()
    bare: Any = vars(Pay)["static"]
    return {
        "a function": pay,
        "a partial of values": functools.partial(pay, amount=2),
        "an object": one,
        "a method": one.method,
        "a class method": Pay.of_class,
        "a static method": Pay.static,
        "a static method itself": bare,
        "a function that was given a name": named,
    }


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
@pytest.mark.parametrize(
    "kind",
    [
        *("a function", "a partial of values", "an object", "a method", "a class method"),
        *("a static method", "a static method itself", "a function that was given a name"),
    ],
)
def test_plain_handlers_are_guarded_without_a_word(shop: Shop, kind: str, framework: str) -> None:
    handler = plain_handlers(shop)[kind]
    if framework == "fastapi":
        app: Any = FastAPI()
        app.add_api_route("/pay", handler, methods=["POST"])
        guarded = shop.guard(app)
    else:
        app = flask.Flask(__name__)
        app.add_url_rule("/pay", "pay", handler, methods=["POST"])
        guarded = shop.guard_wsgi(app)
    assert problems(app, shop.idempotency.engine) == [] or framework == "fastapi"
    got = shop.send(guarded, times=3)
    assert [one.json() for one in got] == [{"mode": "leased"}] * 3 and got[2].replayed and shop.charges == 1


def logged(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = function(*args, **kwargs)
        return await given if inspect.isawaitable(given) else given

    return wrapper


def test_functions_of_starlette_and_fastapi_with_decorators_are_refused(shop: Shop) -> None:
    async def pay(request: Request) -> Response:
        return JSONResponse({})

    def sync_pay(request: Request) -> Response:
        return JSONResponse({})

    async def pieces(request: Request) -> AsyncIterator[int]:
        yield 1

    def streamed(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(request: Request) -> AsyncIterator[int]:
            async for piece in function(request):
                yield piece

        return wrapper

    for handler in (requires("x")(pay), requires("x")(sync_pay), logged(sync_pay)):
        routes = [Route("/pay", handler, methods=["POST"])]
        assert "decorators of its own" in problems(Starlette(routes=routes), shop.idempotency.engine)[0]
    for handler in (logged(pay), logged(sync_pay), streamed(pieces), LoginRequired(pay)):
        app = FastAPI()
        app.add_api_route("/pay", handler, methods=["POST"], response_model=None)
        assert "decorators of its own" in problems(app, shop.idempotency.engine)[0]
        assert problems(app, shop.idempotency.engine, {"/pay": "exempt"}) == []


@pytest.mark.parametrize("late", [False, True])
def test_what_a_tracer_puts_around_a_function_is_no_decorator_of_its_own(
    shop: Shop, monkeypatch: Any, late: bool
) -> None:
    """The route still names the function, and calls something else: from the start, or since later."""

    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({}, 429 if shop.charges == 1 else 200)

    async def plain() -> Response:
        shop.charge()
        return JSONResponse({})

    routing = sys.modules["starlette.routing"]
    request_response = routing.request_response
    monkeypatch.setattr(routing, "request_response", lambda function: request_response(logged(function)))
    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    monkeypatch.undo()
    got = shop.send(shop.guard(app), times=3)
    assert statuses(got) == [429, 200, 200] and got[2].replayed and shop.charges == 2

    api = FastAPI()
    api.post("/pay")(plain)
    route: Any = next(one for one in api.routes if hasattr(one, "dependant"))
    guarded, shop.charges = shop.guard(api), 0
    for number in range(2):
        if late == bool(number):
            route.dependant.call = logged(route.dependant.call)
        got = shop.send(guarded, keys=(f"of-{number}".encode(),))
        assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == number + 1


def of_an_agent(package: str) -> Decorator:
    """As ddtrace and New Relic wrap the views of Flask, with code of their own."""
    code = "def traced(wrapped, instance, args, kwargs): return wrapped(*args, **kwargs)"
    space: dict[str, Any] = {"__name__": f"{package}.contrib.flask"}
    exec(code, space)
    return lambda function: wrapt.FunctionWrapper(function, space["traced"])


def with_wraps_of(package: str) -> Decorator:
    """As Sentry and Logfire do it."""
    code = """
import functools
def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
"""
    space: dict[str, Any] = {"__name__": f"{package}.tracing"}
    exec(code, space)
    return space["traced"]  # type: ignore[no-any-return]


REQUESTS = prometheus_client.Summary("requests", "of a test", registry=None)
FAILURES = prometheus_client.Counter("failures", "of a test", registry=None)
OBSERVING: dict[str, Decorator] = {
    "ddtrace": of_an_agent("ddtrace"),
    "newrelic": of_an_agent("newrelic"),
    "sentry": with_wraps_of("sentry_sdk"),
    "opentelemetry": TracerProvider().get_tracer("shop").start_as_current_span("pay"),
    "prometheus time": REQUESTS.time(),
    "prometheus exceptions": FAILURES.count_exceptions(),
    "two": lambda function: REQUESTS.time()(of_an_agent("ddtrace")(function)),
}


@pytest.mark.parametrize("kind", ["flask", "starlette", "fastapi", "fastapi async"])
@pytest.mark.parametrize("tool", OBSERVING)
def test_what_only_observes_is_no_decorator_of_its_own(shop: Shop, tool: str, kind: str) -> None:
    observed = OBSERVING[tool]

    def pay(request: Request) -> Any:
        shop.charge()
        if shop.charges == 1:
            raise HTTPException(429)
        return JSONResponse({})

    async def pay_async(request: Request) -> Any:
        return pay(request)

    def view() -> Any:
        shop.charge()
        if shop.charges == 1:
            flask.abort(429)
        return {}

    app: Any
    if kind == "flask":
        app = flask.Flask(__name__)
        app.add_url_rule("/pay", "pay", observed(view), methods=["POST"])
    elif kind == "starlette":
        app = Starlette(routes=[Route("/pay", observed(pay), methods=["POST"])])
    else:
        app = FastAPI()
        app.post("/pay")(observed(pay if kind == "fastapi" else pay_async))
    assert problems(app, shop.idempotency.engine) == []
    got = shop.send(shop.guard_wsgi(app) if kind == "flask" else shop.guard(app), times=3)
    assert statuses(got) == [429, 200, 200] and got[2].replayed and shop.charges == 2


@pytest.mark.parametrize("tool", OBSERVING)
def test_what_observes_a_function_with_decorators_hides_none_of_them(shop: Shop, tool: str) -> None:
    for app in (
        payments(shop, lambda function: OBSERVING[tool](login_required(function))),
        payments(shop, lambda function: login_required(OBSERVING[tool](function))),
    ):
        (found,) = problems(app, shop.idempotency.engine)
        assert "decorators of its own" in found


@pytest.mark.parametrize("where", ["starlette", "fastapi", "flask"])
def test_a_route_that_is_added_later_is_refused_before_anything_runs(shop: Shop, where: str) -> None:
    ran: list[str] = []

    def acts(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            ran.append("decorator")
            return function(*args)

        return wrapper

    def pay(request: Any = None) -> Any:
        raise AssertionError("never called")

    app: Any
    if where == "flask":
        app = flask.Flask(__name__)
        guarded: Any = shop.guard_wsgi(app)
    else:
        app = Starlette() if where == "starlette" else FastAPI()
        guarded = shop.guard(app)
    assert statuses(shop.send(guarded, times=1, path="/nothing", keys=(b"first",))) == [404]
    if where == "flask":
        app._got_first_request = False
        app.add_url_rule("/pay", "pay", acts(pay), methods=["POST"])
    elif where == "starlette":
        app.router.routes.append(Route("/pay", acts(pay), methods=["POST"]))
    else:
        app.add_api_route("/pay", acts(pay), methods=["POST"])
    for got in shop.send(guarded):
        assert got.status == 500 and (got.error is None or "decorators of its own" in str(got.error))
    assert ran == [] and shop.states() == []


def test_views_that_are_classes(shop: Shop) -> None:
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

    class Dispatches(MethodView):
        def dispatch_request(self, **arguments: Any) -> Any:
            check_flask()
            return super().dispatch_request(**arguments)

        def post(self) -> Any:
            shop.charge()
            return {}

    for number, view_class in enumerate((Whole, ByMethod, Dispatches), 1):
        app = flask.Flask(__name__)
        app.add_url_rule("/pay", view_func=view_class.as_view("pay"))
        assert "decorators of its own" in problems(app, shop.idempotency.engine)[0]
        guarded, key = shop.guard_wsgi(app, decorators="around"), (str(number).encode(),)
        paid = shop.send(guarded, keys=key, headers=TOKEN)
        assert statuses(paid) == [200, 200] and paid[1].replayed and shop.charges == number


def test_a_decorated_method_beside_an_undecorated_one(shop: Shop) -> None:
    """The option is about the undecorated one; the other claims below the decorators of its class."""

    class Mixed(MethodView):
        decorators = [login_required]  # noqa: RUF012 - as Flask has it

        @shop.idempotency.leased
        def post(self) -> Any:
            shop.charge()
            return {}

        def patch(self) -> Any:
            shop.charge()
            return {}

    app = flask.Flask(__name__)
    app.add_url_rule("/pay", view_func=Mixed.as_view("pay"))
    assert problems(app, shop.idempotency.engine)[0].startswith("PATCH /pay")
    guarded = shop.guard_wsgi(app, decorators="around")
    for method, again in (("POST", 401), ("PATCH", 200)):
        key = (method.encode(),)
        assert shop.send(guarded, method=method, keys=key, headers=TOKEN)[1].replayed
        assert statuses(shop.send(guarded, times=1, method=method, keys=key)) == [again]
    assert shop.charges == 2


# --- above the guarded function ---


@pytest.mark.parametrize("framework", ["fastapi", "fastapi in a thread", "flask"])
def test_decorators_above_the_guarded_function_have_nothing_to_do_on_a_replay(
    shop: Shop, framework: str
) -> None:
    """They run until they call it. Then the key decides: nothing is published again, and nothing has failed
    that is to be refunded."""
    done: list[str] = []

    def books(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            done.append("checked")
            try:
                done.append(function()["id"])
            except Exception:
                done.append("refunded")
                raise
            return {"id": done[-1]}

        @functools.wraps(function)
        async def wrapper_async() -> Any:
            done.append("checked")
            try:
                done.append((await function())["id"])
            except Exception:
                done.append("refunded")
                raise
            return {"id": done[-1]}

        return wrapper_async if inspect.iscoroutinefunction(function) else wrapper

    @books
    @shop.idempotency.leased
    def sync_pay() -> Any:
        shop.charge()
        return {"id": "ch_1"}

    @books
    @shop.idempotency.leased
    async def pay() -> Any:
        shop.charge()
        return {"id": "ch_1"}

    if framework == "flask":
        app: Any = flask.Flask(__name__)
        app.add_url_rule("/pay", "pay", sync_pay, methods=["POST"])
        guarded: Any = shop.guard_wsgi(app)
    else:
        app = FastAPI()
        app.add_api_route("/pay", pay if framework == "fastapi" else sync_pay, methods=["POST"])
        guarded = shop.guard(app)
    got = shop.send(guarded, times=3)
    assert [one.json() for one in got] == [{"id": "ch_1"}] * 3 and got[2].replayed and shop.charges == 1
    assert done == ["checked", "ch_1", "checked", "checked"]


def test_what_a_decorator_holds_is_looked_at_once(shop: Shop) -> None:
    """A cache in its closure grows: who guards the route must not depend on it, nor each request's time."""
    kept: dict[int, Any] = {}
    looks: list[int] = []

    class Counts:
        def __call__(self) -> None: ...

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            looks.append(1)
            return {}

    def memo(function: Any) -> Any:
        def reach(*args: Any) -> Any:
            return function(*args)

        def helper(*args: Any) -> Any:
            kept[len(kept)] = args
            return reach(*args)

        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return helper(*args)

        return wrapper

    kept[0] = Counts()
    app = payments(shop, lambda pay: memo(shop.idempotency.leased(required=False)(pay)))
    guarded = shop.guard_wsgi(app)
    assert shop.send(guarded)[1].replayed
    looked = len(looks)
    kept.update({number: Counts() for number in range(5000)})
    assert statuses(shop.send(guarded, keys=())) == [200, 200] and len(looks) == looked


# --- around ------------------------------------------------------------------------------------------


def test_a_replay_runs_no_decorator(shop: Shop) -> None:
    done: list[str] = []

    def publishes(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            done.append("before")
            value = function()
            done.append("after")
            return value

        return wrapper

    got = shop.send(shop.guard_wsgi(payments(shop, publishes), decorators="around"), times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed
    assert (shop.charges, done) == (1, ["before", "after"])


ENDINGS: dict[str, Callable[[], Any]] = {
    "503": lambda: ({}, 503),
    "500": lambda: ({}, 500),
    "429": lambda: ({}, 429),
    "307": lambda: ({}, 307),
    "abort 429": lambda: flask.abort(429),
    "abort 403": lambda: flask.abort(403),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("error", [KeyError, OutcomeUnknown, TimeoutError, None])
def test_what_decorators_make_of_a_run_frees_no_key(shop: Shop, ending: str, error: Any) -> None:
    def handles(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            try:
                function()
            except Exception:
                pass
            return ENDINGS[ending]()

        return wrapper

    app = flask.Flask(__name__)

    @app.post("/pay")
    @handles
    def pay() -> Any:
        shop.charge()
        if error is not None:
            raise error
        return {}

    shop.send(shop.guard_wsgi(app, decorators="around"), times=3)
    assert shop.charges == 1


@pytest.mark.parametrize("ends", [HTTPException(429), NotExecuted("not sent"), JSONResponse({}, 503), None])
def test_the_word_of_the_last_try_says_nothing_about_the_first(shop: Shop, ends: Any) -> None:
    def tried_again(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper() -> Any:
            for _ in range(2):
                with contextlib.suppress(TimeoutError):
                    return await function()
            return None

        return wrapper

    app = FastAPI()

    @app.post("/pay", response_model=None)
    @tried_again
    async def pay() -> Any:
        shop.charge()
        if shop.charges % 2:
            raise TimeoutError
        if isinstance(ends, Exception):
            raise ends
        return ends or {"paid": True}

    shop.send(shop.guard(app, decorators="around"), times=3)
    assert shop.charges == 2 and shop.states() == ["completed" if ends is None else "unknown"]


@pytest.mark.parametrize("shielded", [False, True])
def test_a_deadline_as_a_decorator(shop: Shop, shielded: bool) -> None:
    """It answers while the function still runs, or was cancelled in its call."""

    def deadline(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper() -> Any:
            call = asyncio.ensure_future(function())
            await asyncio.sleep(0)
            if not shielded:
                call.cancel()
            running.append(call)
            return JSONResponse({}, 503)

        return wrapper

    running: list[Any] = []
    app = FastAPI()

    @app.post("/pay")
    @deadline
    async def pay() -> None:
        shop.charge()
        await asyncio.Event().wait()

    shop.send(shop.guard(app, decorators="around"), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"] and len(running) == 1
    shop.loop.run(_cancel(running))


async def _cancel(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("itself", [False, True])
def test_a_generator_with_decorators(shop: Shop, sync: bool, itself: bool) -> None:
    """The decorator is a generator itself, or gives the one that it is given."""
    checks: list[int] = []

    def checked_first(function: Any) -> Any:
        @functools.wraps(function)
        def gives() -> Any:
            checks.append(1)
            return function()

        @functools.wraps(function)
        async def wrapper() -> Any:
            checks.append(1)
            async for piece in function():
                yield piece

        @functools.wraps(function)
        def sync_wrapper() -> Any:
            checks.append(1)
            yield from function()

        return gives if not itself else sync_wrapper if sync else wrapper

    async def pieces() -> AsyncIterator[int]:
        shop.charge()
        yield 1
        yield 2

    def sync_pieces() -> Iterator[int]:
        shop.charge()
        yield 1
        yield 2

    app = FastAPI()
    app.post("/pay")(checked_first(sync_pieces if sync else pieces))
    got = shop.send(shop.guard(app, decorators="around"), times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed and got[0].body == got[2].body
    assert (shop.charges, len(checks)) == (1, 1)


def test_a_decorator_that_answers_by_itself(shop: Shop) -> None:
    def by_another(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper() -> Any:
            shop.charge()
            return {"by": "another"}

        return wrapper

    got = shop.send(shop.guard_wsgi(payments(shop, by_another), decorators="around"), times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed and shop.charges == 1


def test_the_option_is_one_of_two(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="decorators must be 'refuse' or 'around'"):
        shop.guard_wsgi(flask.Flask(__name__), decorators="inside")


# --- functions are nobody's but their author's ------------------------------------------------------------


def test_a_function_with_decorators_is_called_by_others_as_it_is(shop: Shop) -> None:
    """By a thread while a request runs, and by a background task after it: guarding a route changes nothing
    about the function of that name."""
    calls: list[int] = []

    @login_required_elsewhere
    def sync() -> Any:
        calls.append(1)
        return {}

    app = flask.Flask(__name__)
    app.add_url_rule("/sync", "sync", sync, methods=["POST"])

    @app.post("/pay")
    def pay() -> Any:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sync).result(10)
        return sync()

    guarded = shop.guard_wsgi(app, decorators="around")
    assert statuses(shop.send(guarded)) == [200, 200] and len(calls) == 2
    assert statuses(shop.send(guarded, path="/sync", keys=(b"s",))) == [200, 200] and len(calls) == 3

    api, errors = FastAPI(), list[Exception]()

    @api.post("/mail", response_model=None)
    @logged
    async def mail() -> Any:
        calls.append(1)
        return {}

    async def later() -> None:
        try:
            await mail()
        except Exception as error:
            errors.append(error)

    @api.post("/pay")
    async def pays(background: BackgroundTasks) -> None:
        background.add_task(later)

    shop.send(shop.guard(api, decorators="around"), times=1, keys=(b"b",))
    assert errors == [] and len(calls) == 4


def login_required_elsewhere(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper() -> Any:
        return function()

    return wrapper
