"""The coverage audit, held against what the middleware really does with each route.

Every application here is audited and then asked: a route that the audit calls guarded runs once for two
requests with one key, one that it calls unguarded or exempt runs twice, one that it calls broken never runs.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import APIRouter, FastAPI
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix

from samekey import ConfigurationError, Idempotency, ietf, stripe_v2
from samekey.asgi import IdempotencyMiddleware
from samekey.ops.coverage import How, RouteCoverage, coverage, is_allowed
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.ops.test_ledger_cli import DOCS, check_page, run


class Shop:
    """Handlers that count, and what guards them."""

    def __init__(self, url: str, **policy: Any) -> None:
        self.idempotency = Idempotency(url, policy=ietf(**policy))
        self.runs = 0
        self.options: dict[str, Any] = {"idempotency": self.idempotency, "tenant": single_tenant()}
        self.plain = self.handler()
        self.decorated = self.idempotency.leased(self.handler())
        self.exempt = self.idempotency.exempt(self.handler())

    def handler(self) -> Callable[..., Any]:
        async def handle(request: Request) -> Response:
            return self.run()

        return handle

    def run(self) -> Response:
        self.runs += 1
        return JSONResponse({"run": self.runs})

    def view(self) -> Callable[..., Any]:
        def view(**_: Any) -> Any:
            self.runs += 1
            return {"run": self.runs}

        return view

    def middleware(self, **options: Any) -> Middleware:
        return Middleware(IdempotencyMiddleware, **{**self.options, **options})

    def wrap(self, app: Any, **options: Any) -> Any:
        return IdempotencyMiddleware(app, **{**self.options, **options})

    def wsgi(self, app: Any, **options: Any) -> Any:
        return WsgiMiddleware(app, **{**self.options, **options})


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    made = Shop(sqlite_url)
    yield made
    made.idempotency.close()


def told(app: Any) -> dict[str, str]:
    """By method and path, what the audit says."""
    return {f"{route.method} {route.path}": route.describe() for route in coverage(app)}


def hows(app: Any) -> dict[str, str]:
    return {f"{route.method} {route.path}": str(route.how) for route in coverage(app)}


def ask(app: Any, method: str, path: str, key: str) -> int:
    """The status of one request with a key; 500 where the application raises."""
    headers = {"Idempotency-Key": key}
    if isinstance(app, flask.Flask):
        app.testing = app.config["PROPAGATE_EXCEPTIONS"] = False
        return app.test_client().open(path, method=method, headers=headers).status_code
    client = TestClient(app, raise_server_exceptions=False)
    return client.request(method, path, headers=headers).status_code


TURNS = itertools.count()
"""Each application gets keys of its own."""


def confirm(shop: Shop, app: Any, samples: dict[str, str] | None = None) -> dict[str, str]:
    """Asks every route twice and holds what happened against what the audit says."""
    found, turn = hows(app), next(TURNS)
    for number, (route, how) in enumerate(found.items()):
        method, path = route.split(" ")
        before = shop.runs
        for _ in range(2):
            ask(app, method, (samples or {}).get(path, path), f"key-{turn}-{number}")
        expected = {"handler": 1, "edge": 1, "broken": 0}.get(how, 2)
        assert shop.runs - before == expected, (route, how)
    return found


# ------------------------------------------------------------------ Starlette


def test_starlette(shop: Shop) -> None:
    app = Starlette(
        routes=[
            Route("/decorated", shop.decorated, methods=["GET", "POST", "PATCH"]),
            Route("/plain", shop.plain, methods=["POST", "PUT", "DELETE"]),
            Route("/exempt", shop.exempt, methods=["POST"]),
            Route("/exempt-by-path", shop.plain, methods=["POST"]),
            Route("/required", shop.plain, methods=["POST"]),
            Route("/read", shop.plain, methods=["GET"]),
            WebSocketRoute("/socket", shop.plain),
            Mount("/files", StaticFiles(directory=Path(__file__).parent)),
        ],
        middleware=[shop.middleware(routes={"/exempt-by-path": "exempt", "/required": "required"})],
    )
    assert told(app) == {
        "PATCH /decorated": "leased, required",
        "POST /decorated": "leased, required",
        "POST /plain": "at the edge (leased), optional",
        "PUT /plain": "not guarded by method",
        "DELETE /plain": "not guarded by method",
        "POST /exempt": "exempt",
        "POST /exempt-by-path": "exempt",
        "POST /required": "at the edge (leased), required",
    }
    confirm(shop, app)
    assert all(route.ok for route in coverage(app))


def test_modes_and_requirement(shop: Shop) -> None:
    async def ride(op: Any, input: Any) -> Any: ...

    idempotency = shop.idempotency
    handlers = {
        "atomic": idempotency.atomic(shop.handler()),
        "optional": idempotency.leased(required=False)(shop.handler()),
        "repeatable": idempotency.leased(repeatable=True)(shop.handler()),
        "deferred": idempotency.deferred(shop.handler()),
        "phased": idempotency.phased("ride")(ride),
    }
    routes = [Route(f"/{name}", handler, methods=["POST"]) for name, handler in handlers.items()]
    app = Starlette(routes=routes, middleware=[shop.middleware()])
    assert told(app) == {
        "POST /atomic": "atomic, required",
        "POST /optional": "leased, optional",
        "POST /repeatable": "repeatable, required",
        "POST /deferred": "deferred, required",
        "POST /phased": "phased, required",
    }
    assert str(coverage(app)[0]) == "POST /atomic: atomic, required"


def test_nothing_guards(shop: Shop) -> None:
    app = Starlette(
        routes=[
            Route("/plain", shop.plain, methods=["POST", "DELETE"]),
            Route("/decorated", shop.decorated, methods=["POST"]),
            Route("/exempt", shop.exempt, methods=["POST"]),
        ]
    )
    assert confirm(shop, app) == {
        "POST /plain": "unguarded",
        "DELETE /plain": "method",
        "POST /decorated": "broken",
        "POST /exempt": "exempt",
    }
    assert [route.path for route in coverage(app) if not route.ok] == ["/decorated", "/plain"]
    assert "no IdempotencyMiddleware is around it" in told(app)["POST /plain"]


def test_undecorated_routes_may_pass(shop: Shop) -> None:
    routes = [Route("/plain", shop.plain, methods=["POST"]), Route("/d", shop.decorated, methods=["POST"])]
    app = Starlette(routes=routes, middleware=[shop.middleware(undecorated="pass")])
    assert confirm(shop, app) == {"POST /plain": "unguarded", "POST /d": "handler"}
    assert 'undecorated="pass"' in told(app)["POST /plain"]


def test_a_decorated_method_that_the_policy_leaves_out_fails(shop: Shop) -> None:
    app = Starlette(
        routes=[Route("/d", shop.decorated, methods=["PUT"])],
        middleware=[shop.middleware()],
    )
    assert hows(app) == {"PUT /d": "broken"}
    assert "is decorated, but PUT is not guarded (PATCH, POST is)" in told(app)["PUT /d"]


def test_a_route_that_calls_the_function_past_its_decorator_is_broken(shop: Shop) -> None:
    app = FastAPI(openapi_url=None)

    @shop.idempotency.leased
    @app.post("/pay")
    async def pay() -> Any:
        return {"run": shop.run()}

    app.add_middleware(IdempotencyMiddleware, undecorated="pass", **shop.options)
    assert hows(app) == {"POST /pay": "broken"}
    assert "wrong order" in told(app)["POST /pay"]


def test_an_exempt_path_with_a_decorated_handler_is_broken(shop: Shop) -> None:
    app = Starlette(
        routes=[Route("/d", shop.decorated, methods=["POST"])],
        middleware=[shop.middleware(routes={"/d": "exempt"})],
    )
    assert confirm(shop, app) == {"POST /d": "broken"}
    assert "decorated, but routes={'/d': 'exempt'}" in told(app)["POST /d"]


def test_the_methods_of_another_policy(sqlite_url: str) -> None:
    shop = Shop(sqlite_url)
    other = Idempotency(sqlite_url, policy=stripe_v2())
    app = Starlette(
        routes=[Route("/x", shop.plain, methods=["POST", "PATCH", "DELETE", "LINK"])],
        middleware=[shop.middleware(idempotency=other)],
    )
    assert hows(app) == {"POST /x": "edge", "DELETE /x": "edge", "PATCH /x": "method", "LINK /x": "method"}
    for one in (shop.idempotency, other):
        one.close()


def test_views_in_classes_and_partials(shop: Shop) -> None:
    class Payments(HTTPEndpoint):
        @shop.idempotency.leased
        async def post(self, request: Request) -> Response:
            return shop.run()

        async def patch(self, request: Request) -> Response:
            return shop.run()

        async def get(self, request: Request) -> Response:
            return shop.run()

    app = Starlette(
        routes=[
            Route("/payments", Payments),
            Route("/partial", functools.partial(shop.decorated), methods=["POST"]),
        ],
        middleware=[shop.middleware()],
    )
    assert confirm(shop, app) == {
        "POST /payments": "handler",
        "PATCH /payments": "edge",
        "POST /partial": "handler",
    }


def test_a_single_path_of_a_template_can_be_exempt(shop: Shop) -> None:
    routes = [Route("/hooks/{name}", shop.plain, methods=["POST"])]
    app = Starlette(routes=routes, middleware=[shop.middleware(routes={"/hooks/acme": "exempt"})])
    assert confirm(shop, app, {"/hooks/{name}": "/hooks/other"}) == {
        "POST /hooks/acme": "exempt",
        "POST /hooks/{name}": "edge",
    }


def test_templates_with_converters_and_earlier_routes(shop: Shop) -> None:
    app = Starlette(
        routes=[
            Route("/{first}", shop.decorated, methods=["POST"]),
            Route("/shadowed", shop.exempt, methods=["POST"]),
            Route("/a/{n:int}/{f:float}/{u:uuid}/{p:path}", shop.decorated, methods=["POST"]),
        ],
        middleware=[shop.middleware()],
    )
    found = hows(app)
    assert found["POST /a/{n:int}/{f:float}/{u:uuid}/{p:path}"] == "handler"
    assert found["POST /shadowed"] == "exempt"


# ------------------------------------------------------------------ what is mounted


def test_mounted_applications_behind_one_middleware(shop: Shop) -> None:
    inner = FastAPI(openapi_url=None)
    inner.post("/decorated")(shop.decorated)
    inner.post("/plain")(shop.plain)
    app = Starlette(
        routes=[
            Mount("/api", inner),
            Mount("/routes", routes=[Mount("/deep", routes=[Route("/x", shop.decorated, methods=["POST"])])]),
            Mount("/router", Router(routes=[Route("/x", shop.exempt, methods=["POST"])])),
            Mount("/bare", Bare(shop)),
        ],
        middleware=[shop.middleware()],
    )
    assert confirm(shop, app, {"/bare/{path:path}": "/bare/x"}) == {
        "POST /api/decorated": "handler",
        "POST /api/plain": "edge",
        "POST /routes/deep/x": "handler",
        "POST /router/x": "exempt",
        "PATCH /bare/{path:path}": "edge",
        "POST /bare/{path:path}": "edge",
        "PUT /bare/{path:path}": "method",
        "DELETE /bare/{path:path}": "method",
    }


class Bare:
    """An application that nobody can look into."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._shop.run()(scope, receive, send)


