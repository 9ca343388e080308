"""What is FastAPI's own: models, dependencies, routers, threads. Annotations here are strings."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Form, Header, HTTPException, Request
from fastapi import Response as FastAPIResponse
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel

from samekey import current_operation
from samekey.asgi import IdempotencyMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient, Client, Got, LoopThread
from tests.edges.counting import touches
from tests.edges.scenarios import Ask
from tests.edges.world import Store, Stores, World


class Payment(BaseModel):
    amount: int
    note: str = "none"


class Receipt(BaseModel):
    run: int
    payment: Payment


class Service:
    """An application with one client, and what its handlers count."""

    def __init__(self, store: Store, loop: LoopThread) -> None:
        self.store = store
        self.world = World()
        self.app = FastAPI()
        self.app.add_middleware(IdempotencyMiddleware, idempotency=store.idempotency, tenant=tenant_of)
        self.client: Client = AsgiClient(self.app, loop)

    def ask(self, path: str, **changes: Any) -> Got:
        return self.client.send(Ask(**changes).request(path, self.world.name))

    def twice(self, path: str, **changes: Any) -> Got:
        """Sends twice and demands the same answer; gives the first."""
        first, again = self.ask(path, **changes), self.ask(path, **changes)
        assert again.replayed and not first.replayed and again.content == first.content, (first, again)
        return first


@pytest.fixture
def service(stores: Stores, loop: LoopThread) -> Service:
    return Service(stores.get(), loop)


def test_models_and_parameters(service: Service) -> None:
    @service.app.post("/shops/{shop}/payments", response_model=Receipt, status_code=201)
    @service.store.idempotency.leased
    async def create(
        shop: int,
        payment: Payment,
        response: FastAPIResponse,
        currency: str,
        x_trace: Annotated[str, Header()],
    ) -> Any:
        response.headers["x-shop"] = f"{shop} {currency} {x_trace}"
        return {"run": service.world.begin()[0], "payment": payment, "secret": "not in the model"}

    headers = ((b"x-trace", b"t1"),)
    got = service.twice("/shops/7/payments", query=b"currency=eur", headers=headers)
    assert got.status == 201 and got.header("x-shop") == "7 eur t1"
    assert got.json() == {"run": 1, "payment": {"amount": 100, "note": "none"}}
    assert service.ask("/shops/8/payments", query=b"currency=eur", headers=headers).code == "reused"
    schema = service.app.openapi()["paths"]["/shops/{shop}/payments"]["post"]
    assert {parameter["name"] for parameter in schema["parameters"]} == {"shop", "currency", "x-trace"}


def test_a_return_type_as_a_model(service: Service) -> None:
    @service.app.post("/typed")
    @service.store.idempotency.leased
    async def create(payment: Payment) -> Receipt:
        return Receipt(run=service.world.begin()[0], payment=payment)

    assert service.twice("/typed").json()["run"] == 1


def test_every_kind_of_answer(service: Service) -> None:
    kinds: dict[str, Any] = {
        "none": lambda: None,
        "text": lambda: PlainTextResponse("plain"),
        "redirect": lambda: RedirectResponse("/elsewhere", 303),
        "json": lambda: JSONResponse({"a": 1}, 207),
        "list": lambda: [1, 2],
    }

    @service.app.post("/kind/{name}")
    @service.store.idempotency.leased
    async def answer(name: str) -> Any:
        service.world.begin()
        return kinds[name]()

    for name in kinds:
        service.twice(f"/kind/{name}", keys=(name.encode(),))
    assert service.world.runs == len(kinds)


def test_refusals_before_the_handler_are_not_remembered(service: Service) -> None:
    """Validation, dependencies and the router refuse without a look at the store (X7)."""

    async def only_friends(friend: bool = True) -> None:
        if not friend:
            raise HTTPException(403)

    @service.app.post("/pay", dependencies=[Depends(only_friends)])
    @service.store.idempotency.leased
    async def create(payment: Payment) -> Receipt:
        return Receipt(run=service.world.begin()[0], payment=payment)

    with touches(service.store.idempotency) as touched:
        for body, status in ((b'{"amount": "x"}', 422), (b"not json", 422), (b"", 422)):
            got = service.ask("/pay", body=body)
            assert got.status == status and got.code is None, got
        assert service.ask("/pay", query=b"friend=no").status == 403
        assert service.ask("/nowhere").status == 404
        assert service.ask("/pay", method="PATCH").status == 405
        assert service.ask("/openapi.json").status == 405
    assert (touched, service.world.runs) == ([], 0)
    # The key is as free as before.
    assert service.twice("/pay").json()["run"] == 1


def test_dependencies_that_clean_up(service: Service) -> None:
    events: list[str] = []

    async def session() -> AsyncIterator[str]:
        events.append("open")
        yield "session"
        events.append("closed")

    def sync_session() -> Iterator[str]:
        events.append("sync open")
        yield "sync"
        events.append("sync closed")

    @service.app.post("/pay")
    @service.store.idempotency.leased
    async def create(a: str = Depends(session), b: str = Depends(sync_session)) -> Any:
        events.append("handler")
        return {"run": service.world.begin()[0], "with": [a, b]}

    assert service.twice("/pay").json() == {"run": 1, "with": ["session", "sync"]}
    assert events.count("handler") == 1
    assert events.count("open") == events.count("closed") == 2


def test_a_dependency_that_fails_to_clean_up(service: Service) -> None:
    async def session() -> AsyncIterator[None]:
        yield
        raise RuntimeError("too late")

    @service.app.post("/pay", dependencies=[Depends(session)])
    @service.store.idempotency.leased
    async def create() -> Any:
        return {"run": service.world.begin()[0]}

    first = service.ask("/pay")
    # Whether FastAPI cleans up before or after it sends, the operation ran once and stays so.
    assert first.status in (200, 500) and isinstance(first.error, RuntimeError)
    second = service.ask("/pay")
    assert second.status in (200, 500) and (second.replayed or second.status == 500)
    assert service.world.runs <= 2
    if first.status == 200:
        assert second.replayed and service.world.runs == 1


def test_routers_in_routers(service: Service) -> None:
    inner, outer = APIRouter(prefix="/payments"), APIRouter(prefix="/shops/{shop}")

    @inner.post("/{number}")
    @service.store.idempotency.leased
    async def create(shop: str, number: int) -> Any:
        return {"run": service.world.begin()[0], "shop": shop, "number": number}

    @inner.post("/{number}/plain")
    async def plain(number: int) -> Any:
        return {"run": service.world.begin(guarded=False)[0]}

    outer.include_router(inner)
    service.app.include_router(outer, prefix="/api")
    service.app.include_router(inner, prefix="/shops/{shop}/again")
    assert service.twice("/api/shops/a/payments/1").json() == {"run": 1, "shop": "a", "number": 1}
    assert service.ask("/api/shops/a/payments/1", keys=()).code == "missing"
    assert service.twice("/shops/b/again/payments/2", keys=(b"key-2",)).json()["shop"] == "b"
    assert service.twice("/api/shops/a/payments/1/plain", keys=(b"key-3",)).json() == {"run": 3}


def test_a_mounted_application(service: Service) -> None:
    inner = FastAPI()

    @inner.post("/pay")
    @service.store.idempotency.leased
    async def create(payment: Payment) -> Any:
        return {"run": service.world.begin()[0]}

    service.app.mount("/v1", inner)
    assert service.twice("/v1/pay").json() == {"run": 1}
    assert service.ask("/v1/pay", keys=()).code == "missing"


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_handlers_in_threads(service: Service, mode: str) -> None:
    """A sync handler runs in a thread of the pool and still knows its request and its operation."""
    request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id")
    seen: list[tuple[str, str, bool]] = []

    async def note(request: Request) -> None:
        request_id.set(request.headers["x-tenant"])

    def create(payment: Payment) -> Any:
        operation = current_operation()
        in_thread = threading.current_thread() is not threading.main_thread()
        seen.append((request_id.get(), operation.mode, in_thread))
        number = service.world.begin()[0]
        if mode == "atomic":
            operation.connection.execute(service.store.insert, (service.world.name, number))
        return {"run": number, "operation": operation.id}

    guarded = getattr(service.store.idempotency, mode)(create)
    service.app.post("/pay", dependencies=[Depends(note)])(guarded)
    got = service.twice("/pay")
    assert got.json()["run"] == 1 and seen == [(f"{service.world.name}-alice", mode, True)]
    assert service.store.effects(service.world) == (1 if mode == "atomic" else 0)
    rows = service.store.ask("select id from {keys} where tenant = ?", f"={service.world.name}-alice")
    assert rows == [(got.json()["operation"],)]


def test_background_tasks(service: Service) -> None:
    ran: list[int] = []

    @service.app.post("/pay")
    @service.store.idempotency.leased
    async def create(background: BackgroundTasks) -> Any:
        background.add_task(ran.append, 1)
        return {"run": service.world.begin()[0]}

    service.twice("/pay")
    assert ran == [1]


def test_forms(service: Service) -> None:
    @service.app.post("/form")
    @service.store.idempotency.leased
    async def create(amount: Annotated[int, Form()]) -> Any:
        return {"run": service.world.begin()[0], "amount": amount}

    def multipart(boundary: bytes, amount: bytes) -> dict[str, bytes]:
        head = b'--%b\r\nContent-Disposition: form-data; name="amount"\r\n\r\n' % boundary
        body = head + amount + b"\r\n--%b--\r\n" % boundary
        return {"body": body, "media": b"multipart/form-data; boundary=" + boundary}

    assert service.ask("/form", **multipart(b"one", b"5")).json() == {"run": 1, "amount": 5}
    assert service.ask("/form", **multipart(b"two", b"5")).replayed
    assert service.ask("/form", **multipart(b"two", b"6")).code == "reused"


def test_middleware_by_decorator(service: Service) -> None:
    """``@app.middleware("http")`` is added last, so it is outside."""

    @service.app.middleware("http")
    async def outside(request: Request, call_next: Any) -> Any:
        body = await request.body()
        response = await call_next(request)
        response.headers["x-length"] = str(len(body))
        return response

    @service.app.post("/pay")
    @service.store.idempotency.leased
    async def create(payment: Payment) -> Any:
        return {"run": service.world.begin()[0], "amount": payment.amount}

    got = service.twice("/pay")
    assert got.json() == {"run": 1, "amount": 100} and got.header("x-length") == "15"


def test_exceptions_of_the_handler(service: Service) -> None:
    class Declined(Exception): ...

    @service.app.exception_handler(Declined)
    async def handle(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"declined": True}, 402)

    @service.app.exception_handler(Exception)
    async def page(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"sorry": True}, 500)

    @service.app.post("/pay/{what}")
    @service.store.idempotency.atomic
    async def create(what: str) -> Any:
        number = service.world.begin()[0]
        insert = service.store.insert
        await current_operation().connection.execute(insert, (service.world.name, number))
        if what == "declined":
            raise Declined
        if what == "conflict":
            raise HTTPException(409, "taken", headers={"x-why": "taken"})
        if number == 4:
            raise ZeroDivisionError
        return {"run": number}

    # An error rolls back, whatever page is made of it, and a retry runs; an HTTP exception is an answer.
    assert [service.ask("/pay/declined").status for _ in range(2)] == [402, 402]
    assert service.world.runs == 2
    assert service.twice("/pay/conflict", keys=(b"key-2",)).header("x-why") == "taken"
    assert service.store.effects(service.world) == 0
    failed = service.ask("/pay/other", keys=(b"key-3",))
    assert (failed.status, failed.json()) == (500, {"sorry": True})
    assert service.twice("/pay/other", keys=(b"key-3",)).json() == {"run": 5}
    assert service.store.effects(service.world) == 1
