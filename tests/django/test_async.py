"""Async views under ASGI: the ORM's async methods are in the transaction, and clients may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.views import View

from samekey import Idempotency
from tests.django.test_atomic import write
from tests.django.world import World, world


async def write_async(text: str) -> Any:
    from tests.django.ledger.models import Entry

    return await Entry.objects.acreate(text=text)


async def request(
    app: Any, path: str, key: str | None, leaves: Callable[[], Any] | None = None, method: str = "POST"
) -> tuple[int | None, bytes]:
    """One request by the ASGI protocol. ``leaves``: the client goes away when that is over."""
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        if waiting:
            return waiting.pop()
        await (asyncio.Event().wait() if leaves is None else leaves())
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    headers += [] if key is None else [(b"idempotency-key", key.encode())]
    scope = {
        **{"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers},
        **{"server": ("localhost", 80), "scheme": "http", "http_version": "1.1", "root_path": ""},
    }
    await app(scope, receive, send)
    started = [message for message in sent if message["type"] == "http.response.start"]
    body = b"".join(message.get("body", b"") for message in sent)
    return (started[0]["status"] if started else None), body


def test_async_views_are_atomic(each_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        class Pay(View):  # type: ignore[misc]
            @idempotency.atomic
            async def post(self, request: Any) -> HttpResponse:
                entry = await write_async("paid")
                if request.path == "/fail":
                    raise RuntimeError("a bug")
                return JsonResponse({"id": entry.pk}, status=201)

            async def get(self, request: Any) -> HttpResponse:
                return HttpResponse("got")

        @idempotency.atomic
        def sync(request: Any) -> HttpResponse:
            write("sync")
            return HttpResponse("done", status=201)

        return [path("pay", Pay.as_view()), path("fail", Pay.as_view()), path("sync", sync)]

    async def visit() -> None:
        app = get_asgi_application()
        assert (await request(app, "/fail", "k0"))[0] == 500
        first, again = await request(app, "/pay", "k"), await request(app, "/pay", "k")
        assert first == again
        assert first[0] == 201
        assert (await request(app, "/pay", None))[0] == 400
        assert await request(app, "/pay", "k", method="GET") == (200, b"got")
        # A sync view in Django's thread, as it runs under ASGI.
        assert [await request(app, "/sync", "k2") for _ in range(2)] == [(201, b"done")] * 2

    with world(each_url, urls, MIDDLEWARE=["samekey.django.IdempotencyMiddleware"]) as shop:
        asyncio.run(visit())
        assert shop.entries() == ["paid", "sync"]


def test_two_async_requests_at_once(database_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        async def pay(request: Any) -> HttpResponse:
            runs.set()
            await go_on.wait()
            await write_async("paid")
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    async def visit() -> None:
        app = get_asgi_application()
        first = asyncio.create_task(request(app, "/pay", "k"))
        await asyncio.wait_for(runs.wait(), 30)
        duplicate = await request(app, "/pay", "k")
        go_on.set()
        assert (duplicate[0], b"in_progress" in duplicate[1]) == (409, True)
        assert await first == (201, b"done")

    runs, go_on = asyncio.Event(), asyncio.Event()
    with world(database_url, urls, MIDDLEWARE=["samekey.django.IdempotencyMiddleware"]) as shop:
        asyncio.run(visit())
        assert shop.entries() == ["paid"]


@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_a_client_that_leaves_does_not_stop_the_operation(database_url: str, mode: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        guard: Any = getattr(idempotency, mode)

        @guard  # type: ignore[untyped-decorator]
        async def pay(request: Any) -> HttpResponse:
            await write_async("before")
            runs.set()
            await asyncio.sleep(0.05)  # the client has left meanwhile; nothing depends on how long it is
            await left.wait()
            await write_async("after")
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    async def leaves() -> None:
        await runs.wait()
        asyncio.get_running_loop().call_later(0.05, left.set)

    async def visit() -> None:
        app = get_asgi_application()
        assert await asyncio.wait_for(request(app, "/pay", "k", leaves), 30) == (None, b"")
        assert await request(app, "/pay", "k") == (201, b"done")

    runs, left = asyncio.Event(), asyncio.Event()
    with world(database_url, urls, MIDDLEWARE=["samekey.django.IdempotencyMiddleware"]) as shop:
        asyncio.run(visit())
        assert shop.entries() == ["before", "after"]


# Django leaves the body's file and its thread's connection to the collector when a view is cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("mode", "again"), [("atomic", (201, ["paid"])), ("leased", (409, ["paid"]))])
def test_a_view_that_is_cancelled(
    database_url: str, mode: str, again: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = [True]

    def urls(idempotency: Idempotency) -> list[Any]:
        guard: Any = getattr(idempotency, mode)

        @guard  # type: ignore[untyped-decorator]
        async def pay(request: Any) -> HttpResponse:
            await write_async("paid")
            if cancelled.pop():
                raise asyncio.CancelledError
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    async def visit() -> int | None:
        app = get_asgi_application()
        async with ThreadSensitiveContext():
            try:
                await request(app, "/pay", "k")
            except asyncio.CancelledError:  # Django leaves body and connection of such a request open
                await sync_to_async(connections.close_all)()
            cancelled.append(False)
            return (await request(app, "/pay", "k"))[0]

    bodies: list[Any] = []

    async def read_body(self: ASGIHandler, receive: Any) -> Any:
        bodies.append(await reads(self, receive))
        return bodies[-1]

    reads = ASGIHandler.read_body
    monkeypatch.setattr(ASGIHandler, "read_body", read_body)
    with world(database_url, urls, MIDDLEWARE=["samekey.django.IdempotencyMiddleware"]) as shop:
        assert (asyncio.run(visit()), shop.entries()) == again
    for body in bodies:
        body.close()


def test_an_async_view_that_nobody_guards_hears_that_its_client_left(sqlite_url: str) -> None:
    heard: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.exempt
        async def wait(request: Any) -> HttpResponse:
            runs.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append("left")
                raise
            raise AssertionError("unreachable")

        return [path("wait", wait)]

    async def visit() -> None:
        await asyncio.wait_for(request(get_asgi_application(), "/wait", "k", runs.wait), 30)

    runs = asyncio.Event()
    with world(sqlite_url, urls, MIDDLEWARE=["samekey.django.IdempotencyMiddleware"]):
        asyncio.run(visit())
        assert heard == ["left"]


def test_async_views_under_wsgi_are_refused_with_a_sentence(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        async def pay(request: Any) -> HttpResponse:
            raise AssertionError("it was run")

        @idempotency.leased
        async def call(request: Any) -> HttpResponse:
            return HttpResponse("done", status=201)

        return [path("pay", pay), path("call", call)]

    with world(sqlite_url, urls) as shop:
        assert shop.post("/pay", "k").status_code == 500
        assert "Serve the project by ASGI" in caplog.text
        assert [shop.post("/call", "k2").content for _ in range(2)] == [b"done"] * 2


def test_the_async_test_client(sqlite_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        async def pay(request: Any) -> HttpResponse:
            await write_async("paid")
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    async def visit(shop: World) -> None:
        answers = [await shop.post_async("/pay", "k") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201]

    with world(sqlite_url, urls) as shop:
        asyncio.run(visit(shop))
        assert shop.entries() == ["paid"]


@pytest.mark.parametrize("mode", ["atomic", "leased"])
def test_below_a_sync_middleware_an_async_atomic_view_is_refused_before_its_claim(
    sqlite_url: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Django calls samekey's middleware as a sync one then, though it serves by ASGI."""
    from samekey.django.checks import check_views

    runs: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        async def pay(request: Any) -> HttpResponse:
            runs.append("paid")
            await write_async("paid")
            return HttpResponse(status=201)

        return [path("pay", getattr(idempotency, mode)(pay))]

    async def visit() -> list[int | None]:
        app = get_asgi_application()
        return [(await request(app, "/pay", "k"))[0] for _ in range(2)]

    listed = ["samekey.django.IdempotencyMiddleware", "tests.django.test_async.only_sync"]
    with world(sqlite_url, urls, MIDDLEWARE=listed) as shop:
        said = [one.msg for one in check_views() if one.id == "samekey.E014"]
        answers = asyncio.run(visit())
        if mode == "leased":
            assert (answers, shop.entries(), said) == ([201, 201], ["paid"], [])
            return
        assert (answers, shop.entries(), runs) == ([500, 500], [], [])
        assert "a sync middleware below samekey's calls it" in caplog.text
        assert "Below tests.django.test_async.only_sync, which cannot be async" in said[0]
    with world(f"{sqlite_url}2", urls, MIDDLEWARE=listed[::-1]) as shop:
        assert (asyncio.run(visit()), shop.entries(), check_views()) == ([201, 201], ["paid"], [])


def only_sync(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        return get_response(request)

    return middleware