def test_a_middleware_inside_what_is_mounted(shop: Shop) -> None:
    """The audit says what the middleware does, whether or not that is what was wanted."""
    routes = [
        Route("/decorated", shop.decorated, methods=["POST"]),
        Route("/plain", shop.plain, methods=["POST"]),
    ]
    inner = Starlette(routes=routes)
    for app in (
        Starlette(routes=[Mount("/api", Starlette(routes=routes, middleware=[shop.middleware()]))]),
        Starlette(routes=[Mount("/api", shop.wrap(inner)), Route("/out", shop.plain, methods=["POST"])]),
        Starlette(routes=[Mount("/api", inner, middleware=[shop.middleware()])]),
        Starlette(routes=[Route("/r", shop.plain, methods=["POST"], middleware=[shop.middleware()])]),
        Starlette(routes=[Mount("/api", Router(routes=routes, middleware=[shop.middleware()]))]),
    ):
        confirm(shop, app)


def test_hosts(shop: Shop) -> None:
    inner = Starlette(routes=[Route("/x", shop.decorated, methods=["POST"])])
    app = Starlette(routes=[Host("api.{tenant}.example", inner)], middleware=[shop.middleware()])
    assert hows(app) == {"POST /x": "handler"}


def test_two_middlewares_that_claim_are_broken(shop: Shop) -> None:
    routes = [Route("/x", shop.plain, methods=["POST"]), Route("/d", shop.decorated, methods=["POST"])]
    app = Starlette(routes=routes, middleware=[shop.middleware(), shop.middleware()])
    assert hows(app) == {"POST /x": "broken", "POST /d": "broken"}
    assert "two IdempotencyMiddlewares" in told(app)["POST /x"]
    before = shop.runs
    assert {ask(app, "POST", "/x", "k") for _ in range(2)} == {500} and shop.runs == before


