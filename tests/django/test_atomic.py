"""Atomic views: what the ORM writes commits with the answer, or not at all."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from samekey import Idempotency, current_operation
from tests.django.world import World, world


def write(text: str) -> Any:
    from tests.django.ledger.models import Entry

    return Entry.objects.create(text=text)


def test_a_retry_gets_the_first_answer_and_the_row_is_there_once(each_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            entry = write("paid")
            return HttpResponse(f"\x00\xe9{entry.pk}".encode("latin-1"), status=201, content_type="x/y")

        return [path("pay", pay)]

    with world(each_url, urls) as shop:
        first, again = shop.post("/pay", "k", {"a": 1}), shop.post("/pay", "k", {"a": 1})
        other, missing = shop.post("/pay", "k", {"a": 2}), shop.post("/pay", None, {"a": 1})
        assert (first.status_code, again.status_code) == (201, 201)
        assert (again.content, again["Content-Type"]) == (first.content, "x/y")
        assert "Idempotent-Replayed" not in first
        assert again["Idempotent-Replayed"] == "true"
        assert (other.status_code, other.json()["code"]) == (422, "reused")
        assert (missing.status_code, missing.json()["code"]) == (400, "missing")
        assert shop.entries() == ["paid"]
        assert shop.post("/pay", "k", {"a": 1}, X_Account="bob").status_code == 500  # its row is unique
        assert shop.post("/pay", "k", {"a": 1}, X_Account="").status_code == 401


@pytest.mark.parametrize("how", ["raises", "403", "500", "404", "409"])
def test_a_row_vanishes_when_its_view_fails(database_url: str, how: str) -> None:
    failing = [True]

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("paid")
            if not failing[0]:
                return HttpResponse("done", status=201)
            if how == "raises":
                raise RuntimeError("a bug")
            if how == "403":
                raise PermissionDenied
            if how == "404":
                raise Http404
            return HttpResponse("no", status=int(how))

        return [path("pay", pay)]

    with world(database_url, urls) as shop:
        failed = shop.post("/pay", "k")
        assert failed.status_code == (500 if how == "raises" else int(how))
        assert shop.entries() == []
        failing[0] = False
        again = shop.post("/pay", "k")
        if how in ("404", "409"):  # a refusal is remembered, though nothing of it stands
            assert (again.status_code, again["Idempotent-Replayed"]) == (int(how), "true")
            assert shop.entries() == []
        else:
            assert (again.status_code, shop.entries()) == (201, ["paid"])
        assert not connection.in_atomic_block
        assert connection.get_autocommit()


class NotesFailures:
    """A middleware below samekey's, as many projects have."""

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self._get_response(request)

    def process_exception(self, request: Any, error: Exception) -> HttpResponse:
        write("failure")
        return JsonResponse({"detail": "declined"}, status=402)


@pytest.mark.parametrize("how", ["raises", "fails"])
def test_who_answers_its_error_writes_what_stands(database_url: str, how: str) -> None:
    failing = [True]

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("paid")
            if failing.pop():
                if how == "fails":
                    write("paid")
                raise RuntimeError("a bug")
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    below = f"{NotesFailures.__module__}.{NotesFailures.__name__}"
    with world(database_url, urls, MIDDLEWARE=["samekey.django.IdempotencyMiddleware", below]) as shop:
        assert (shop.post("/pay", "k").status_code, shop.entries()) == (402, ["failure"])
        failing.append(False)
        assert (shop.post("/pay", "k").status_code, shop.entries()) == (201, ["failure", "paid"])


def test_a_service_that_opens_a_transaction_of_its_own_writes_inside_of_ours(each_url: str) -> None:
    called: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            with transaction.atomic():
                write("kept")
                transaction.on_commit(lambda: called.append(f"on commit: {shop.entries()}"))
            with suppress(IntegrityError), transaction.atomic():
                write("undone")
                transaction.on_commit(lambda: called.append("never"))
                write("kept")
            called.append("view")
            if request.path == "/fail":
                raise RuntimeError("a bug")
            return HttpResponse(status=201)

        return [path("pay", pay), path("fail", pay)]

    with world(each_url, urls) as shop:
        assert shop.post("/fail", "k1").status_code == 500
        assert (shop.entries(), called) == ([], ["view"])
        assert shop.post("/pay", "k2").status_code == 201
        assert shop.entries() == ["kept"]
        assert called[1:] == ["view", "on commit: ['kept']"]
        assert shop.post("/pay", "k2").status_code == 201
        assert called[3:] == []


