"""A guarded request, cancelled wherever it waits: by its server, by a deadline outside or inside (X9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from samekey import OutcomeUnknown, StillRunning
from samekey.asgi import IdempotencyMiddleware
from samekey.testing.cancellation import Cancellation, enumerate_cancellations
from tests.cancellation.world import Found, Shop, Store
from tests.chosen import whole
from tests.edges.callers import Got, Request, call_asgi

pytestmark = whole


Who = Literal["the server", "a deadline outside", "a deadline inside"]
WHO: list[Who] = ["the server", "a deadline outside", "a deadline inside"]
App = Callable[[Any, Any, Any], Awaitable[None]]
CROWD = 16


class Deadline:
    """A middleware that gives whatever is inside it some time, and answers 503 when that is over: a page that
    would free the key if the page decided."""

    def __init__(self, app: App, cancellations: dict[bytes, Cancellation]) -> None:
        self._app = app
        self._cancellations = cancellations
        """Whose time will be over, by their keys."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        cancellation = self._cancellations.get(dict(scope["headers"])[b"idempotency-key"])
        if cancellation is None:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(None) as deadline:
                cancellation.aim(lambda: deadline.reschedule(0))
                await self._app(scope, receive, send)
                cancellation.aim(None)  # in time
        except TimeoutError:
            await PlainTextResponse("too late", 503)(scope, receive, send)


class Site:
    """A shop on the network. Its handlers are guarded where they are declared, or at the edge."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.inside: dict[bytes, Cancellation] = {}
        self.outside: dict[bytes, Cancellation] = {}

        def handler() -> Any:
            async def pay(request: StarletteRequest) -> PlainTextResponse:
                return PlainTextResponse(await shop.act((await request.body()).decode()), 201)

            return pay

        routes = [
            Route("/leased", shop.idempotency.leased(handler()), methods=["POST"]),
            Route("/plain", handler(), methods=["POST"]),
        ]
        if shop.is_sql:
            routes.append(Route("/atomic", shop.idempotency.atomic(handler()), methods=["POST"]))
        inner = Starlette(routes=routes, middleware=[Middleware(Deadline, self.inside)])
        guarded = IdempotencyMiddleware(inner, idempotency=shop.idempotency, tenant=lambda scope: "t")
        self._app = Deadline(guarded, self.outside)

    async def post(self, path: str, label: str) -> Got:
        request = Request("POST", path, ((b"idempotency-key", label.encode()),), label.encode())
        return await call_asgi(self._app, request)

    async def again(self, path: str, label: str) -> str:
        """A client's retry, as ``once`` would tell it."""
        got = await self.post(path, label)
        if got.code == "outcome_unknown":
            raise OutcomeUnknown
        if got.code == "in_progress":
            raise StillRunning
        if got.status != 201:
            raise Found(f"a retry got {got.status} {got.body!r} {got.error!r}")
        return got.body.decode()


async def cancelled_everywhere(store: Store, path: str, who: Who, crowd: int = 0) -> int:
    async with aclosing(Shop(store.url, connections=2 if crowd else 1)) as shop:
        return await _cancelled_everywhere(shop, store, path, who, crowd)


async def _cancelled_everywhere(shop: Shop, store: Store, path: str, who: Who, crowd: int) -> int:
    site, mode = Site(shop), "atomic" if path == "/atomic" else "leased"
    assert (await site.post(path, "the-first")).status == 201

    async def operation(cancellation: Cancellation) -> Got:
        if who != "the server":
            cancellation.aim(None)  # nothing happens before the deadline is set
            late = site.outside if who == "a deadline outside" else site.inside
            late[cancellation.label.encode()] = cancellation
        return await site.post(path, cancellation.label)

    async def others(name: str) -> None:
        answers = await asyncio.gather(*(site.post(path, f"{name}-{number}") for number in range(crowd)))
        assert [answer.status for answer in answers] == [201] * crowd

    points = 0
    among, moments = (others, store.moments[:1]) if crowd else (None, store.moments)
    async for cancelled in enumerate_cancellations(operation, among=among, moments=moments):
        points += 1
        site.outside.clear()
        site.inside.clear()
        got: Got = cancelled.result or Got()
        await shop.check(
            cancelled,
            "atomic" if mode == "atomic" else "leased",
            lambda label=cancelled.label: site.again(path, label),  # type: ignore[misc]
            answered=200 <= got.status < 300,
        )
    return points


@pytest.mark.parametrize("who", WHO)
def test_a_leased_handler(any_store: Store, who: Who) -> None:
    assert asyncio.run(cancelled_everywhere(any_store, "/leased", who)) > 4


@pytest.mark.parametrize("who", WHO)
def test_a_handler_that_is_guarded_at_the_edge(any_store: Store, who: Who) -> None:
    assert asyncio.run(cancelled_everywhere(any_store, "/plain", who)) > 4


@pytest.mark.parametrize("who", WHO)
def test_an_atomic_handler(store: Store, who: Who) -> None:
    assert asyncio.run(cancelled_everywhere(store, "/atomic", who)) > 6


@pytest.mark.parametrize("who", ["the server", "a deadline inside"])
def test_a_leased_handler_in_a_crowd(any_store: Store, who: Who) -> None:
    assert asyncio.run(cancelled_everywhere(any_store, "/leased", who, CROWD)) > 4


@pytest.mark.parametrize("who", ["the server", "a deadline inside"])
def test_an_atomic_handler_in_a_crowd(store: Store, who: Who) -> None:
    assert asyncio.run(cancelled_everywhere(store, "/atomic", who, CROWD)) > 6
