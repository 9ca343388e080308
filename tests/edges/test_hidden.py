"""Applications that the middleware cannot see into, and requests that take another way than it thinks: a
decorated handler decides for itself, with a key and without."""

from __future__ import annotations

import warnings
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.responses import JSONResponse

from samekey import ConfigurationError, Input, NotExecuted, current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.shop import Shop
from tests.edges.wrong import problems

Run = dict[str, Any]


def function(app: Any) -> Any:
    """A middleware in the style of a function, which hides what it wraps."""

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return middleware


def copies(app: Any) -> Any:
    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        await app(dict(scope), receive, send)

    return middleware


class Strips:
    """Takes a prefix off the path; it can be looked through, but what it does cannot be seen."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix("/v1")
            scope = dict(scope, path=path, raw_path=path.encode())
        await self.app(scope, receive, send)


def function_wsgi(app: Any) -> Any:
    def middleware(environ: Any, start_response: Any) -> Any:
        return app(environ, start_response)

    return middleware


def copies_wsgi(app: Any) -> Any:
    def middleware(environ: Any, start_response: Any) -> Any:
        yield from app(dict(environ), start_response)

    return middleware


class StripsWsgi:
    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"].removeprefix("/v1")
        return self.app(dict(environ, PATH_INFO=path), start_response)


def shown() -> Run:
    return {"mode": current_operation().mode}


def fastapi_app(shop: Shop) -> FastAPI:
    app = FastAPI()

    @app.post("/optional")
    @shop.idempotency.leased(required=False)
    async def optional() -> Run:
        shop.charge()
        return shown()

    @app.post("/must")
    @shop.idempotency.leased
    def must() -> Run:
        shop.charge()
        return shown()

    @app.post("/plain")
    async def plain() -> Run:
        shop.charge()
        return shown()

    @app.post("/{path:path}")
    async def everything_else(path: str) -> Run:
        raise AssertionError("not reached")

    return app


def flask_app(shop: Shop) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.post("/optional")
    @shop.idempotency.leased(required=False)
    def optional() -> Any:
        shop.charge()
        return shown()

    @app.post("/must")
    @shop.idempotency.leased
    def must() -> Any:
        shop.charge()
        return shown()

    @app.post("/plain")
    def plain() -> Any:
        shop.charge()
        return shown()

    @app.post("/<path:path>")
    def everything_else(path: str) -> Any:
        raise AssertionError("not reached")

    return app


def guarded(shop: Shop, web: str, wrap: Any, **options: Any) -> Any:
    if web == "flask":
        return shop.guard_wsgi(wrap(flask_app(shop).wsgi_app), **options)
    app = wrap(fastapi_app(shop))
    return IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of, **options)


WAYS = [
    ("fastapi", function),
    ("fastapi", copies),
    ("fastapi", Strips),
    ("flask", function_wsgi),
    ("flask", copies_wsgi),
    ("flask", StripsWsgi),
]


@pytest.mark.parametrize("undecorated", ["guard", "pass"])
@pytest.mark.parametrize(("web", "wrap"), WAYS)
def test_without_a_key_a_decorated_handler_decides(shop: Shop, web: str, wrap: Any, undecorated: Any) -> None:
    """Also where the router has said that another, undecorated handler would be reached."""
    app = guarded(shop, web, wrap, undecorated=undecorated)
    prefix = "/v1" if wrap in (Strips, StripsWsgi) else ""
    (ran,) = shop.send(app, times=1, path=f"{prefix}/optional", keys=())
    assert (ran.status, ran.json()) == (200, {"mode": "leased"}) and shop.charges == 1
    (refused,) = shop.send(app, times=1, path=f"{prefix}/must", keys=())
    assert (refused.status, refused.code) == (400, "missing") and shop.charges == 1
    (left,) = shop.send(app, times=1, path=f"{prefix}/plain", keys=())
    assert (left.status, left.json()) == (200, {"mode": "leased"}) and shop.charges == 2
    assert shop.states() == []


@pytest.mark.parametrize(("web", "wrap"), WAYS)
def test_with_a_key_only_decorated_handlers_are_guarded(
    shop: Shop, web: str, wrap: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = guarded(shop, web, wrap, undecorated="pass")
    prefix = "/v1" if wrap in (Strips, StripsWsgi) else ""
    for number, path in enumerate(("/optional", "/must"), 1):
        got = shop.send(app, path=prefix + path, keys=(path.encode(),))
        assert [one.status for one in got] == [200, 200] and got[1].replayed and shop.charges == number
    left = shop.send(app, path=f"{prefix}/plain", keys=(b"plain",))
    assert [one.status for one in left] == [200, 200] and shop.charges == 4
    assert not [one for one in caplog.records if one.levelname == "ERROR"], "left alone, as was said"


# --- what start-up says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("web", "wrap"), [("fastapi", function), ("fastapi", copies), ("flask", function_wsgi)]
)
def test_start_up_asks_which_of_the_two_guards_it_shall_be(shop: Shop, web: str, wrap: Any) -> None:
    got = shop.send(guarded(shop, web, wrap), path="/must")
    for one in got:
        assert "cannot be looked into" in str(one.error) and "must, " in str(one.error)
        assert 'undecorated="pass"' in str(one.error) and 'undecorated="guard"' in str(one.error)
    assert shop.charges == 0 and shop.states() == []


def test_what_is_seen_everywhere_is_not_asked_about(shop: Shop) -> None:
    """A mount that cannot be looked into may stand beside routes that can."""
    app = fastapi_app(shop)

    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)

    app.router.routes.pop()
    app.mount("/metrics", metrics)
    assert problems(app, shop.idempotency.engine) == []
    shop.idempotency.leased(lambda: None)
    (found,) = problems(app, shop.idempotency.engine)
    assert found.startswith("/metrics/{path:path} leads to")
    assert problems(app, shop.idempotency.engine, undecorated="guard") == []
    assert problems(app, shop.idempotency.engine, undecorated="pass") == []


@pytest.mark.parametrize("mode", ["atomic", "deferred", "phased"])
def test_only_leased_functions_are_parts_of_what_is_guarded_as_a_whole(shop: Shop, mode: str) -> None:
    app = FastAPI()
    app.post("/pay")(declared(shop, mode))
    (found,) = problems(function(app), shop.idempotency.engine, undecorated="guard")
    assert 'Set undecorated="pass"' in found
    assert problems(function(app), shop.idempotency.engine, undecorated="pass") == []


# --- every mode behind what hides it -------------------------------------------------------------------


def declared(shop: Shop, mode: str, *, required: bool = True) -> Any:
    """A handler for FastAPI, without an argument by which its request could be known."""

    async def pay() -> Run:
        shop.charge()
        operation = current_operation()
        if mode == "atomic":
            await operation.connection.execute(shop.store.insert, (shop.world.name, shop.charges))
        elif mode == "deferred":
            await operation.enqueue(job, {})
        return {"run": shop.charges}

    async def phases(op: Any, given: Input) -> Run:
        shop.charge()
        return {"run": shop.charges, "sent": given.json()}

    job = f"hidden-{shop.world.name}"
    if mode == "phased":
        return shop.idempotency.phased(job)(phases)
    if mode == "deferred":
        shop.idempotency.job(job)(lambda given: None)
    return getattr(shop.idempotency, mode)(required=required)(pay)


@pytest.mark.parametrize("wrap", [function, copies, lambda app: copies(Strips(app))])
@pytest.mark.parametrize("mode", ["leased", "atomic", "deferred", "phased"])
def test_every_mode_behind_what_hides_it(shop: Shop, mode: str, wrap: Any) -> None:
    app = FastAPI()
    app.post("/pay")(declared(shop, mode))
    whole: Any = IdempotencyMiddleware(
        wrap(app), idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    (missing,) = shop.send(whole, times=1, keys=())
    assert missing.code == "missing" and shop.charges == 0
    got = shop.send(whole, times=3)
    assert {one.status for one in got} == {202 if mode == "deferred" else 200}, got
    assert got[2].body == got[0].body and shop.charges == 1


@pytest.mark.parametrize("wrap", [function, copies])
@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_without_a_key_that_is_optional_every_mode_runs(shop: Shop, mode: str, wrap: Any) -> None:
    app = FastAPI()
    app.post("/pay")(declared(shop, mode, required=False))
    whole: Any = IdempotencyMiddleware(
        wrap(app), idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    got = shop.send(whole, keys=())
    assert [one.json() for one in got] == [{"run": 1}, {"run": 2}] and shop.states() == []


@pytest.mark.parametrize("wrap", [function, copies])
@pytest.mark.parametrize(
    ("says", "states", "runs"),
    [
        (402, ["completed"], 1),
        (429, [], 3),
        (NotExecuted, ["failed_retryable"], 3),
        (KeyError, ["unknown"], 1),
        ("503", ["failed_retryable"], 3),
        ("504", ["unknown"], 1),
    ],
)
def test_the_word_of_a_hidden_handler_is_understood(
    shop: Shop, says: Any, states: list[str], runs: int, wrap: Any
) -> None:
    """Its HTTP exceptions and its responses count as they do where it is seen."""
    app = FastAPI()

    @app.post("/pay")
    @shop.idempotency.leased
    async def pay() -> Any:
        shop.charge()
        if isinstance(says, int):
            raise HTTPException(says)
        if isinstance(says, str):
            return JSONResponse({}, int(says))
        raise says

    whole: Any = IdempotencyMiddleware(
        wrap(app), idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    shop.send(whole, times=3)
    assert (shop.states(), shop.charges) == (states, runs)


def test_what_validation_refuses_is_not_remembered(shop: Shop) -> None:
    app = FastAPI()

    @app.post("/pay")
    @shop.idempotency.leased
    async def pay(given: dict[str, int]) -> Run:
        shop.charge()
        return given

    whole: Any = IdempotencyMiddleware(
        function(app), idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    (refused,) = shop.send(whole, times=1, body=b'{"amount": "much"}')
    assert refused.status == 422 and shop.states() == []
    assert [one.status for one in shop.send(whole, body=b'{"amount": 1}')] == [200, 200]
    assert shop.charges == 1


# --- bare applications that act, and then leave it to a decorated one ------------------------------------


@pytest.mark.parametrize("undecorated", [None, "guard", "pass"])
@pytest.mark.parametrize("says", [503, 429, NotExecuted])
@pytest.mark.parametrize("web", ["asgi", "wsgi"])
def test_a_bare_application_that_acts_and_then_hands_its_request_on(
    shop: Shop, web: str, says: Any, undecorated: Any
) -> None:
    """By default it does not start; guarded as a whole, nothing frees its key; and under "pass" what it does
    outside of the decorated function is its own."""

    @shop.idempotency.leased
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        if says is NotExecuted:
            raise says
        await JSONResponse({}, says)(scope, receive, send)

    @shop.idempotency.leased
    def inner_wsgi(environ: Any, start_response: Any) -> Any:
        if says is NotExecuted:
            raise says
        start_response(f"{says} Word", [])
        return [b""]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        shop.charge()
        await inner(scope, receive, send)

    def wsgi(environ: Any, start_response: Any) -> Any:
        shop.charge()
        return inner_wsgi(environ, start_response)

    whole: Any = (
        shop.guard_wsgi(wsgi, undecorated=undecorated)
        if web == "wsgi"
        else IdempotencyMiddleware(
            app, idempotency=shop.idempotency, tenant=tenant_of, undecorated=undecorated
        )
    )
    shop.send(whole, times=3)
    assert shop.charges == {None: 0, "guard": 1, "pass": 3}[undecorated]


# --- Flask below FastAPI, which can be seen ----------------------------------------------------------------


def test_a_flask_application_below_fastapi_authenticates_before_the_key_decides(shop: Shop) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.middleware.wsgi import WSGIMiddleware

    below, app = flask.Flask(__name__), FastAPI()

    @below.before_request
    def authenticate() -> Any:
        return None if "Authorization" in flask.request.headers else ("who?", 401)

    @below.post("/pay")
    def pay() -> Any:
        shop.charge()
        return {"card": "4242"}

    app.mount("/shop", WSGIMiddleware(below))
    guarded = shop.guard(app)
    known = ((b"authorization", b"yes"),)
    first, again = shop.send(guarded, path="/shop/pay", headers=known)
    assert first.json() == again.json() == {"card": "4242"} and again.replayed and shop.charges == 1
    (stranger,) = shop.send(guarded, times=1, path="/shop/pay")
    assert stranger.status == 401 and shop.charges == 1


@pytest.mark.parametrize("said", [None, "guard", "pass"])
def test_a_function_around_an_application_is_asked_about_before_it_answers_for_it(
    shop: Shop, said: Any
) -> None:
    """It would answer from the store before the application has authenticated anybody."""
    api = FastAPI()

    def authenticate(request: Request) -> None:
        if request.headers.get("x-token") != "good":
            raise HTTPException(401)

    @api.post("/pay", dependencies=[Depends(authenticate)])
    async def pay() -> dict[str, str]:
        return {"card": "4242"}

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await api(scope, receive, send)

    chosen = {} if said is None else {"undecorated": said}
    app = IdempotencyMiddleware(around, idempotency=shop.idempotency, tenant=tenant_of, **chosen)
    (got,) = shop.send(app, times=1)
    if said is None:
        assert isinstance(got.error, ConfigurationError) and "authenticated" in str(got.error)
    else:
        assert got.status == 401
