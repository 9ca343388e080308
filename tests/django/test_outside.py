"""What an atomic view would write past its transaction is refused with a sentence, and is not sent."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.urls import path

from examples.shop.orm import database
from samekey import Idempotency
from tests.django.test_async import request, write_async
from tests.django.test_atomic import write
from tests.django.world import world

ASYNC: dict[str, Any] = {"MIDDLEWARE": ["samekey.django.IdempotencyMiddleware"]}


@pytest.mark.parametrize("how", ["gather", "task", "succeeds"])
def test_what_a_view_leaves_running_writes_nothing_after_its_end(each_url: str, how: str) -> None:
    left: list[Any] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        async def pay(request: Any) -> HttpResponse:
            async def slow() -> None:
                await over.wait()
                try:
                    await write_async(f"late {len(left)}")
                finally:
                    await sync_to_async(connections.close_all)()

            async def fails() -> None:
                raise RuntimeError("a bug")

            await write_async("first")
            left.append(asyncio.ensure_future(slow()))
            if how == "gather":
                await asyncio.gather(left[-1], fails())
            return HttpResponse(status=201 if how == "succeeds" else 503)

        return [path("pay", pay)]

    async def visit() -> tuple[list[int | None], list[Any]]:
        app = get_asgi_application()
        answers = [(await request(app, "/pay", "k"))[0] for _ in range(2)]
        over.set()
        return answers, await asyncio.gather(*left, return_exceptions=True)

    over = asyncio.Event()
    with world(each_url, urls, **ASYNC) as shop:
        answers, ends = asyncio.run(visit())
        assert answers == {"gather": [500, 500], "task": [503, 503], "succeeds": [201, 201]}[how]
        assert shop.entries() == (["first"] if how == "succeeds" else [])
        assert {type(end).__name__ for end in ends} == {"OperationOver"}
        assert "contextvars.Context()" in str(ends[0])


@pytest.mark.parametrize("how", ["to_thread", "insensitive"])
def test_another_thread_of_an_async_view_is_refused(database_url: str, how: str) -> None:
    said: list[str] = []

    def late() -> None:
        try:
            write(f"thread {len(said)}")
        except Exception as error:
            said.append(str(error))
            raise
        finally:
            connection.close()

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        async def pay(request: Any) -> HttpResponse:
            if how == "to_thread":
                await asyncio.to_thread(late)
            else:
                await sync_to_async(late, thread_sensitive=False)()
            return HttpResponse(status=503)

        return [path("pay", pay)]

    async def visit() -> list[int | None]:
        app = get_asgi_application()
        return [(await request(app, "/pay", "k"))[0] for _ in range(2)]

    with world(database_url, urls, **ASYNC) as shop:
        assert asyncio.run(visit()) == [500, 500]
        assert shop.entries() == []
        assert "from another thread" in said[0]


def test_a_thread_with_the_context_of_a_sync_view_is_refused(database_url: str) -> None:
    said: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            def late() -> None:
                try:
                    write("thread")
                except Exception as error:
                    said.append(str(error))
                finally:
                    connection.close()

            thread = threading.Thread(target=contextvars.copy_context().run, args=(late,))
            thread.start()
            thread.join(30)
            return HttpResponse(status=503)

        return [path("pay", pay)]

    with world(database_url, urls) as shop:
        assert shop.post("/pay", "k").status_code == 503
        assert shop.entries() == []
        assert "from another thread" in said[0]


@contextmanager
def other(url: str) -> Iterator[None]:
    """A second alias, with the same table."""
    from tests.django.ledger.models import Entry

    connections.settings["other"] = connections.configure_settings({"default": database(url)})["default"]
    with connections["other"].schema_editor() as editor:
        editor.create_model(Entry)
    try:
        yield
    finally:
        connections["other"].close()


def others() -> list[str]:
    from tests.django.ledger.models import Entry

    return list(Entry.objects.using("other").order_by("id").values_list("text", flat=True))


def test_a_write_to_another_database_is_refused_unless_it_is_allowed_or_comes_after_the_commit(
    sqlite_url: str, other_sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.django.ledger.models import Entry

    allowed: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("here")
            assert others() is not None  # to read is allowed
            with transaction.atomic(using="other"):
                Entry.objects.using("other").create(text=f"there {len(others())}")
            return HttpResponse(status=503)

        @idempotency.atomic
        def after(request: Any) -> HttpResponse:
            write("here")
            transaction.on_commit(lambda: Entry.objects.using("other").create(text="after"))
            return HttpResponse(status=201)

        @idempotency.leased
        def call(request: Any) -> HttpResponse:
            Entry.objects.using("other").create(text="called")
            return HttpResponse(status=201)

        return [path("pay", pay), path("after", after), path("call", call)]

    with world(sqlite_url, urls, other_databases=allowed) as shop, other(other_sqlite_url):
        assert [shop.post("/pay", "k1").status_code for _ in range(2)] == [500, 500]
        assert (shop.entries(), others()) == ([], [])
        assert "SAMEKEY['OTHER_DATABASES'] = ['other']" in caplog.text
        assert [shop.post("/after", "k2").status_code for _ in range(2)] == [201, 201]
        assert shop.post("/call", "k3").status_code == 201
        assert (shop.entries(), others()) == (["here"], ["after", "called"])
        allowed.append("other")
        assert shop.post("/pay", "k4").status_code == 500  # "here" is unique
        Entry.objects.all().delete()
        assert shop.post("/pay", "k4").status_code == 503
        assert others() == ["after", "called", "there 2"]


@pytest.fixture
def other_sqlite_url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/other.db"


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select 1", False),
        (" /* a */ -- b\n (SELECT 1)", False),
        (b"show x", False),
        ("with a as (select 1) select * from a", False),
        ("SAVEPOINT s", False),
        ("/* app */ insert into x values (1)", True),
        ("with a as (delete from x returning 1) select * from a", True),
        ("explain analyze update x set y = 1", True),
        ("call f()", True),
        ("create table x (y int)", True),
        ("", True),
    ],
)
def test_whatever_is_not_known_to_read_writes(sql: Any, found: bool) -> None:
    from samekey.django.outside import writes

    assert writes(sql, None) is found


@pytest.mark.parametrize("how", ["close", "close_all"])
def test_a_view_that_closes_its_connection_leaves_its_key_free(each_url: str, how: str) -> None:
    closes = [True]

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("paid")
            if closes:
                closes.pop()
                (connection.close if how == "close" else connections.close_all)()
            return HttpResponse(status=201)

        return [path("pay", pay)]

    with world(each_url, urls) as shop:
        assert [shop.post("/pay", "k").status_code for _ in range(2)] == [500, 201]
        assert shop.entries() == ["paid"]


@pytest.mark.parametrize("mode", ["leased", "atomic", "undecorated"])
def test_a_transaction_around_the_middleware_is_refused_before_anything_runs(
    database_url: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        def pay(request: Any) -> HttpResponse:
            write("paid")
            return HttpResponse(status=201)

        return [path("pay", pay if mode == "undecorated" else getattr(idempotency, mode)(pay))]

    outside = ["tests.django.test_outside.in_a_transaction", "samekey.django.IdempotencyMiddleware"]
    with world(database_url, urls, MIDDLEWARE=outside) as shop:
        assert [shop.post("/pay", "k").status_code for _ in range(2)] == [500, 500]
        assert shop.entries() == []
        assert "Put the middleware that opens it below samekey's" in caplog.text


def test_a_transaction_below_the_middleware_has_ended_when_a_leased_answer_is_recorded(
    database_url: str,
) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.leased
        def pay(request: Any) -> HttpResponse:
            write("paid")
            return HttpResponse(status=201)

        return [path("pay", pay)]

    below = ["samekey.django.IdempotencyMiddleware", "tests.django.test_outside.in_a_transaction"]
    with world(database_url, urls, MIDDLEWARE=below) as shop:
        assert [shop.post("/pay", "k").status_code for _ in range(2)] == [201, 201]
        assert shop.entries() == ["paid"]


def in_a_transaction(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        with transaction.atomic():
            return get_response(request)

    return middleware


def test_a_wrapper_of_queries_around_the_view_is_taken_off_with_its_block(each_url: str) -> None:
    """As Django shows how to count queries: in a middleware, and around the view."""
    counted: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write(f"paid {len(counted)}")
            return HttpResponse(status=201)

        return [path("pay", pay)]

    def count(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        counted.append(sql)
        with connection.cursor() as cursor:  # one that asks something itself
            cursor.db.execute_wrappers, kept = [], cursor.db.execute_wrappers
            cursor.execute("select 1")
            cursor.db.execute_wrappers = kept
        return execute(sql, params, many, context)

    def counts(get_response: Any) -> Any:
        def middleware(request: Any) -> Any:
            with connection.execute_wrapper(count):
                return get_response(request)

        return middleware

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.django.test_outside.in_a_transaction", counts)
        below = ["samekey.django.IdempotencyMiddleware", "tests.django.test_outside.in_a_transaction"]
        with world(each_url, urls, MIDDLEWARE=below) as shop:
            assert [shop.post("/pay", f"k{number}").status_code for number in range(3)] == [201] * 3
            seen = len(counted)
            assert (seen > 0, len(shop.entries())) == (True, 3)
            assert (len(counted), count in connection.execute_wrappers) == (seen, False)
