"""A middleware's answer that cannot be read is an error like any other: the operation ends, and so does its
transaction, which is on the thread's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.asgi import get_asgi_application
from django.db import connection, connections
from django.http import HttpResponse, JsonResponse
from django.template.response import SimpleTemplateResponse
from django.urls import path
from django.utils.decorators import sync_and_async_middleware

from samekey import Idempotency
from tests.django.test_async import request, write_async
from tests.django.test_atomic import write
from tests.django.world import world

OURS = "samekey.django.IdempotencyMiddleware"


class Away(HttpResponse):  # type: ignore[misc]
    """A page that is kept elsewhere, as a cache's or a storage's is."""

    @property
    def content(self) -> bytes:
        raise OSError("the storage is away")

    @content.setter
    def content(self, _: object) -> None:
        return


def _instead(response: Any) -> Any:
    pages: dict[str, Any] = {
        "nothing": lambda: None,
        "not rendered": lambda: SimpleTemplateResponse("none.html"),
        "away": Away,
        "right": lambda: response,
    }
    return pages[given[-1]]()


given = ["right"]
"""What the middleware below gives in the place of a view's answer."""


@sync_and_async_middleware  # type: ignore[untyped-decorator]
def inner(get_response: Any) -> Any:
    """A middleware of the project's own, after samekey's, with a mistake on one branch."""
    if asyncio.iscoroutinefunction(get_response):

        async def call_async(request: Any) -> Any:
            return _instead(await get_response(request))

        return call_async
    return lambda request: _instead(get_response(request))


@pytest.fixture(params=["nothing", "not rendered", "away"])
def mistake(request: pytest.FixtureRequest) -> Iterator[None]:
    given.append(request.param)
    yield
    del given[1:]


AROUND: dict[str, Any] = {"MIDDLEWARE": [OURS, f"{__name__}.inner"], "undecorated": "pass"}


def _urls(idempotency: Idempotency) -> list[Any]:
    @idempotency.atomic
    def order(request: Any) -> HttpResponse:
        write(request.headers["Idempotency-Key"])
        return JsonResponse({}, status=201)

    @idempotency.atomic
    async def order_async(request: Any) -> HttpResponse:
        await write_async(request.headers["Idempotency-Key"])
        return JsonResponse({}, status=201)

    def plain(request: Any) -> HttpResponse:
        write("plain")
        return JsonResponse({"in": connection.in_atomic_block})

    return [path("order", order), path("order-async", order_async), path("plain", plain)]


@pytest.mark.usefixtures("mistake")
def test_a_page_that_cannot_be_read_ends_the_operation(each_url: str) -> None:
    with world(each_url, _urls, **AROUND) as shop:
        assert [shop.post("/order", "k").status_code for _ in range(2)] == [500, 500]
        given.append("right")  # now others on the same thread, and the key itself
        assert shop.post("/plain").json() == {"in": False}
        assert [shop.post("/order", "k").status_code for _ in range(2)] == [201, 201]
        assert shop.entries() == ["plain", "k"]


@pytest.mark.usefixtures("mistake")
@pytest.mark.parametrize("view", ["/order", "/order-async"])
def test_so_it_does_under_asgi(database_url: str, view: str) -> None:
    async def visit() -> list[int | None]:
        app = get_asgi_application()
        async with ThreadSensitiveContext():
            answers = [(await request(app, view, "k"))[0] for _ in range(2)]
            given.append("right")
            answers += [(await request(app, view, "k"))[0] for _ in range(2)]
            await sync_to_async(connections.close_all)()
        return answers

    with world(database_url, _urls, **AROUND) as shop:
        assert asyncio.run(visit()) == [500, 500, 201, 201]
        assert shop.entries() == ["k"]


@pytest.mark.usefixtures("mistake")
def test_a_replay_is_given_whatever_page_is_in_its_place(sqlite_url: str) -> None:
    with world(sqlite_url, _urls, **AROUND) as shop:
        given.append("right")
        first = shop.post("/order", "k")
        given.pop()
        again = shop.post("/order", "k")
        assert (first.status_code, again.status_code, again["Idempotent-Replayed"]) == (201, 201, "true")
