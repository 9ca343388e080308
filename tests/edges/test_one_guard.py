"""One request, one claim, whichever way its handler is reached; and nothing runs where no key was taken.

Each test is an application that ordinary people write.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import flask
import pytest
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from samekey import ConfigurationError, current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import Got, call_asgi, call_wsgi, environ_of
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop
from tests.edges.wrong import problems

Run = dict[str, int]


def statuses(got: list[Got]) -> list[int]:
    return [one.status for one in got]


# --- an application that calls itself on the way -----------------------------------------------


@pytest.mark.parametrize("exempt", [True, False])
def test_a_request_that_the_application_makes_itself_does_not_take_the_key(shop: Shop, exempt: bool) -> None:
    """An audit service, mounted, and called in-process by a middleware inside. Unless it is exempt it is not
    run: it might be the request itself, in another form."""
    audits: list[int] = []
    app, audit = FastAPI(), FastAPI()

    async def log() -> None:
        audits.append(1)

    audit.post("/log")(shop.idempotency.exempt(log) if exempt else log)

    @app.post("/pay")
    async def pay() -> Run:
        shop.charge()
        return {"run": shop.charges}

    class Audit:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/pay":
                await call_asgi(audit, Ask(keys=()).request("/log", shop.world.name))
            await self.app(scope, receive, send)

    app.mount("/audit", audit)
    app.add_middleware(Audit)
    got = shop.send(shop.guard(app), times=3)
    assert [one.json() for one in got] == [{"run": 1}] * 3 and got[1].replayed
    assert (shop.charges, len(audits)) == (1, 3 if exempt else 0)


@pytest.mark.parametrize("exempt", [True, False])
def test_a_request_that_flask_makes_itself_does_not_take_the_key(shop: Shop, exempt: bool) -> None:
    audits: list[int] = []
    app = flask.Flask(__name__)
    inner: Any = app.wsgi_app

    @app.post("/log")
    def log() -> Any:
        audits.append(1)
        return {}

    @app.post("/pay")
    def pay() -> Any:
        shop.charge()
        return {"run": shop.charges}

    def audited(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/pay":
            call_wsgi(inner, Ask(keys=()).request("/log", shop.world.name))
        return inner(environ, start_response)

    audited.app = inner  # type: ignore[attr-defined]
    routes = {"/log": "exempt"} if exempt else {}
    got = shop.send(shop.guard_wsgi(audited, routes=routes), times=3)
    assert [one.json() for one in got] == [{"run": 1}] * 3 and got[1].replayed
    assert (shop.charges, len(audits)) == (1, 3 if exempt else 0)


def test_a_middleware_that_runs_the_application_in_a_context_of_its_own(shop: Shop) -> None:
    app = FastAPI()

    @app.post("/pay")
    async def pay() -> Run:
        shop.charge()
        return {"run": shop.charges}

    class Fresh:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            call = self.app(scope, receive, send)
            await asyncio.get_running_loop().create_task(call, context=contextvars.Context())

    app.add_middleware(Fresh)
    got = shop.send(shop.guard(app))
    assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == 1


# --- a handler that is called twice --------------------------------------------------------------


@pytest.mark.parametrize("mode", ["leased", "atomic", "undecorated"])
def test_two_calls_of_one_handler_at_once(shop: Shop, mode: str) -> None:
    """A route that hedges: one call runs, the other is refused, and the outcome is recorded."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Hedged(APIRoute):
        def get_route_handler(self) -> Callable[[Any], Any]:
            original = super().get_route_handler()

            async def hedge(request: Any) -> Any:
                first = asyncio.ensure_future(original(request))
                second = asyncio.ensure_future(original(request))
                await entered.wait()
                gate.set()
                done = await asyncio.gather(first, second, return_exceptions=True)
                refused.extend(one for one in done if isinstance(one, BaseException))
                return next(one for one in done if not isinstance(one, BaseException))

            return hedge

    refused: list[BaseException] = []
    app = FastAPI()
    app.router.route_class = Hedged

    async def pay() -> Run:
        shop.charge()
        entered.set()
        await gate.wait()
        if mode == "atomic":
            await current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        return {"run": shop.charges}

    guarded: Any = pay if mode == "undecorated" else getattr(shop.idempotency, mode)(pay)
    app.post("/pay")(guarded)
    got = shop.send(shop.guard(app), times=3)
    assert statuses(got) == [200, 200, 200] and got[1].replayed and shop.charges == 1
    assert "Two guards" in str(refused[0])
    assert shop.states() == ["completed"]


