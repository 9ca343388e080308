"""ATOMIC_REQUESTS: before its claim an atomic view has no transaction, so what it would write is refused."""

from __future__ import annotations

import functools
import json
from typing import Any, ClassVar

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.urls import path
from rest_framework.response import Response
from rest_framework.serializers import ModelSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet

from samekey import Idempotency
from samekey.django.checks import check_views
from tests.django.test_atomic import write
from tests.django.world import world

ATOMIC = {"ATOMIC_REQUESTS": True}


def reserves(view: Any) -> Any:
    @functools.wraps(view)
    def around(request: Any) -> Any:
        with transaction.atomic():
            write("reserved")
        return view(request)

    return around


def views(idempotency: Idempotency) -> list[Any]:
    from samekey.django import Idempotent
    from tests.django.ledger.models import Entry

    class EntrySerializer(ModelSerializer):  # type: ignore[misc]
        class Meta:
            model = Entry
            fields = ("id", "text")

    class Entries(Idempotent, ModelViewSet):  # type: ignore[misc]
        serializer_class = EntrySerializer
        idempotent: ClassVar = {"perform_create": idempotency.atomic, "perform_update": idempotency.atomic}

        def get_queryset(self) -> Any:
            return Entry.objects.select_for_update()

        def create(self, request: Any) -> Any:
            write("header")
            return super().create(request)

    class Initial(APIView):  # type: ignore[misc]
        def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
            super().initial(request, *args, **kwargs)
            with connection.cursor() as cursor:
                cursor.execute("insert into entries (text) values ('initial')")

        @idempotency.atomic
        def post(self, request: Any) -> Response:
            write("order")
            raise RuntimeError("a bug")

    @idempotency.atomic
    def pay(request: Any) -> HttpResponse:
        write("order")
        raise RuntimeError("a bug")

    return [
        path("create", Entries.as_view({"post": "create"})),
        path("update/<int:pk>", Entries.as_view({"patch": "partial_update"})),
        path("initial", Initial.as_view()),
        path("decorated", reserves(pay)),
        path("known", transaction.non_atomic_requests(reserves(pay))),
        path("bare", pay),
    ]


def test_what_a_view_writes_before_its_claim_is_not_sent(
    each_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with world(each_url, views, of_database=ATOMIC) as shop:
        for place in ("/create", "/initial", "/decorated"):
            answers = [shop.post(place, place[1:], {"text": "order"}).status_code for _ in range(2)]
            assert (answers, shop.entries()) == ([500, 500], []), place
            assert f"POST {place}: something was to be written" in caplog.text
        assert [shop.post("/bare", "b").status_code, shop.entries()] == [500, []]
        assert [shop.post("/known", "k").status_code, shop.entries()] == [500, ["reserved"]]


def test_a_lock_before_the_claim_is_refused_with_a_sentence(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with world(postgres_url, views, of_database=ATOMIC) as shop:
        place = f"/update/{write('a').pk}"
        for _ in range(2):
            answer = shop.client.patch(
                place, json.dumps({"text": "b"}), "application/json", headers={"Idempotency-Key": "k"}
            )
            assert answer.status_code == 500
        assert "It was used before the guarded function was reached" in caplog.text
        assert shop.entries() == ["a"]


def test_what_is_around_the_view_may_write(sqlite_url: str) -> None:
    """Also where nobody has claimed: ATOMIC_REQUESTS has never been around middleware."""
    below = ["samekey.django.IdempotencyMiddleware", "tests.django.test_before.logs"]

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.atomic
        def pay(request: Any) -> HttpResponse:
            return HttpResponse(status=201)

        def validated(view: Any) -> Any:
            def around(request: Any) -> Any:
                return HttpResponse(status=422) if request.META["PATH_INFO"] == "/never" else view(request)

            return functools.wraps(view)(around)

        return [path("pay", pay), path("never", validated(pay))]

    with world(sqlite_url, urls, of_database=ATOMIC, MIDDLEWARE=below) as shop:
        assert [shop.post("/never", "k").status_code, shop.entries()] == [422, ["log 0"]]
        assert [shop.post("/pay", "k").status_code for _ in range(2)] == [201, 201]
        assert shop.entries() == ["log 0", "log 1", "log 2"]


def logs(get_response: Any) -> Any:
    from tests.django.ledger.models import Entry

    def middleware(request: Any) -> Any:
        response = get_response(request)
        write(f"log {Entry.objects.count()}")
        return response

    return middleware


def test_such_views_are_named(sqlite_url: str) -> None:
    with world(sqlite_url, views, of_database=ATOMIC):
        named = sorted(message.msg.partition(" runs")[0] for message in check_views())
        assert named == [
            "POST /create: views.<locals>.Entries.create",
            "POST /decorated: a decorator of it",
            "POST /initial: views.<locals>.Initial.initial",
        ]
        connection.settings_dict["ATOMIC_REQUESTS"] = False
        assert check_views() == []