def test_what_fails_on_commit_leaves_the_answer_as_it_is_recorded(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("paid")
            transaction.on_commit(lambda: 1 // 0)
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    with world(sqlite_url, urls) as shop:
        assert [shop.post("/pay", "k").status_code for _ in range(2)] == [201, 201]
        assert "on commit failed; the operation stands" in caplog.text


@pytest.mark.parametrize("way", ["commit", "raw commit", "sql", "durable", "marked", "swallowed", "closed"])
def test_a_view_cannot_end_its_transaction_and_is_told_so(
    each_url: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    sentences: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("paid")
            try:
                if way == "commit":
                    transaction.commit()
                elif way == "raw commit":
                    connection.connection.commit()
                elif way == "sql":
                    with connection.cursor() as cursor:
                        cursor.execute("commit")
                elif way == "durable":
                    with transaction.atomic(durable=True):
                        write("more")
                elif way == "marked":
                    transaction.set_rollback(True)
                elif way == "swallowed":
                    write("paid")
                else:
                    connection.close()
            except Exception as error:
                sentences.append(str(error))
                if way != "swallowed":
                    raise
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    with world(each_url, urls) as shop:
        answer = shop.post("/pay", "k")
        known = shop.entries()
        # Either nothing stands and a retry may run, or what stands is known to be unknown: never free.
        if known:
            assert answer.status_code == 409, answer.content
            assert answer.json()["code"] == "outcome_unknown"
            assert shop.post("/pay", "k").json()["code"] == "outcome_unknown"
        else:
            assert answer.status_code == 500, answer.content
        if way == "durable":
            assert "Leave durable=True out" in sentences[0]
        if way in ("marked", "swallowed"):
            assert "Django has marked this transaction for rollback" in caplog.text
        assert shop.post("/pay", "another").status_code in (500, 409)  # the connection is good again


def test_a_duplicate_is_told_that_the_first_still_runs(database_url: str) -> None:
    runs, go_on = threading.Event(), threading.Event()

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            runs.set()
            assert go_on.wait(30)
            write("paid")
            return HttpResponse("done", status=201)

        return [path("pay", pay)]

    with world(database_url, urls) as shop:
        first: list[Any] = []

        def send() -> None:
            first.append(World().post("/pay", "k"))
            connection.close()

        thread = threading.Thread(target=send)
        thread.start()
        assert runs.wait(30)
        duplicate = shop.post("/pay", "k")
        go_on.set()
        thread.join(30)
        assert (duplicate.status_code, duplicate.json()["code"]) == (409, "in_progress")
        assert "Retry-After" in duplicate
        assert first[0].status_code == 201
        assert (shop.post("/pay", "k").content, shop.entries()) == (b"done", ["paid"])


@pytest.mark.parametrize("of_database", [{"ATOMIC_REQUESTS": True}, {"ATOMIC_REQUESTS": False}])
def test_atomic_requests_is_handed_over(each_url: str, of_database: dict[str, Any]) -> None:
    seen: list[bool] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            write("paid")
            return HttpResponse(status=201)

        @idempotency.leased
        def call(request: Any) -> HttpResponse:
            seen.append(connection.in_atomic_block)
            write("called")
            return HttpResponse(status=201)

        def plain(request: Any) -> HttpResponse:
            seen.append(connection.in_atomic_block)
            write("plain")
            return HttpResponse(status=201)

        return [path("pay", pay), path("call", call), path("plain", plain)]

    with world(each_url, urls, of_database=of_database) as shop:
        for place in ("/pay", "/call", "/plain"):
            first, again = shop.post(place, "k" + place[1:]), shop.post(place, "k" + place[1:])
            assert (first.status_code, again.status_code) == (201, 201), first.content
            assert again["Idempotent-Replayed"] == "true"
        assert shop.entries() == ["paid", "called", "plain"]
        assert seen == [of_database["ATOMIC_REQUESTS"]] * 2


def test_a_transaction_around_an_atomic_view_is_refused(sqlite_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @transaction.atomic  # type: ignore[untyped-decorator]
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            raise AssertionError("it was run")

        return [path("pay", pay)]

    with world(sqlite_url, urls) as shop:
        assert shop.post("/pay", "k").status_code == 500


def test_an_atomic_view_does_not_stream(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> StreamingHttpResponse:
            write("paid")
            return StreamingHttpResponse(iter([b"a", b"b"]), status=201)

        @idempotency.leased
        def call(request: Any) -> StreamingHttpResponse:
            return StreamingHttpResponse(iter([b"a", b"b"]), status=201)

        return [path("pay", pay), path("call", call)]

    with world(database_url, urls) as shop:
        assert (shop.post("/pay", "k").status_code, shop.entries()) == (500, [])
        assert "cannot stream its answer" in caplog.text
        assert shop.post("/call", "k2").getvalue() == b"ab"
        assert shop.post("/call", "k2").json()["code"] == "result_unavailable"


def test_an_optional_key_that_was_not_sent(database_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic(required=False)
        def pay(request: Any) -> JsonResponse:
            write("paid")
            if request.GET:
                raise RuntimeError("a bug")
            return JsonResponse({"mode": current_operation().mode}, status=201)

        return [path("pay", pay)]

    with world(database_url, urls) as shop:
        assert shop.post("/pay?fail=1").status_code == 500
        assert shop.entries() == []
        assert shop.post("/pay").json() == {"mode": "atomic"}
        assert shop.entries() == ["paid"]