def test_a_route_that_tries_again_after_the_key_has_decided(shop: Shop) -> None:
    """A duplicate is refused, and the second try gets the same refusal; nothing runs beside the first."""

    class Again(APIRoute):
        def get_route_handler(self) -> Callable[[Any], Any]:
            original = super().get_route_handler()

            async def again(request: Any) -> Any:
                response = await original(request)
                return await original(request) if response.status_code == 409 else response

            return again

    app = FastAPI()
    app.router.route_class = Again

    @app.post("/pay")
    async def pay() -> None:
        shop.charge()
        raise KeyError("after the charge")

    got = shop.send(shop.guard(app), times=3)
    assert statuses(got) == [409, 409, 409] and shop.charges == 1
    assert got[2].code == "outcome_unknown" and got[2].error is None


# --- a mark that is not what it seems --------------------------------------------------------------


def copied_mark(shop: Shop) -> Callable[..., Any]:
    @shop.idempotency.leased
    async def old() -> Run:
        return {}

    @functools.wraps(old)
    async def pay() -> Run:
        shop.charge()
        return {}

    return pay


@pytest.mark.parametrize("undecorated", ["guard", "pass"])
def test_a_mark_that_was_copied_to_an_unguarded_function_is_refused_at_start_up(
    shop: Shop, undecorated: str
) -> None:
    app = FastAPI()
    app.post("/pay")(copied_mark(shop))
    (found,) = problems(app, shop.idempotency.engine)
    assert "functools.wraps has copied the mark of" in found and "Decorate this function itself" in found
    got = shop.send(shop.guard(app, undecorated=undecorated))
    assert all(isinstance(one.error, ConfigurationError) for one in got) and shop.charges == 0


def test_a_copied_mark_on_a_route_that_was_added_later_is_not_believed(shop: Shop) -> None:
    app = FastAPI()
    guarded = shop.guard(app)
    assert statuses(shop.send(guarded, times=1, path="/nothing", keys=(b"first",))) == [404]
    app.post("/pay")(copied_mark(shop))
    got = shop.send(guarded)
    assert all(isinstance(one.error, ConfigurationError) for one in got) and shop.charges == 0


def test_ordinary_wrappers_are_believed(shop: Shop) -> None:
    """They have the guarded function in their hands: a closure, a global name, an attribute."""

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    class Counted:
        def __init__(self, function: Any) -> None:
            functools.update_wrapper(self, function)
            self.function = function

        async def __call__(self, request: Request) -> Any:
            return await self.function(request)

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({"mode": current_operation().mode})

    class Endpoint:
        """As Starlette wants an object that is an endpoint."""

        def __init__(self, function: Any) -> None:
            self.function = function
            self.__samekey_guard__ = function.__samekey_guard__

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            response = await self.function(Request(scope, receive))
            await response(scope, receive, send)

    app = Starlette(
        routes=[
            Route("/logged", logged(pay), methods=["POST"]),
            Route("/twice", logged(logged(pay)), methods=["POST"]),
            Route("/counted", Endpoint(Counted(pay)), methods=["POST"]),
        ]
    )
    assert problems(app, shop.idempotency.engine) == []
    guarded = shop.guard(app)
    for number, path in enumerate(("/logged", "/twice", "/counted"), 1):
        got = shop.send(guarded, path=path, keys=(path.encode(),))
        assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == number, path


