"""A view that acts and then calls a guarded function: one claim, and nothing that the function says of itself
frees what the view did before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import flask
import pytest
from fastapi import FastAPI, HTTPException, Request
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from samekey import NotExecuted, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import ConfigurationError
from tests.edges.apps import tenant_of
from tests.edges.callers import Got
from tests.edges.shop import Shop

Help = Callable[..., Any]
Make = Callable[..., Any]
EXPECTED = (NotExecuted, KeyError, ConfigurationError)


def statuses(got: list[Got]) -> list[int]:
    return [one.status for one in got]


def guarded(shop: Shop, app: Any, **options: Any) -> IdempotencyMiddleware:
    """An application that cannot be looked into: the middleware claims for all of it."""
    options = {"undecorated": "guard", **options}
    return IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of, **options)


def hidden_asgi(app: Any) -> Any:
    async def hidden(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return hidden


def hidden_wsgi(app: Any) -> Any:
    def hidden(environ: Any, start_response: Any) -> Any:
        return app(environ, start_response)

    return hidden


async def _pay(shop: Shop, help_out: Help, caught: bool, *given: Any) -> None:
    shop.charge()
    try:
        await help_out(*given)
    except EXPECTED:
        if not caught:
            raise


def bare(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await _pay(shop, help_out, caught)
        await JSONResponse({}, 201)(scope, receive, send)

    return guarded(shop, app, **options)


def bare_with_request(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await _pay(shop, help_out, caught, Request(scope, receive))
        await JSONResponse({}, 201)(scope, receive, send)

    return guarded(shop, app, **options)


def fastapi(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    app = FastAPI()

    @app.post("/pay", status_code=201)
    async def pay(request: Request) -> dict[str, str]:
        await _pay(shop, help_out, caught, request)
        return {}

    return shop.guard(app, **options)


def starlette_hidden(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    async def pay(request: Request) -> Response:
        await _pay(shop, help_out, caught, request)
        return JSONResponse({}, 201)

    return guarded(shop, hidden_asgi(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), **options)


def _flask(shop: Shop, help_out: Help, caught: bool) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.post("/pay")
    def pay() -> Any:
        shop.charge()
        try:
            help_out()
        except EXPECTED:
            if not caught:
                raise
        return {}, 201

    return app


def flask_view(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    return shop.guard_wsgi(_flask(shop, help_out, caught), **options)


def flask_hidden(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    app = hidden_wsgi(_flask(shop, help_out, caught).wsgi_app)
    return shop.guard_wsgi(app, undecorated="guard", **options)


def bare_wsgi(shop: Shop, help_out: Help, caught: bool, **options: Any) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        shop.charge()
        try:
            help_out(environ)
        except EXPECTED:
            if not caught:
                raise
        start_response("201 Created", [])
        return [b""]

    return shop.guard_wsgi(app, undecorated="guard", **options)


ASYNC: list[Make] = [bare, bare_with_request, fastapi, starlette_hidden]
SYNC: list[Make] = [flask_view, flask_hidden, bare_wsgi]
SEEN: list[Make] = [fastapi, flask_view]


def failing(how: str, make: Make) -> Help:
    def fail() -> None:
        if how == "before_effect":
            with current_operation().before_effect():
                raise KeyError
        raise NotExecuted if how == "not executed" else KeyError

    async def fail_async(*given: Any) -> None:
        fail()

    def fail_sync(*given: Any) -> None:
        fail()

    return fail_async if make in ASYNC else fail_sync


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("how", ["not executed", "retry", "before_effect", "atomic", "atomic not executed"])
@pytest.mark.parametrize("make", [*ASYNC, *SYNC])
def test_what_a_function_says_of_itself_frees_nothing_of_the_view(
    shop: Shop, make: Make, how: str, caught: bool
) -> None:
    idempotency: Any = shop.idempotency
    declare = idempotency.atomic if how.startswith("atomic") else idempotency.leased(on_error="retry")
    got = shop.send(make(shop, declare(failing(how.removeprefix("atomic "), make)), caught), times=3)
    if how.startswith("atomic") and make not in SEEN:
        assert all('Set undecorated="pass"' in str(one.error) for one in got), "it does not even start"
        assert shop.charges == 0 and shop.states() == []
    else:
        assert shop.charges == 1 and shop.states() != []


@pytest.mark.parametrize("make", [*ASYNC, *SYNC])
def test_not_executed_of_a_function_that_is_guarded_alike(shop: Shop, make: Make) -> None:
    shop.send(make(shop, shop.idempotency.leased(failing("not executed", make)), False), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("make", [*ASYNC, *SYNC])
def test_the_stricter_of_the_two_rules_holds(shop: Shop, make: Make) -> None:
    """The middleware is told that errors may be repeated; the function is not."""
    help_out = shop.idempotency.leased(failing("error", make))
    shop.send(make(shop, help_out, False, on_error="retry"), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("said", ["raised", "returned"])
def test_a_refusal_after_a_function_has_returned_frees_nothing(shop: Shop, said: str) -> None:
    @shop.idempotency.leased
    async def charge() -> None:
        shop.charge()

    async def pay(request: Request) -> Response:
        await charge()
        if said == "raised":
            raise HTTPException(429)
        return JSONResponse({}, 503)

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def test_a_refusal_of_a_function_that_its_view_hands_on_is_its_word(shop: Shop) -> None:
    @shop.idempotency.leased
    async def charge() -> Response:
        shop.charge()
        return JSONResponse({}, 503)

    async def pay(request: Request) -> Response:
        return await charge()

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    assert statuses(shop.send(app)) == [503, 503] and shop.charges == 2


def test_two_functions_in_one_request_and_options_of_their_own(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The claim of the view holds for both; that their options do not is told, once."""

    @shop.idempotency.leased(ttl=7200)
    async def one() -> str:
        shop.charge()
        return current_operation().id

    @shop.idempotency.leased(on_error="retry")
    async def two() -> str:
        shop.charge()
        return current_operation().id

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse([await one(), await two()])(scope, receive, send)

    endpoint = FastAPI()

    @endpoint.post("/pay")
    async def pay() -> list[str]:
        return [await one(), await two()]

    for number, made in enumerate((guarded(shop, app), shop.guard(endpoint)), 1):
        with caplog.at_level(logging.WARNING):
            got = shop.send(made, keys=(str(number).encode(),))
        assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == 2 * number
        assert len(set(got[0].json())) == 1
    assert "is decorated with options of its own" in caplog.text


