"""The plugin for Litestar, through Litestar's own test client."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from litestar import Controller, Litestar, Request, Response, asgi, delete, post
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.dto import DataclassDTO, DTOConfig
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.params import FromPath, JSONBody
from litestar.testing import TestClient
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from samekey import ConfigurationError, Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.litestar import SamekeyPlugin
from samekey.ops.coverage import coverage
from samekey.ops.spec_openapi import openapi
from samekey.tenants import by_user, single_tenant


@dataclass
class Order:
    sku: str
    quantity: int = 1
    secret: str = "kept inside"


class OrderDTO(DataclassDTO[Order]):
    config = DTOConfig(exclude={"secret"})


@pytest.fixture
def idempotency(tmp_path: Path) -> Any:
    made = Idempotency(f"sqlite:///{tmp_path / 'litestar.db'}")
    yield made
    made.close()


class Served:
    """An application of these handlers, and what was run."""

    def __init__(self, idempotency: Idempotency, *handlers: Any, **options: Any) -> None:
        guard = {"tenant": single_tenant(), **options.pop("guard", {})}
        plugin = SamekeyPlugin(idempotency, **guard)
        self.app = Litestar(list(handlers), plugins=[plugin], openapi_config=None, **options)

    def send(self, path: str, *bodies: Any, key: str = "k", **headers: str) -> list[Any]:
        """One request for each body, all with one key."""
        with TestClient(self.app) as client:
            sent = {"Idempotency-Key": key, **headers}
            return [client.post(path, json=body, headers=sent) for body in bodies]


ORDER = {"sku": "tea", "quantity": 2}


def statuses(answers: list[Any]) -> list[tuple[int, bool]]:
    return [(one.status_code, one.headers.get("idempotent-replayed") == "true") for one in answers]


def test_what_litestar_refuses_can_be_corrected_under_the_same_key(idempotency: Idempotency) -> None:
    @post("/orders")
    @idempotency.leased
    async def place(data: JSONBody[Order]) -> Order:
        return data

    answers = Served(idempotency, place).send("/orders", {"quantity": "x"}, ORDER, ORDER)
    assert statuses(answers) == [(400, False), (201, False), (201, True)]


def test_a_dto_shapes_the_first_answer_and_no_replay(idempotency: Idempotency) -> None:
    """A replay is the first answer, byte for byte; the DTO cannot even see it."""

    @post("/orders", dto=OrderDTO, return_dto=OrderDTO)
    @idempotency.leased
    async def place(data: JSONBody[Order]) -> Order:
        return data

    first, again = Served(idempotency, place).send("/orders", ORDER, ORDER)
    assert (first.json(), again.content) == (ORDER, first.content)
    assert again.headers["idempotent-replayed"] == "true"


def test_guards_and_dependencies_come_before_the_claim_at_every_retry(idempotency: Idempotency) -> None:
    seen: list[str] = []

    def allowed(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        seen.append("guard")
        if connection.headers.get("x-refused"):
            raise NotAuthorizedException

    async def session() -> AsyncGenerator[str, None]:
        seen.append("opened")
        try:
            yield "session"
        except BaseException:
            seen.append("failed")
            raise
        seen.append("closed")

    @post("/orders", guards=[allowed], dependencies={"session": Provide(session)})
    @idempotency.leased
    async def place(session: NamedDependency[str]) -> str:
        seen.append("handler")
        return session

    served = Served(idempotency, place)
    assert statuses(served.send("/orders", None, None)) == [(201, False), (201, True)]
    assert seen == ["guard", "opened", "handler", "closed", "guard", "opened", "closed"]
    refused = served.send("/orders", None, **{"x-refused": "yes"})
    assert statuses(refused) == [(401, False)]  # a caller who may not order gets no replay either


class ByHeader(AbstractAuthenticationMiddleware):
    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        user = connection.headers.get("x-user")
        if user is None:
            raise NotAuthorizedException
        return AuthenticationResult(user=user, auth=None)


def test_the_tenant_is_whoever_litestars_own_authentication_says(idempotency: Idempotency) -> None:
    @post("/orders")
    @idempotency.leased
    async def place() -> str:
        return str(current_operation().id)

    served = Served(idempotency, place, middleware=[ByHeader], guard={"tenant": by_user})
    (nobody,) = served.send("/orders", None)
    ann, bob = (served.send("/orders", None, **{"x-user": name})[0] for name in ("ann", "bob"))
    assert nobody.status_code == 401
    assert ann.text != bob.text
    with TestClient(served.app) as client:
        status = f"/idempotency/{ann.text}"
        assert client.get(status, headers={"x-user": "ann"}).json()["state"] == "completed"
        assert client.get(status, headers={"x-user": "bob"}).status_code == 404
        assert client.get(status).status_code == 401
        assert client.get("/idempotency/nonsense", headers={"x-user": "ann"}).status_code == 404


def test_the_exceptions_of_litestar_are_answers(idempotency: Idempotency) -> None:
    runs: list[str] = []

    @post("/orders/{why:str}")
    @idempotency.leased
    async def place(why: FromPath[str]) -> None:
        runs.append(why)
        raise HTTPException(why, status_code={"taken": 409, "busy": 429}[why])

    served = Served(idempotency, place)
    assert statuses(served.send("/orders/taken", None, None, key="t")) == [(409, False), (409, True)]
    assert statuses(served.send("/orders/busy", None, None, key="b")) == [(429, False), (429, False)]
    assert runs == ["taken", "busy", "busy"]


def test_hooks_of_the_route_run_around_the_handler(idempotency: Idempotency) -> None:
    seen: list[str] = []

    async def before(request: Request[Any, Any, Any]) -> None:
        seen.append("before")

    async def after(response: Response[Any]) -> Response[Any]:
        seen.append("after")
        response.headers["x-after"] = "yes"
        return response

    @post("/orders", before_request=before, after_request=after)
    @idempotency.leased
    async def place() -> dict[str, int]:
        return {"id": 1}

    first, again = Served(idempotency, place).send("/orders", None, None)
    assert first.headers["x-after"] == again.headers["x-after"] == "yes"  # the second is the stored one
    assert seen == ["before", "after", "before"]


@pytest.mark.parametrize("in_a_thread", [True, False])
def test_sync_handlers_run_in_threads(idempotency: Idempotency, in_a_thread: bool) -> None:
    """Whatever they say of it: a claim speaks to a database, which must not stop the event loop."""
    threads: list[str] = []

    @post("/orders", sync_to_thread=in_a_thread)
    @idempotency.atomic
    def place(data: JSONBody[Order]) -> Order:
        threads.append(threading.current_thread().name)
        database = current_operation().connection
        database.execute("create table orders (sku text)")
        database.execute("insert into orders values (?)", (data.sku,))
        return data

    async def loop(request: Request[Any, Any, Any]) -> None:
        threads.append(threading.current_thread().name)

    answers = Served(idempotency, place, before_request=loop).send("/orders", ORDER, ORDER)
    assert statuses(answers) == [(201, False), (201, True)]
    of_the_loop, of_the_handler, _ = threads
    assert of_the_loop != of_the_handler


def test_controllers_and_undecorated_handlers(idempotency: Idempotency) -> None:
    class Orders(Controller):
        path = "/orders"
        runs = 0

        @post("/{shelf:int}")
        @idempotency.leased
        async def place(self, shelf: FromPath[int]) -> dict[str, int]:
            Orders.runs += 1
            return {"shelf": shelf}

        @post("/plain")
        async def plain(self) -> dict[str, int]:
            Orders.runs += 1
            return {"run": Orders.runs}

        @delete("/{shelf:int}")
        async def remove(self, shelf: FromPath[int]) -> None:
            return None

    served = Served(idempotency, Orders)
    assert statuses(served.send("/orders/7", None, None)) == [(201, False), (201, True)]
    assert statuses(served.send("/orders/8", None)) == [(422, False)]  # the path is part of the request
    assert statuses(served.send("/orders/plain", None, None, key="p")) == [(201, False), (201, True)]
    assert Orders.runs == 2
    assert [str(one) for one in coverage(served.app)] == [
        "POST /orders/plain: at the edge (leased), optional",
        "DELETE /orders/{shelf}: not guarded by method",
        "POST /orders/{shelf}: leased, required",
    ]
    assert sorted(openapi(served.app)["paths"]) == [
        "/idempotency/{operation}",
        "/orders/plain",
        "/orders/{shelf}",
    ]


def test_one_application_mounted_in_another(idempotency: Idempotency) -> None:
    """Litestar in Starlette, and Starlette in Litestar: each handler claims, and paths are not confused."""
    runs: list[str] = []

    @post("/pay")
    @idempotency.leased
    async def in_litestar() -> dict[str, str]:
        runs.append("litestar")
        return {"by": "litestar"}

    @idempotency.leased
    async def in_starlette(request: StarletteRequest) -> JSONResponse:
        runs.append("starlette")
        return JSONResponse({"by": "starlette"}, 201)

    inner = Starlette(routes=[Route("/pay/", in_starlette, methods=["POST"])])
    mounts: list[Any] = [asgi(path, is_mount=True, copy_scope=True)(inner) for path in ("/one", "/two")]
    served = Served(idempotency, in_litestar, *mounts)
    assert statuses(served.send("/one/pay/", None, None)) == [(201, False), (201, True)]
    assert statuses(served.send("/two/pay/", None)) == [(422, False)]
    assert statuses(served.send("/pay", None, key="l")) == [(201, False)]
    bare: Any = Litestar([in_litestar], openapi_config=None)
    outer: Any = Starlette(routes=[Mount("/sub", bare)])
    outer.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    with TestClient(outer) as client:
        answers = [client.post("/sub/pay", headers={"Idempotency-Key": "m"}) for _ in range(2)]
    assert statuses(answers) == [(201, False), (201, True)]
    assert runs == ["starlette", "litestar", "litestar"]
    assert [str(one) for one in coverage(outer)] == ["POST /sub/pay: leased, required"]


def test_a_body_that_a_middleware_has_read_is_there_for_the_claim(idempotency: Idempotency) -> None:
    def reading(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            await Request(scope, receive, send).body()
            await app(scope, receive, send)

        return middleware

    @post("/orders")
    @idempotency.leased
    async def place(data: JSONBody[Order]) -> Order:
        return data

    answers = Served(idempotency, place, middleware=[reading]).send(
        "/orders", ORDER, {**ORDER, "quantity": 3}
    )
    assert statuses(answers) == [(201, False), (422, False)]


def test_misuse_is_a_sentence(idempotency: Idempotency, tmp_path: Path) -> None:
    other = Idempotency(f"sqlite:///{tmp_path / 'other.db'}")

    @post("/orders")
    @other.leased
    async def place() -> None:
        return None

    with pytest.raises(ExceptionGroup) as found:
        Served(idempotency, place).send("/orders", None)
    assert found.group_contains(ConfigurationError, match="decorated by another Idempotency")
    with pytest.raises(ConfigurationError, match="@post\\) above samekey's"):
        idempotency.leased(place)
    plugin = SamekeyPlugin(idempotency, tenant=single_tenant())
    Litestar(plugins=[plugin])
    with pytest.raises(ConfigurationError, match="make one for each"):
        Litestar(plugins=[plugin])
    wrong: Any = "sqlite:///app.db"
    with pytest.raises(ConfigurationError, match="is given an Idempotency"):
        SamekeyPlugin(wrong, tenant=single_tenant())
    other.close()
