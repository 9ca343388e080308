"""The shape of refusals in each profile (D10, D14), and what must be refused whatever else holds (D9)."""

from __future__ import annotations

from typing import Any

import pytest

from samekey.asgi import IdempotencyMiddleware
from samekey.core.problem import CODES
from samekey.errors import ConfigurationError
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import Kind, Setup, tenant_of
from tests.edges.callers import LoopThread, call_asgi, call_wsgi
from tests.edges.conftest import Build
from tests.edges.scenarios import Ask
from tests.edges.test_duplicates import Held
from tests.edges.world import Stores, World

BOTH_EDGES = pytest.mark.parametrize(("kind", "mode"), [("fastapi", "leased"), ("wsgi", "edge")])


@BOTH_EDGES
def test_problem_details(kind: Kind, mode: str, builder: Build, stores: Stores) -> None:
    store = stores.get(documentation="https://docs.example/idempotency")
    held = Held(builder, store, kind, mode)
    answers = {
        "in_progress": (409, "A request is outstanding for this Idempotency-Key", held.ask()),
        "reused": (422, "Idempotency-Key is already used", held.ask(body=b"{}")),
        "malformed": (400, "Idempotency-Key is malformed", held.ask(keys=(b"a,b",))),
    }
    if mode == "leased":
        answers["missing"] = (400, "Idempotency-Key is missing", held.ask(keys=()))
    held.let_go()
    for code, (status, title, got) in answers.items():
        assert got.header("content-type") == "application/problem+json"
        assert got.header("content-language") == "en" and got.header("cache-control") == "no-store"
        assert '<https://docs.example/idempotency>; rel="describedby"' in got.all("link")
        problem = got.json()
        assert (got.status, problem["status"], problem["title"]) == (status, status, title)
        assert problem["code"] == code in CODES and problem["type"].endswith(code) and problem["detail"]
        assert b"key-1" not in got.body, "a key never stands in an answer"


@BOTH_EDGES
@pytest.mark.parametrize("profile", ["stripe", "stripe_v2"])
def test_the_envelope_of_stripe(kind: Kind, mode: str, profile: str, builder: Build, stores: Stores) -> None:
    held = Held(builder, stores.get(profile), kind, mode)
    running, reused = held.ask(), held.ask(body=b"{}")
    held.let_go()
    assert running.status == 409 and running.header("content-type") == "application/json"
    error = running.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "idempotency_key_in_use")
    assert reused.status == 400 and reused.json()["error"]["type"] == "idempotency_error"
    assert "same parameters" in reused.json()["error"]["message"]


@pytest.mark.parametrize(
    "damage", ["state = 'from_the_future'", "answer_version = 99", "answer_headers = 'x'"]
)
@pytest.mark.parametrize(("kind", "mode"), [("starlette", "atomic"), ("flask", "leased"), ("asgi", "edge")])
def test_a_record_that_cannot_be_read(
    kind: Kind, mode: str, damage: str, builder: Build, stores: Stores
) -> None:
    world, store = World(), stores.get()
    client = builder(kind, store, world)
    ask = Ask().request(f"/{mode}", world.name)
    client.send(ask)
    store.damage(f"update {{keys}} set {damage} where tenant = ?", f"={world.name}-alice")
    got = client.send(ask)
    assert (got.status, got.code, world.runs) == (500, "result_unavailable", 1)


def test_a_bare_asgi_application_with_decorated_functions(stores: Stores, loop: LoopThread) -> None:
    store, world = stores.get(), World()

    @store.idempotency.leased
    async def pay() -> bytes:
        return b"run %d" % world.begin()[0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = await pay() if scope["path"] == "/pay" else b"free"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    guard = IdempotencyMiddleware(
        app, idempotency=store.idempotency, tenant=tenant_of, undecorated="pass"
    ).__call__
    ask = Ask().request("/pay", world.name)
    first, again = loop.run(call_asgi(guard, ask)), loop.run(call_asgi(guard, ask))
    assert first.body == b"run 1" and again.replayed and again.body == b"run 1"
    assert again.error is None, "our own sign that the answer is decided is no failure"
    assert loop.run(call_asgi(guard, Ask(keys=()).request("/pay", world.name))).code == "missing"
    assert loop.run(call_asgi(guard, Ask().request("/free", world.name))).body == b"free"


def test_an_application_that_says_nothing(stores: Stores, loop: LoopThread) -> None:
    store, world = stores.get(), World()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        return None

    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def backwards(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    for number, app in enumerate((silent, half, backwards)):
        guard = IdempotencyMiddleware(app, idempotency=store.idempotency, tenant=tenant_of).__call__
        got = loop.run(call_asgi(guard, Ask(tenant=f"t{number}").request("/x", world.name)))
        assert got.code == "outcome_unknown" and isinstance(got.error, RuntimeError)
        assert store.records(f"{world.name}-t{number}") == [("unknown", 1)]


def test_an_environ_beyond_latin_1(stores: Stores) -> None:
    """No server hands it over, and still it is no 500."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise AssertionError("the handler ran")

    guard = WsgiMiddleware(app, idempotency=stores.get().idempotency, tenant=tenant_of)
    for key in ("\N{SNOWMAN}", "a\ud800b"):

        def environ_with_key(environ: Any, start_response: Any, key: str = key) -> Any:
            return guard({**environ, "HTTP_IDEMPOTENCY_KEY": key}, start_response)

        got = call_wsgi(environ_with_key, Ask().request("/x", "w"))
        assert (got.status, got.code) == (400, "malformed")


@pytest.mark.parametrize("middleware", [IdempotencyMiddleware, WsgiMiddleware])
def test_wrong_settings_are_refused_at_start_up(middleware: Any, stores: Stores) -> None:
    idempotency = stores.get().idempotency
    for wrong, sentence in (
        ({"tenant": None}, "tenant must be a function"),
        ({"tenant": tenant_of, "routes": {"/x": "sometimes"}}, "routes"),
        ({"tenant": tenant_of, "undecorated": "perhaps"}, "undecorated"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            middleware(lambda *_: None, idempotency=idempotency, **wrong)
    with pytest.raises(TypeError, match="tenant"):
        middleware(lambda *_: None, idempotency=idempotency)


def test_exempt_and_guarded_at_once(builder: Build, stores: Stores) -> None:

    for kind in ("starlette", "flask"):
        world = World()
        client = builder(kind, stores.get(), world, Setup(routes={"/leased": "exempt"}))
        got = client.send(Ask().request("/leased", world.name))
        assert isinstance(got.error, ConfigurationError) and "exempt" in str(got.error)
        assert world.runs == 0