@pytest.mark.parametrize("decorated", [True, False])
@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_what_is_refused_with_a_key_is_refused_without_one(shop: Shop, mode: str, decorated: bool) -> None:
    """So that it is seen before the first client sends one."""
    guard: Any = getattr(shop.idempotency, mode)

    @guard(required=False)  # type: ignore[untyped-decorator]
    async def charge() -> None:
        shop.charge()
        if mode == "atomic":
            await current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))

    async def pay() -> dict[str, int]:
        await charge()
        return {}

    app = FastAPI()
    app.post("/pay")(shop.idempotency.leased(required=False)(pay) if decorated else pay)
    app.post("/charge")(charge)
    made = shop.guard(app)
    (got,) = shop.send(made, times=1, keys=())
    refused = mode == "atomic"
    assert isinstance(got.error, ConfigurationError) == refused and shop.charges == (0 if refused else 1)
    (itself,) = shop.send(made, times=1, keys=(), path="/charge")
    assert itself.error is None and itself.status == 200


def test_the_key_stays_taken_while_the_function_is_reached(shop: Shop) -> None:
    """A second request that comes between the view's effect and the function meets the claim of the first."""
    entered, goes_on = threading.Event(), threading.Event()

    @shop.idempotency.leased(ttl=7200)
    def notify() -> None:
        entered.set()
        assert goes_on.wait(20)

    def app(environ: Any, start_response: Any) -> Any:
        shop.charge()
        notify()
        start_response("201 Created", [])
        return [b""]

    made, first = shop.guard_wsgi(app, undecorated="guard"), list[Got]()
    thread = threading.Thread(target=lambda: first.extend(shop.send(made, times=1)))
    thread.start()
    assert entered.wait(20)
    (second,) = shop.send(made, times=1)
    goes_on.set()
    thread.join(20)
    assert (statuses(first), second.status, shop.charges) == ([201], 409, 1)


def test_a_redirect_that_is_made_of_a_failure_frees_nothing(shop: Shop) -> None:
    @shop.idempotency.leased(on_error="retry")
    async def pay(request: Request) -> Response:
        shop.charge()
        raise KeyError

    async def see_order(request: Request, error: Exception) -> Response:
        return RedirectResponse("/orders/1", 303)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])], exception_handlers={KeyError: see_order})
    shop.send(shop.guard(app), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def test_the_word_of_a_hidden_handler_is_proof_where_it_claims_for_itself(shop: Shop) -> None:

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        raise NotExecuted

    hidden = hidden_asgi(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    assert statuses(shop.send(guarded(shop, hidden, undecorated="pass"))) == [503, 503]
    assert shop.charges == 2