def test_a_wrapper_that_falls_back_to_something_unguarded_is_told(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    @shop.idempotency.leased
    async def new() -> Run:
        return {}

    @functools.wraps(new)
    async def pay() -> Run:
        shop.charge()
        return {} if shop.charges else await new()

    app = FastAPI()
    app.post("/pay")(pay)
    shop.send(shop.guard(app), times=1)
    assert "POST /pay sent a key and was answered 200, but no guard has claimed it" in caplog.text


def test_a_wrapper_without_wraps_and_a_guarded_function_that_a_handler_calls(shop: Shop) -> None:
    """One guard does for both where they are declared alike."""

    @shop.idempotency.leased
    async def service(request: Request) -> Response:
        shop.charge()
        return JSONResponse({})

    async def pay(request: Request) -> Response:
        return await service(request)

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    got = shop.send(app)
    assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == 1


# --- applications behind something -----------------------------------------------------------------


def test_a_mounted_application_behind_a_middleware_of_its_own(shop: Shop) -> None:
    api, app = FastAPI(), FastAPI()

    @api.post("/pay")
    @shop.idempotency.leased
    async def pay() -> Run:
        shop.charge()
        return {"run": shop.charges}

    @api.post("/checked")
    async def checked(amount: int) -> Run:
        shop.charge()
        return {"run": shop.charges}

    app.mount("/api", CORSMiddleware(api, allow_origins=["*"]))
    guarded = shop.guard(app)
    got = shop.send(guarded, path="/api/pay")
    assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == 1
    # Validation comes before the claim there as well, so a corrected request may have the same key.
    assert statuses(shop.send(guarded, times=1, path="/api/checked", keys=(b"c",))) == [422]
    corrected = shop.send(guarded, path="/api/checked", keys=(b"c",), query=b"amount=1")
    assert statuses(corrected) == [200, 200] and corrected[1].replayed


def test_flask_behind_what_hides_it(shop: Shop) -> None:
    """Under another name, and in a closure, where only decorated views are guarded."""

    class WhiteNoise:
        def __init__(self, application: Any) -> None:
            self.application = application

        def __call__(self, environ: Any, start_response: Any) -> Any:
            return self.application(environ, start_response)

    def closure(app: Any) -> Any:
        def hidden(environ: Any, start_response: Any) -> Any:
            return app(environ, start_response)

        return hidden

    app = flask.Flask(__name__)

    @app.post("/leased")
    @shop.idempotency.leased
    def leased() -> Any:
        shop.charge()
        return {"mode": current_operation().mode}

    @app.post("/atomic")
    @shop.idempotency.atomic
    def atomic() -> Any:
        shop.charge()
        current_operation().connection.execute(shop.store.insert, (shop.world.name, shop.charges))
        return {"mode": current_operation().mode}

    for number, wrap in enumerate((WhiteNoise, closure)):
        guarded = shop.guard_wsgi(wrap(app.wsgi_app), undecorated="pass" if wrap is closure else None)
        for mode in ("leased", "atomic"):
            got = shop.send(guarded, path=f"/{mode}", keys=(f"{mode}{number}".encode(),))
            assert got[0].json() == {"mode": mode} and got[1].replayed, (wrap, mode, got)
    assert shop.charges == 4


def test_starlette_behind_a_closure(shop: Shop) -> None:
    async def pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({"mode": current_operation().mode})

    def sync_pay(request: Request) -> Response:
        shop.charge()
        return JSONResponse({"mode": current_operation().mode})

    inner = Starlette(
        routes=[
            Route("/pay", shop.idempotency.leased(pay), methods=["POST"]),
            Route("/sync", shop.idempotency.leased(repeatable=True)(sync_pay), methods=["POST"]),
        ]
    )

    async def closure(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    guarded = IdempotencyMiddleware(
        closure, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    for path, mode in (("/pay", "leased"), ("/sync", "repeatable")):
        got = shop.send(guarded, path=path, keys=(path.encode(),))
        assert got[0].json() == {"mode": mode} and got[1].replayed, (path, got)
    assert shop.charges == 2


class Method:
    """``routes`` is a method here."""

    def routes(self) -> list[str]:
        return ["/pay"]


class Raises:
    @property
    def routes(self) -> list[str]:
        raise RuntimeError("not started yet")

    @property
    def app(self) -> Any:
        raise RuntimeError("not started yet")


class Words:
    routes = ("/pay", "/other")


@pytest.mark.parametrize("kind", [Method, Raises, Words])
def test_an_application_that_only_looks_like_a_router(shop: Shop, kind: type) -> None:
    class Asgi(kind):  # type: ignore[misc]
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            shop.charge()
            await JSONResponse({})(scope, receive, send)

    class Wsgi(kind):  # type: ignore[misc]
        def __call__(self, environ: Any, start_response: Any) -> Any:
            shop.charge()
            start_response("200 OK", [])
            return [b"{}"]

    asgi = IdempotencyMiddleware(Asgi(), idempotency=shop.idempotency, tenant=tenant_of)
    for number, app in enumerate((asgi, shop.guard_wsgi(Wsgi())), 1):
        got = shop.send(app, keys=(str(number).encode(),))
        assert statuses(got) == [200, 200] and got[1].replayed and shop.charges == number


# --- requests that are not guarded ------------------------------------------------------------------


def test_a_guarded_function_that_a_get_calls_is_not_run(shop: Shop) -> None:
    """It would run once for each such request; also in a task that such a request has started."""
    app, tasks = FastAPI(), []

    @app.api_route("/pay", methods=["POST", "GET"])
    @shop.idempotency.leased
    async def pay() -> Run:
        shop.charge()
        return {}

    @app.get("/back")
    async def back() -> Any:
        return await pay()

    @app.get("/warmup")
    async def warmup() -> Run:
        async def consumer() -> None:
            with pytest.raises(ConfigurationError, match="was called in a request that is not"):
                await pay()

        tasks.append(asyncio.ensure_future(consumer()))
        return {}

    guarded = shop.guard(app)
    got = shop.send(guarded, path="/back", method="GET")
    assert statuses(got) == [500, 500] and shop.charges == 0
    assert "so nothing was run" in str(got[0].error) and "idempotency.once" in str(got[0].error)
    assert statuses(shop.send(guarded, times=1, path="/warmup", method="GET")) == [200]

    async def ended() -> None:
        await tasks[0]

    shop.loop.run(ended())
    assert shop.charges == 0
    # The handler that the router leads to runs as it is: that is what a GET of its route means.
    assert statuses(shop.send(guarded, method="GET")) == [200, 200] and shop.charges == 2


def test_a_guarded_view_that_a_get_of_flask_calls_is_not_run(shop: Shop) -> None:
    app = flask.Flask(__name__)
    app.config["PROPAGATE_EXCEPTIONS"] = True

    @app.route("/pay", methods=["POST", "GET"])
    @shop.idempotency.leased
    def pay() -> Any:
        shop.charge()
        return {}

    @app.get("/back")
    def back() -> Any:
        return pay()

    class Both(MethodView):
        @shop.idempotency.leased
        def post(self) -> Any:
            shop.charge()
            return {}

        def get(self) -> Any:
            return self.post()

    app.add_url_rule("/both", view_func=Both.as_view("both"))
    guarded = shop.guard_wsgi(app.wsgi_app)
    for path in ("/back", "/both"):
        (got,) = shop.send(guarded, times=1, path=path, method="GET")
        assert isinstance(got.error, ConfigurationError) and shop.charges == 0, path
    assert statuses(shop.send(guarded, method="GET")) == [200, 200] and shop.charges == 2


def test_a_bare_application_runs_as_it_is_in_a_get(shop: Shop) -> None:
    @shop.idempotency.leased
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        shop.charge()
        await JSONResponse({})(scope, receive, send)

    @shop.idempotency.leased
    def wsgi(environ: Any, start_response: Any) -> Any:
        shop.charge()
        start_response("200 OK", [])
        return [b"{}"]

    async def hidden(scope: Any, receive: Any, send: Any) -> None:
        await asgi(scope, receive, send)

    def hidden_wsgi(environ: Any, start_response: Any) -> Any:
        return wsgi(environ, start_response)

    for app in (asgi, hidden):
        guarded: Any = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of)
        assert statuses(shop.send(guarded, times=1, method="GET")) == [200]
    for bare in (wsgi, hidden_wsgi):
        assert statuses(shop.send(shop.guard_wsgi(bare), times=1, method="GET")) == [200]
    assert shop.charges == 4


# --- an answer that the key decides ------------------------------------------------------------------


def test_a_replay_is_no_failure_to_a_bare_application(shop: Shop) -> None:
    """Its compensation for failures is not run, and it sees a call that went well."""
    compensations: list[BaseException] = []

    @shop.idempotency.leased
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        shop.charge()
        await JSONResponse({})(scope, receive, send)

    @shop.idempotency.leased
    def wsgi(environ: Any, start_response: Any) -> Any:
        shop.charge()
        start_response("200 OK", [])
        return [b"{}"]

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asgi(scope, receive, send)
        except BaseException as error:
            compensations.append(error)
            raise

    def outer_wsgi(environ: Any, start_response: Any) -> Any:
        try:
            return wsgi(environ, start_response)
        except BaseException as error:
            compensations.append(error)
            raise

    guarded: Any = IdempotencyMiddleware(
        outer, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    got = shop.send(guarded, times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed and shop.charges == 1
    got = shop.send(shop.guard_wsgi(outer_wsgi, undecorated="pass"), times=3, keys=(b"wsgi",))
    assert statuses(got) == [200] * 3 and got[2].replayed and shop.charges == 2
    assert compensations == []


def test_a_replay_is_no_failure_to_an_unknown_framework(shop: Shop) -> None:
    compensations: list[BaseException] = []

    @shop.idempotency.leased
    async def pay(amount: int) -> dict[str, int]:
        shop.charge()
        return {"amount": amount}

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        try:
            value = await pay(1)
        except Exception as error:
            compensations.append(error)
            raise
        await JSONResponse(value)(scope, receive, send)

    guarded: Any = IdempotencyMiddleware(
        framework, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass"
    )
    got = shop.send(guarded, times=3)
    assert statuses(got) == [200] * 3 and got[2].replayed and shop.charges == 1
    assert compensations == []


def test_a_replay_in_a_pool_whose_workers_catch_exceptions_only(shop: Shop) -> None:
    @shop.idempotency.leased
    def pay() -> bytes:
        shop.charge()
        return b"paid"

    compensations: list[Exception] = []
    with ThreadPool(1) as pool, ThreadPoolExecutor(1) as executor:

        def app(environ: Any, start_response: Any) -> Any:
            run = contextvars.copy_context().run
            if environ["PATH_INFO"] == "/pool":
                body = pool.apply_async(run, (pay,)).get(10)
            else:
                try:
                    body = executor.submit(run, pay).result(10)
                except Exception as error:
                    compensations.append(error)
                    raise
            start_response("201 Created", [])
            return [body]

        guarded = shop.guard_wsgi(app, undecorated="pass")
        worker = pool.apply(threading.get_ident)
        for number, path in enumerate(("/pool", "/executor"), 1):
            got = shop.send(guarded, times=4, path=path, keys=(path.encode(),))
            assert statuses(got) == [201] * 4 and got[3].replayed and shop.charges == number
        assert pool.apply(threading.get_ident) == worker and compensations == []


def test_a_replay_is_no_failure_to_a_dependency(shop: Shop) -> None:
    """FastAPI wrapped from outside, with a unit of work that undoes what failed."""
    undone: list[BaseException] = []
    app = FastAPI()

    async def unit_of_work() -> Any:
        try:
            yield
        except BaseException as error:
            undone.append(error)
            raise

    @app.post("/pay", dependencies=[Depends(unit_of_work)])
    @shop.idempotency.leased
    async def pay() -> Run:
        shop.charge()
        return {}

    guarded: Any = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of)
    assert statuses(shop.send(guarded, times=3)) == [200] * 3
    assert shop.charges == 1 and undone == []


def test_a_replay_can_be_read_by_a_client_that_takes_no_gzip(shop: Shop) -> None:
    """What compresses inside would be stored as it was made for the first client."""
    app = FastAPI()

    @app.post("/pay")
    async def pay() -> dict[str, str]:
        return {"pad": "x" * 1000}

    app.add_middleware(GZipMiddleware, minimum_size=10)
    guarded = shop.guard(app)
    (first,) = shop.send(guarded, times=1, headers=((b"accept-encoding", b"gzip"),))
    (again,) = shop.send(guarded, times=1)
    assert again.replayed and again.header("content-encoding") is None and again.body == first.body
    assert again.json() == {"pad": "x" * 1000}


def test_flask_does_not_see_which_encodings_a_client_takes(shop: Shop) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    def pay() -> Any:
        return {"accepts": flask.request.headers.get("Accept-Encoding")}

    seen: list[str | None] = []

    def outside(environ: Any, start_response: Any) -> Any:
        try:
            return guarded(environ, start_response)
        finally:
            seen.append(environ.get("HTTP_ACCEPT_ENCODING"))

    guarded = shop.guard_wsgi(app.wsgi_app)
    ask = Ask(headers=((b"accept-encoding", b"gzip"),)).request("/pay", shop.world.name)
    assert call_wsgi(outside, ask).json() == {"accepts": None}
    assert seen == ["gzip"]


# --- where the status resource is ---------------------------------------------------------------------


def test_the_status_resource_below_a_mount_is_where_the_link_says(shop: Shop) -> None:
    api = FastAPI()

    @api.post("/pay")
    @shop.idempotency.leased
    async def pay() -> None:
        raise KeyError("after the charge")

    app = Starlette(routes=[Mount("/sub", shop.guard(api))])
    for got in shop.send(app, path="/sub/pay"):
        (link,) = (one for one in got.all("link") if 'rel="status"' in one)
        assert link.startswith("</sub/idempotency/")
        (status,) = shop.send(app, times=1, path=link[1:].partition(">")[0], method="GET", keys=())
        assert status.json()["state"] == "unknown"


@pytest.mark.parametrize("stripped", [False, True])
def test_the_status_resource_behind_a_root_path(shop: Shop, stripped: bool) -> None:
    """Servers tell it in two ways: with the root in the path, and without."""

    @shop.idempotency.leased(on_in_progress="accept")
    async def pay(request: Request) -> Response:
        raise KeyError("after the charge")

    app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/a b") if stripped else scope["path"]
        await app({**scope, "root_path": "/a b", "path": path}, receive, send)

    (got,) = shop.send(behind, times=1, path="/a b/pay")
    (link,) = (one for one in got.all("link") if 'rel="status"' in one)
    assert link.startswith("</a%20b/idempotency/")
    path = link[1:].partition(">")[0].replace("%20", " ")
    (status,) = shop.send(behind, times=1, path=path, method="GET", keys=())
    assert status.json()["state"] == "unknown"


def test_the_status_resource_below_a_script_name(shop: Shop) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    @shop.idempotency.leased
    def pay() -> Any:
        raise KeyError("after the charge")

    guarded = shop.guard_wsgi(app.wsgi_app)

    def mounted(environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"].removeprefix("/sub")
        return guarded({**environ, "SCRIPT_NAME": "/sub", "PATH_INFO": path}, start_response)

    got = call_wsgi(mounted, Ask().request("/sub/pay", shop.world.name))
    (link,) = (one for one in got.all("link") if 'rel="status"' in one)
    assert link.startswith("</sub/idempotency/")
    ask = Ask(method="GET", keys=()).request(link[1:].partition(">")[0], shop.world.name)
    assert call_wsgi(mounted, ask).json()["state"] == "unknown"


# --- requests without an end, and clients without patience --------------------------------------------


def test_a_chunked_body_of_unknown_length_is_refused(shop: Shop) -> None:
    """The server does not say that its stream ends: the body can neither be compared nor handed on."""

    @shop.idempotency.leased
    def pay(environ: Any, start_response: Any) -> Any:
        shop.charge()
        start_response("200 OK", [])
        return [b"{}"]

    ask = Ask(headers=((b"transfer-encoding", b"chunked"),)).request("/pay", shop.world.name)
    guarded = shop.guard_wsgi(pay)

    def without_length(environ: Any, start_response: Any) -> Any:
        environ.pop("CONTENT_LENGTH", None)
        environ.pop("wsgi.input_terminated", None)
        return guarded(environ, start_response)

    assert "CONTENT_LENGTH" in environ_of(ask)
    got = call_wsgi(without_length, ask)
    assert got.status == 411 and "send Content-Length" in got.json()["detail"] and shop.charges == 0


@pytest.mark.parametrize("answers", [True, False])
def test_a_deadline_around_an_operation_without_a_key_speaks_of_no_key(shop: Shop, answers: bool) -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    class Impatient:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await self.app(scope, receive, send)
                return
            task = asyncio.ensure_future(self.app(scope, receive, send))
            await entered.wait()
            tasks.append(task)
            if not answers:
                raise KeyError("gave up")
            await JSONResponse({"late": True}, 503)(scope, receive, send)

    tasks: list[Any] = []

    @shop.idempotency.atomic(required=False)
    async def pay(request: Request) -> Response:
        shop.charge()
        entered.set()
        await gate.wait()
        await current_operation().connection.execute(shop.store.insert, (shop.world.name, 1))
        return JSONResponse({})

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(Impatient)
    (got,) = shop.send(shop.guard(app), times=1, keys=())
    assert got.header("idempotency-key-expires") is None and got.code is None
    assert got.status == (503 if answers else 500)

    async def end() -> None:
        gate.set()
        await asyncio.wait(tasks)

    shop.loop.run(end())


def test_what_fails_after_its_client_has_left_is_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        entered.set()
        await gate.wait()
        raise KeyError("after the charge")

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    guarded: Any = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of)
    unheard: list[Any] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        call = asyncio.ensure_future(call_asgi(guarded, Ask().request("/pay", shop.world.name)))
        await entered.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        (task,) = guarded._running
        gate.set()
        await asyncio.wait([task])
        del task, call
        await asyncio.sleep(0)
        asyncio.get_running_loop().set_exception_handler(None)

    with caplog.at_level(logging.ERROR):
        shop.loop.run(leave())
    assert "POST /pay failed after its client had left" in caplog.text
    assert unheard == [] and shop.states() == ["unknown"]


@pytest.mark.parametrize("decorated", [True, False])
def test_an_answer_that_is_started_twice_counts_for_nothing(shop: Shop, decorated: bool) -> None:
    """The second start does not overwrite the first, and the effect is not repeated."""

    async def pay(scope: Any, receive: Any, send: Any) -> None:
        shop.charge()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    app: Any = shop.idempotency.leased(pay) if decorated else pay
    guarded: Any = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of)
    got = shop.send(guarded, times=3)
    assert statuses(got) == [409, 409, 409] and shop.charges == 1
    assert "twice" in str(got[0].error) and got[1].code == "outcome_unknown"