def test_wrapped_applications(shop: Shop) -> None:
    class Proxy:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, *arguments: Any) -> None:
            await self.app(*arguments)

    inner = Starlette(
        routes=[
            Route("/decorated", shop.decorated, methods=["POST"]),
            Route("/plain", shop.plain, methods=["POST"]),
            Route("/exempt", shop.exempt, methods=["POST"]),
        ]
    )
    good = {"POST /decorated": "handler", "POST /plain": "edge", "POST /exempt": "exempt"}
    assert confirm(shop, shop.wrap(inner)) == good
    assert confirm(shop, Proxy(shop.wrap(inner))) == good
    # Something between the middleware and the router: whatever it can see, the audit says what happens.
    confirm(shop, shop.wrap(Proxy(inner)))
    confirm(shop, shop.wrap(Proxy(inner), undecorated="pass"))
    partial: Any = functools.partial(IdempotencyMiddleware, **shop.options)
    assert confirm(shop, Starlette(routes=inner.routes, middleware=[Middleware(partial)])) == good


def test_a_bare_application_may_take_anything(shop: Shop) -> None:
    assert set(hows(Bare(shop)).values()) == {"unguarded", "method"}
    guarded = coverage(shop.wrap(Bare(shop)))
    assert {route.how for route in guarded} == {How.EDGE, How.METHOD}
    assert guarded[0].path == "/{path:path}" and guarded[0].handler.endswith("Bare")
    with pytest.raises(ConfigurationError, match="A str is no ASGI or WSGI application"):
        coverage("app")


