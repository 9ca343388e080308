"""Only proof frees a key, whatever stands around a handler and whatever shape it has.

Each test is an application that ordinary people write, in which a key was once freed, an answer lost, or a
guard walked past.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import socket
from collections.abc import Callable
from typing import Any

import flask
import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from samekey import ConfigurationError, NotExecuted, Outcome, OutcomeUnknown, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient, call_wsgi
from tests.edges.scenarios import Ask
from tests.edges.shop import Shop


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


# --- what the handler says, and what it has noted --------------------------------------------------


def contradictions() -> dict[str, Any]:
    def returned(status: int) -> Any:
        return lambda: JSONResponse({}, status)

    def refused(status: int) -> Any:
        raise HTTPException(status)

    return {
        "returned 503": returned(503),
        "returned 429": returned(429),
        "raised 429": lambda: refused(429),
    }


@pytest.mark.parametrize("how", contradictions())
@pytest.mark.parametrize("on_error", ["unknown", "retry"])
def test_a_noted_id_of_the_provider_says_more_than_whatever_follows(
    shop: Shop, how: str, on_error: Any
) -> None:
    @shop.idempotency.leased(on_error=on_error)
    async def pay(request: Request) -> Response:
        shop.charge()
        current_operation().provider_id = "ch_1"
        return contradictions()[how]()  # type: ignore[no-any-return]

    got = shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"] and got[2].code == "outcome_unknown"


def test_a_noted_id_says_so_in_flask(shop: Shop) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    @shop.idempotency.leased
    def pay() -> Any:
        shop.charge()
        current_operation().provider_id = "ch_1"
        return {}, 503

    shop.send(shop.guard_wsgi(app.wsgi_app), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def test_an_id_that_was_taken_back_says_nothing(shop: Shop) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        operation = current_operation()
        operation.provider_id = "draft_1"
        operation.provider_id = None  # the provider has thrown it away
        raise NotExecuted

    got = shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])))
    assert [one.status for one in got] == [503, 503] and shop.charges == 2


def test_not_executed_of_another_process_says_nothing_about_this_one(shop: Shop) -> None:
    """The function gives a part of its work to another process, which guards that with a key of its own."""
    tenant = shop.world.name

    def inner() -> None:
        raise NotExecuted("the provider is closed")

    with pytest.raises(NotExecuted) as heard:
        shop.idempotency.once(tenant=tenant, key="inner", run=inner, mode="leased")

    def outer() -> None:
        raise pickle.loads(pickle.dumps(heard.value))

    with pytest.raises(NotExecuted):
        shop.idempotency.once(tenant=tenant, key="outer", run=outer, mode="leased")
    with pytest.raises(OutcomeUnknown):
        shop.idempotency.once(tenant=tenant, key="outer", run=lambda: 1, mode="leased")


@pytest.mark.parametrize("inside", [False, True], ids=["", "inside of another"])
def test_one_not_executed_for_every_run(shop: Shop, inside: bool) -> None:
    """A constant that is raised again and again is each run's own word, and no other's."""
    tenant = shop.world.name
    nothing = NotExecuted("the provider is closed")

    def run() -> Any:
        raise nothing

    def outer() -> Any:
        shop.idempotency.once(tenant=tenant, key="inner", run=run, mode="leased")

    for key in ("a", "b", "a"):
        with pytest.raises(NotExecuted):
            shop.idempotency.once(tenant=tenant, key=key, run=run, mode="leased")
    if inside:
        with pytest.raises(NotExecuted):
            shop.idempotency.once(tenant=tenant, key="c", run=outer, mode="leased")
        with pytest.raises(OutcomeUnknown):  # of the inner one it says all, and of the outer one nothing
            shop.idempotency.once(tenant=tenant, key="c", run=outer, mode="leased")
    for key in ("a", "b", "inner"):
        assert shop.idempotency.once(tenant=tenant, key=key, run=lambda: 1, mode="leased") == 1


def test_not_executed_of_one_call_says_nothing_about_another(shop: Shop) -> None:
    """The charge was sent; what was not executed is the mail."""

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        current_operation().downstream_key("charge")
        shop.charge()
        current_operation().downstream_key("mail")
        raise NotExecuted("the mail server was not reached")

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_not_executed_of_an_inner_operation_says_nothing_about_the_outer(shop: Shop, kind: str) -> None:
    def fail() -> None:
        raise NotExecuted("about the inner call")

    called: dict[str, Any] = {"tenant": "acme", "key": shop.world.name, "payload": None, "name": "inner"}

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        await shop.idempotency.once_async(run=fail, **called)
        return JSONResponse({})

    @shop.idempotency.leased
    def pay_sync() -> Any:
        shop.charge()
        shop.idempotency.once(run=fail, **called)
        return {}

    app: Any
    if kind == "async":
        app = shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    else:
        made = flask.Flask(__name__)
        made.post("/pay")(pay_sync)
        app = shop.guard_wsgi(made.wsgi_app)
    shop.send(app, times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_that_was_made_of_a_time_out(shop: Shop, status: int) -> None:
    """Also where errors are read optimistically."""

    @shop.idempotency.leased(on_error="retry")
    async def pay(request: Request) -> Response:
        shop.charge()
        raise HTTPException(status) from TimeoutError()

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def test_what_a_provider_returned_is_not_the_handlers_own_status(shop: Shop) -> None:
    """In a framework that is not known: it makes a page of whatever carries a status."""

    class SdkResponse:
        status_code = 503

    @shop.idempotency.leased
    async def pay(amount: int) -> Any:
        shop.charge()
        return SdkResponse()

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        value = await pay(1)
        await JSONResponse({}, value.status_code)(scope, receive, send)

    app = IdempotencyMiddleware(framework, idempotency=shop.idempotency, tenant=tenant_of, undecorated="pass")
    shop.send(app, times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def _bare(shop: Shop, kind: str, status: int, act: Callable[[], object] = lambda: None) -> Any:
    """An application of another kind, which charges and gives this page."""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        shop.charge()
        act()
        await JSONResponse({}, status)(scope, receive, send)

    def wsgi(environ: Any, start_response: Any) -> Any:
        shop.charge()
        act()
        start_response(f"{status} Word", [])
        return [b""]

    if kind == "wsgi":
        return shop.guard_wsgi(wsgi)
    return IdempotencyMiddleware(asgi, idempotency=shop.idempotency, tenant=tenant_of)


@pytest.mark.parametrize("status", [307, 308, 401, 403, 404, 405, 408, 413, 415, 425, 429])
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_what_is_never_remembered_is_not_either_of_an_application_of_another_kind(
    shop: Shop, kind: str, status: int
) -> None:
    got = shop.send(_bare(shop, kind, status), times=3)
    assert [(one.status, one.replayed) for one in got] == [(status, False)] * 3
    assert shop.charges == 3 and shop.states() == []


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_an_error_page_of_an_application_of_another_kind_frees_nothing(shop: Shop, kind: str) -> None:
    """Its framework may have made it of an error, after the effect."""
    shop.send(_bare(shop, kind, 503), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("status", [307, 401, 404, 429])
@pytest.mark.parametrize("what", ["an id", "a key"])
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_page_of_an_application_of_another_kind_that_has_begun_to_act_frees_nothing(
    shop: Shop, kind: str, what: str, status: int
) -> None:
    def act() -> None:
        if what == "an id":
            current_operation().provider_id = "ch_1"
        else:
            current_operation().downstream_key()

    shop.send(_bare(shop, kind, status, act), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


@pytest.mark.parametrize("on_error", ["unknown", "retry"])
def test_a_proof_about_one_call_does_not_hide_the_time_out_of_another(shop: Shop, on_error: Any) -> None:
    """The charge timed out; the mail that should have told somebody was refused."""

    @shop.idempotency.leased(on_error=on_error)
    async def pay(request: Request) -> Response:
        shop.charge()
        try:
            _throw(httpx2.ReadTimeout("no answer"))
        except httpx2.ReadTimeout:
            try:
                _connect_to_nobody()
            except ConnectionRefusedError as error:
                raise HTTPException(429) from error
        return JSONResponse({})

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def _throw(error: Exception) -> None:
    raise error


def _connect_to_nobody() -> None:
    with socket.socket() as held, socket.socket() as client:  # bound and not listening
        held.bind(("127.0.0.1", 0))
        client.connect(held.getsockname())


def test_not_executed_of_an_inner_call_does_not_hide_a_time_out(shop: Shop) -> None:
    def fail() -> None:
        raise NotExecuted("about the inner call")

    called: dict[str, Any] = {"tenant": "acme", "key": shop.world.name, "payload": None, "name": "alert"}

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        try:
            _throw(TimeoutError())
        except TimeoutError:
            try:
                await shop.idempotency.once_async(run=fail, **called)
            except NotExecuted as error:
                raise HTTPException(429) from error
        return JSONResponse({})

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and "unknown" in shop.states()


@pytest.mark.parametrize("raised", [HTTPException(429), NotExecuted()])
def test_a_success_that_is_made_of_a_failure_frees_nothing(shop: Shop, raised: Exception) -> None:
    """An exception handler goes another way to the same effect, and says so."""

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        raise raised

    async def fall_back(request: Request, error: Exception) -> Response:
        shop.charge()
        return JSONResponse({"by": "B"}, 201)

    routes = [Route("/pay", pay, methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers={type(raised): fall_back})
    got = shop.send(shop.guard(app), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]
    assert [one.code for one in got] == ["outcome_unknown"] * 3


@pytest.mark.parametrize(
    ("page", "charges"), [(402, 1), (409, 1), (422, 1), (502, 1), (504, 1), (404, 3), (503, 3)]
)
def test_a_page_that_is_made_of_a_refusal_says_what_became_of_it(shop: Shop, page: int, charges: int) -> None:
    """What was refused for good on another way is the answer; a translation that says "again" frees."""

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        raise HTTPException(429)

    async def fall_back(request: Request, error: Exception) -> Response:
        shop.charge()
        return JSONResponse({"by": "B"}, page)

    routes = [Route("/pay", pay, methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers={HTTPException: fall_back})
    got = shop.send(shop.guard(app), times=3)
    assert shop.charges == charges
    unknown = page in (502, 504)
    assert {one.status for one in got} == {409 if unknown else page}
    assert [one.code for one in got] == ["outcome_unknown" if unknown else None] * 3


def test_a_success_that_flask_makes_of_a_failure_frees_nothing(shop: Shop) -> None:
    app = flask.Flask(__name__)

    @app.post("/pay")
    def pay() -> Any:
        flask.abort(429)

    @app.errorhandler(429)
    def fall_back(error: Exception) -> Any:
        shop.charge()
        return {"by": "B"}, 201

    shop.send(shop.guard_wsgi(app.wsgi_app), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"]


def test_taking_back_one_id_does_not_take_back_another(shop: Shop) -> None:
    left: list[str | None] = []

    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        shop.charge()
        operation = current_operation()
        operation.provider_id = "ch_1"
        operation.provider_id = "ch_2"
        operation.provider_id = None  # the provider has thrown the second one away
        left.append(operation.provider_id)
        raise HTTPException(429)

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 1 and shop.states() == ["unknown"] and left == ["ch_1"]


def test_a_call_that_gave_no_id_takes_back_none_of_another(shop: Shop) -> None:
    @shop.idempotency.leased
    async def pay(request: Request) -> Response:
        operation = current_operation()
        for step, made in (("charge", "ch_1"), ("label", None)):
            operation.downstream_key(step)
            shop.charge()
            operation.provider_id = made
        assert operation.provider_id == "ch_1"
        raise HTTPException(429)

    shop.send(shop.guard(Starlette(routes=[Route("/pay", pay, methods=["POST"])])), times=3)
    assert shop.charges == 2 and shop.states() == ["unknown"]


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("raised", [NotExecuted, KeyError])
@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_a_decorated_function_that_is_reached_late_does_not_speak_for_the_application(
    shop: Shop, mode: str, raised: type[Exception], caught: bool
) -> None:
    """The application has charged by itself, guarded by its edge."""
    options: Any = {"on_error": "retry"} if mode == "leased" else {}

    async def fail() -> None:
        raise raised

    notify: Any = getattr(shop.idempotency, mode)(**options)(fail)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        shop.charge()
        try:
            await notify()
        except (raised, ConfigurationError):
            if not caught:
                raise
        await JSONResponse({}, 201)(scope, receive, send)

    guarded = IdempotencyMiddleware(app, idempotency=shop.idempotency, tenant=tenant_of, undecorated="guard")
    shop.send(guarded, times=3)
    assert shop.charges == (1 if mode == "leased" else 0), "with an atomic one it does not start"
