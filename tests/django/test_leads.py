"""Undecorated methods that lead to guarded ones: what inherits a guard, and what is refused at once."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.http import HttpResponse
from django.urls import include, path
from django.views import View
from rest_framework.decorators import action
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import ModelSerializer
from rest_framework.viewsets import ModelViewSet

from samekey import Idempotency
from samekey.django.checks import check_views
from tests.django.test_atomic import write
from tests.django.world import world

CASES = pytest.mark.parametrize("of_database", [{}, {"ATOMIC_REQUESTS": True}], ids=["", "atomic_requests"])


def views(idempotency: Idempotency) -> list[Any]:
    from samekey.django import Idempotent
    from tests.django.ledger.models import Entry

    class EntrySerializer(ModelSerializer):  # type: ignore[misc]
        class Meta:
            model = Entry
            fields = ("id", "text")
            extra_kwargs: ClassVar[dict[str, Any]] = {"text": {"validators": []}}

    class Plain(ModelViewSet):  # type: ignore[misc]
        queryset = Entry.objects.all()
        serializer_class = EntrySerializer

    class Entries(Idempotent, Plain):
        idempotent: ClassVar = {"perform_create": idempotency.atomic}

        def perform_one(self) -> None:
            made = EntrySerializer(data={"text": "one"})
            made.is_valid(raise_exception=True)
            self.perform_create(made)

        @action(detail=False, methods=["post"])  # type: ignore[untyped-decorator]
        def clone(self, request: Any) -> Response:
            write("before")
            self.perform_one()
            return Response(status=201)

        @action(detail=False, methods=["post"])  # type: ignore[untyped-decorator]
        @idempotency.atomic(required=False)
        def guarded(self, request: Any) -> Response:
            self.perform_one()
            return Response(status=201)

        @action(detail=False, methods=["post"])  # type: ignore[untyped-decorator]
        def other(self, request: Any) -> Response:
            Entry.objects.create(text="other")
            return Response(status=201)

    class Child(Entries):
        def perform_create(self, serializer: Any) -> None:
            write("child")
            super().perform_create(serializer)

    class Pay(View):  # type: ignore[misc]
        @idempotency.atomic
        def post(self, request: Any) -> HttpResponse:
            write("paid")
            return HttpResponse(status=201)

    class Decorated(Plain):
        @idempotency.atomic
        def perform_create(self, serializer: Any) -> None:
            serializer.save()

    class Overrides(Decorated):
        def perform_create(self, serializer: Any) -> None:
            write("before")
            super().perform_create(serializer)

    class ChildPay(Pay):
        def post(self, request: Any) -> HttpResponse:
            write("before")
            return super().post(request)

    class OwnPay(Pay):
        def post(self, request: Any) -> HttpResponse:
            write("own")
            return HttpResponse(status=201)

    router = SimpleRouter()
    for one in (Plain, Entries, Child, Decorated, Overrides):
        router.register(one.__name__.lower(), one, basename=one.__name__.lower())
    return [
        path("", include(router.urls)),
        path("pay", Pay.as_view()),
        path("child-pay", ChildPay.as_view()),
        path("own-pay", OwnPay.as_view()),
    ]


@CASES
@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("place", ["/entries/clone/", "/child-pay", "/overrides/"])
def test_a_method_that_leads_to_a_guarded_one_is_refused_before_it_runs(
    sqlite_url: str, of_database: dict[str, Any], key: str | None, place: str, caplog: Any
) -> None:
    with world(sqlite_url, views, of_database=of_database) as shop:
        assert [shop.post(place, key, {"text": "a"}).status_code for _ in range(2)] == [500, 500]
        assert shop.entries() == []
        assert f"POST {place}: " in caplog.text
        assert "two guards would meet" in caplog.text


@CASES
def test_an_override_of_what_a_class_names_is_guarded_alike(
    sqlite_url: str, of_database: dict[str, Any]
) -> None:
    with world(sqlite_url, views, of_database=of_database) as shop:
        first, again = (shop.post("/child/", "k", {"text": "a"}) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 201)
        assert (again.content, again["Idempotent-Replayed"]) == (first.content, "true")
        assert shop.post("/child/", None, {"text": "b"}).json()["code"] == "missing"
        assert shop.entries() == ["child", "a"]


@CASES
def test_what_is_decorated_as_well_is_one_operation(sqlite_url: str, of_database: dict[str, Any]) -> None:
    with world(sqlite_url, views, of_database=of_database) as shop:
        for place, row in (("/entries/guarded/", "one"), ("/entries/other/", "other"), ("/own-pay", "own")):
            assert [shop.post(place, row).status_code for _ in range(2)] == [201, 201]
        assert shop.entries() == ["one", "other", "own"]


def test_a_class_is_not_guarded_by_what_another_inherits(sqlite_url: str) -> None:
    """``create`` is one and the same method for all of them, and is routed for the unguarded one first."""
    with world(sqlite_url, views) as shop:
        assert shop.post("/plain/", None, {"text": "a"}).status_code == 201
        assert [shop.post("/entries/", "k", {"text": "b"}).status_code for _ in range(2)] == [201, 201]
        assert [shop.post("/decorated/", "d", {"text": "d"}).status_code for _ in range(2)] == [201, 201]
        assert [shop.post("/plain/", "p", {"text": "c"}).status_code for _ in range(2)] == [201, 201]
        assert shop.entries() == ["a", "b", "d", "c"]


def test_they_are_named(sqlite_url: str) -> None:
    with world(sqlite_url, views):
        said = [one.msg.partition(":")[0] for one in check_views() if one.id == "samekey.E013"]
        assert sorted(said) == [
            "POST /child-pay",
            "POST /child/clone/",
            "POST /entries/clone/",
            "POST /overrides/",
        ]