# ------------------------------------------------------------------ FastAPI


def test_fastapi_with_included_routers(shop: Shop) -> None:
    app = FastAPI(openapi_url=None)
    outer, inner = APIRouter(prefix="/outer"), APIRouter(prefix="/inner")

    @inner.post("/pay/{number}")
    @shop.idempotency.leased(required=False)
    async def pay(number: int) -> Any:
        return {"run": shop.run()}

    inner.patch("/plain")(shop.plain)
    outer.include_router(inner)
    outer.post("/exempt")(shop.exempt)
    app.include_router(outer, prefix="/v1")
    app.delete("/things")(shop.plain)
    app.add_middleware(IdempotencyMiddleware, **shop.options)
    assert told(app) == {
        "POST /v1/outer/inner/pay/{number}": "leased, optional",
        "PATCH /v1/outer/inner/plain": "at the edge (leased), optional",
        "POST /v1/outer/exempt": "exempt",
        "DELETE /things": "not guarded by method",
    }
    by_path = {route.path: route for route in coverage(app)}
    assert by_path["/v1/outer/inner/pay/{number}"].handler.endswith("pay")


# ------------------------------------------------------------------ Flask


def flask_app(shop: Shop) -> flask.Flask:
    app = flask.Flask("shop")
    leased = shop.idempotency.leased

    class Payments(MethodView):
        @leased
        def post(self) -> Any:
            return shop.view()()

        def patch(self) -> Any:
            return shop.view()()

    app.add_url_rule("/class", view_func=Payments.as_view("payments"))
    app.add_url_rule("/plain", "plain", shop.view(), methods=["POST", "PUT"])
    app.add_url_rule("/exempt", "exempt", shop.idempotency.exempt(shop.view()), methods=["POST"])
    blueprint = flask.Blueprint("v1", __name__, url_prefix="/v1")
    blueprint.add_url_rule(TEMPLATE, "pay", leased(shop.view()), methods=["POST"])
    app.register_blueprint(blueprint)
    return app


