"""What is decorated and would run past its guard is refused in a sentence, however an application starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.errors import ConfigurationError
from samekey.flask import Samekey
from samekey.tenants import single_tenant

KEY = {"Idempotency-Key": "k"}


@pytest.fixture
def idempotency(sqlite_url: str) -> Iterator[Idempotency]:
    made = Idempotency(sqlite_url)
    yield made
    made.close()


def behind(idempotency: Idempotency, *routes: Route, **options: Any) -> Starlette:
    ours = Middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant(), **options)
    return Starlette(routes=list(routes), middleware=[ours])


def test_a_test_client_is_told_that_the_application_does_not_start(idempotency: Idempotency) -> None:
    """Starlette's goes by the exception: without one it would wait for ever when it is closed."""

    @idempotency.leased
    async def pay(_: Request) -> JSONResponse:
        return JSONResponse({})

    app = behind(idempotency, Route("/pay", pay, methods=["POST"]), routes={"/pya": "exempt"})
    with pytest.raises(ConfigurationError, match="no such route"), TestClient(app):
        pass


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return inner


@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_a_decorator_that_hides_ours_is_found_at_the_start(idempotency: Idempotency, mode: str) -> None:
    async def pay(_: Request) -> JSONResponse:
        return JSONResponse({})

    pay = getattr(idempotency, mode)(pay)
    app = behind(idempotency, Route("/pay", hiding(pay), methods=["POST"]))
    with pytest.raises(ConfigurationError, match="hides it, for want of"), TestClient(app):
        pass


def test_a_wrapper_whose_code_was_generated_is_seen_too(idempotency: Idempotency) -> None:
    """As packages for dependency injection write them."""

    @idempotency.atomic
    async def pay(_: Request) -> JSONResponse:
        return JSONResponse({})

    names: dict[str, Any] = {"pay": pay, "__name__": __name__}
    exec("async def injected(request):\n    return await pay(request)\n", names)
    app = behind(idempotency, Route("/pay", names["injected"], methods=["POST"]))
    with pytest.raises(ConfigurationError, match="hides it, for want of"), TestClient(app):
        pass


def test_where_only_decorated_functions_are_guarded_a_wrapper_hides_nothing(idempotency: Idempotency) -> None:
    runs: list[int] = []

    @idempotency.leased
    async def pay(_: Request) -> JSONResponse:
        runs.append(1)
        return JSONResponse({}, status_code=201)

    app = behind(idempotency, Route("/pay", hiding(pay), methods=["POST"]), undecorated="pass")
    with TestClient(app) as client:
        answers = [client.post("/pay", headers=KEY) for _ in range(2)]
    assert [one.status_code for one in answers] == [201, 201] and len(runs) == 1


def test_a_handler_may_call_guarded_functions_of_its_own_scope(idempotency: Idempotency) -> None:
    runs: list[int] = []

    @idempotency.leased
    async def part(_: Request) -> None:
        runs.append(1)

    async def pay(request: Request) -> JSONResponse:
        await part(request)
        return JSONResponse({}, status_code=201)

    with TestClient(behind(idempotency, Route("/pay", pay, methods=["POST"]))) as client:
        answers = [client.post("/pay", headers=KEY) for _ in range(2)]
    assert [one.status_code for one in answers] == [201, 201] and len(runs) == 1


def test_a_method_that_another_class_guards_is_not_past_its_guard_here(idempotency: Idempotency) -> None:
    class Base(HTTPEndpoint):
        async def post(self, _: Request) -> JSONResponse:
            return JSONResponse({}, status_code=201)

    class Guarded(Base):
        post = idempotency.leased(Base.post)

    class Plain(Base):
        pass

    app = behind(idempotency, Route("/guarded", Guarded), Route("/plain", Plain))
    with TestClient(app) as client:
        assert client.post("/guarded").status_code == 400  # a key is required
        assert client.post("/plain").status_code == 201
        sent = [(path, {"Idempotency-Key": path}) for path in ("/guarded", "/plain") for _ in range(2)]
        answers = [client.post(path, headers=key) for path, key in sent]
    assert [one.status_code for one in answers] == [201] * 4
    assert [one.headers.get("Idempotent-Replayed") for one in answers] == [None, "true"] * 2


# ------------------------------------------------------------------ methods that are not guarded


def test_a_decorated_put_with_a_key_is_refused_where_nobody_says_that_the_application_starts(
    idempotency: Idempotency, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []
    app = Flask(__name__)

    @app.put("/flask")
    @idempotency.leased
    def of_flask() -> dict[str, int]:
        runs.append("flask")
        return {}

    @app.get("/flask")
    @idempotency.leased
    def read() -> dict[str, int]:
        return {"read": 1}

    Samekey(idempotency, app, tenant=single_tenant())
    client = app.test_client()
    assert [client.put("/flask", headers=KEY).status_code for _ in range(2)] == [500, 500]
    assert "guard this method in the policy" in caplog.text
    assert client.get("/flask", headers=KEY).json == {"read": 1}

    fast = FastAPI()

    @fast.put("/fast")
    @idempotency.leased
    async def of_fastapi() -> dict[str, int]:
        runs.append("fastapi")
        return {}

    fast.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="guard this method in the policy"):
            TestClient(fast).put("/fast", headers=KEY)  # not entered: no lifespan
    assert runs == []