TEMPLATE = "/<int:n>/<float:f>/<uuid:u>/<any(x,y):k>/<path:p>"
SAMPLE = {f"/v1{TEMPLATE}": "/v1/1/1.5/8e03978e-40d5-43dd-bc93-6894a57f9324/y/a/b"}


def test_flask(shop: Shop) -> None:
    app = flask_app(shop)
    app.wsgi_app = shop.wsgi(app.wsgi_app)  # type: ignore[method-assign]
    assert confirm(shop, app, SAMPLE) == {
        "POST /class": "handler",
        "PATCH /class": "edge",
        "POST /plain": "edge",
        "PUT /plain": "method",
        "POST /exempt": "exempt",
        f"POST /v1{TEMPLATE}": "handler",
    }


def test_flask_without_a_guard(shop: Shop) -> None:
    app = flask_app(shop)
    assert set(confirm(shop, app, SAMPLE).values()) == {"broken", "unguarded", "method", "exempt"}


def test_flask_behind_other_middleware(shop: Shop) -> None:
    app = flask_app(shop)
    app.wsgi_app = ProxyFix(shop.wsgi(app.wsgi_app))  # type: ignore[method-assign]
    assert hows(app)["POST /class"] == "handler"
    app = flask_app(shop)
    app.wsgi_app = shop.wsgi(ProxyFix(app.wsgi_app))  # type: ignore[method-assign]
    confirm(shop, app, SAMPLE)
    app = flask_app(shop)
    assert hows(shop.wsgi(app))["POST /class"] == "handler"
    assert hows(shop.wsgi(app.wsgi_app))["POST /class"] == "handler"


def test_flask_hosts(shop: Shop) -> None:
    app = flask.Flask("shop", subdomain_matching=True)
    app.config["SERVER_NAME"] = "shop.example"
    app.add_url_rule("/pay", "pay", shop.view(), methods=["POST"], subdomain="api")
    app.wsgi_app = shop.wsgi(app.wsgi_app)  # type: ignore[method-assign]
    assert hows(app) == {"POST /pay": "edge"}


class Bridge:
    """As far as the audit goes, what runs a WSGI application under ASGI."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError


def test_flask_dispatched_and_mounted(shop: Shop) -> None:
    front, api = flask.Flask("front"), flask_app(shop)
    front.add_url_rule("/front", "front", shop.view(), methods=["POST"])
    api.wsgi_app = shop.wsgi(api.wsgi_app)  # type: ignore[method-assign]
    front.wsgi_app = DispatcherMiddleware(front.wsgi_app, {"/api": api})  # type: ignore[method-assign]
    found = hows(front)
    paths = ("POST /front", "POST /api/class", "POST /api/plain")
    assert [found[path] for path in paths] == ["unguarded", "handler", "edge"]
    app = Starlette(routes=[Mount("/old", Bridge(flask_app(shop)))], middleware=[shop.middleware()])
    found = hows(app)
    # The ASGI middleware cannot see Flask's decorators.
    assert (found["POST /old/class"], found["POST /old/plain"]) == ("broken", "edge")


# ------------------------------------------------------------------ the allow-list and the command

WEB = """
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

idempotency = Idempotency("sqlite:///:memory:")

@idempotency.leased
async def pay(request): return Response()
async def login(request): return Response()

def create_app(undecorated="pass"):
    routes = [Route("/pay", pay, methods=["POST"]), Route("/login", login, methods=["POST", "PUT"])]
    app = Starlette(routes=routes)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant(),
                       undecorated=undecorated)
    return app

app, guarded = create_app(), create_app("guard")
number = 7
def broken(): raise OSError("no network")
"""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"web_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(WEB)
    (tmp_path / f"{name}_bad.py").write_text("import nothing_of_this_name")
    (tmp_path / f"{name}_worse.py").write_text("1 / 0")
    return name


def test_the_command(web: str) -> None:
    result = run("coverage", f"{web}:app")
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()[:4]] == [
        ["method", "path"],
        ["POST", "/login"],
        ["PUT", "/login"],
        ["POST", "/pay"],
    ]
    assert result.stdout.endswith("1 of 3 routes may run twice, or not at all.\n")
    for target in (f"{web}:guarded", f"{web}:create_app()"):
        result = run("coverage", target, SAMEKEY_ALLOW="/login")
        assert result.exit_code == 0 and result.stdout.endswith(
            "All 3 state-changing routes are accounted for.\n"
        )
    assert run("coverage", f"{web}:guarded", "--all-methods").exit_code == 1
    required = run("coverage", f"{web}:guarded", "--required")
    assert required.exit_code == 1 and required.stdout.endswith("1 of 3 routes also run without a key.\n")
    assert run("coverage", f"{web}:guarded", "--required", "--allow", "/login").exit_code == 0
    assert run("coverage", SAMEKEY_WEB_APP=f"{web}:guarded").exit_code == 0


def test_the_allow_list(web: str) -> None:
    for allowed in ("/login", "/log*", "POST:/login"):
        result = run("coverage", f"{web}:app", "--allow", allowed)
        assert result.exit_code == 0 and "allowed (unguarded)" in result.stdout
    assert run("coverage", f"{web}:app", "--allow", "PUT:/login").exit_code == 1
    stale = run("coverage", f"{web}:guarded", "--allow", "/gone", "--allow", "/pay")
    assert stale.exit_code == 0 and stale.stderr == "samekey: --allow /gone names no route; remove it.\n"
    assert run("coverage", f"{web}:app", SAMEKEY_ALLOW="/other POST:/login").exit_code == 0
    route = RouteCoverage("POST", "/a/[x]", "h", How.UNGUARDED)
    assert is_allowed(route, ["/a/[x]"]) and not is_allowed(route, ["/a"])


def test_json(web: str) -> None:
    result = run("coverage", f"{web}:app", "--json")
    content = json.loads(result.stdout)
    assert (result.exit_code, content["ok"]) == (1, False)
    assert content["routes"][0] == {
        "method": "POST",
        "path": "/login",
        "handler": f"{web}.login",
        "how": "unguarded",
        "mode": None,
        "required": None,
        "required_from": None,
        "why": 'it has no decorator, and the middleware has undecorated="pass".',
        "allowed": False,
        "ok": False,
    }
    assert json.loads(run("coverage", f"{web}:guarded", SAMEKEY_JSON="1").stdout)["ok"] is True


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nothing_here:app", "There is no module 'nothing_here' here."),
        ("{web}", "names nothing: write module:name"),
        ("{web}:nothing", "has no 'nothing'"),
        ("{web}:number", "A int is no ASGI or WSGI application."),
        ("{web}:broken()", "failed: OSError: no network."),
        ("{web}_bad:app", "could not be imported: No module named 'nothing_of_this_name'."),
        ("{web}_worse:app", "could not be imported: ZeroDivisionError: division by zero."),
    ],
)
@pytest.mark.parametrize("command", ["coverage", "spec"])
def test_what_cannot_be_looked_at(web: str, target: str, sentence: str, command: str) -> None:
    result = run(command, target.format(web=web))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("samekey: ") and sentence in result.stderr


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_page("coverage.md", tmp_path, monkeypatch) == 2
    names: dict[str, Any] = {}
    exec((DOCS / "coverage.md").read_text().rpartition("```python\n")[2].partition("```")[0], names)
    names["test_every_route_is_guarded"]()
