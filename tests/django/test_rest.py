"""REST framework: the claim comes after its authentication, permissions and validation."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.urls import include, path
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import APIException, PermissionDenied, Throttled
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import ModelSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet

from samekey import Idempotency
from tests.django.test_atomic import write
from tests.django.world import world


class SoldOut(APIException):  # type: ignore[misc]
    status_code = 409
    default_detail = "sold out"


def viewset(idempotency: Idempotency, where: str, **of_text: Any) -> list[Any]:
    from samekey.django import Idempotent
    from tests.django.ledger.models import Entry

    class EntrySerializer(ModelSerializer):  # type: ignore[misc]
        class Meta:
            model = Entry
            fields = ("id", "text")
            extra_kwargs: ClassVar = {"text": of_text}

    class Entries(Idempotent, ModelViewSet):  # type: ignore[misc]
        queryset = Entry.objects.all()
        serializer_class = EntrySerializer
        idempotent: ClassVar = {where: idempotency.atomic}

        @action(detail=True, methods=["post"])  # type: ignore[untyped-decorator]
        @idempotency.leased
        def shout(self, request: Any, pk: str) -> Response:
            return Response({"text": self.get_object().text.upper()}, headers={"X-Loud": "yes"})

    router = SimpleRouter()
    router.register("entries", Entries)
    return [path("", include(router.urls))]


def test_what_a_serializer_refuses_is_not_claimed(database_url: str) -> None:
    """Guarded where it is performed: what is not valid may be corrected under the same key."""
    with world(
        database_url, lambda idempotency: viewset(idempotency, "perform_create", validators=[])
    ) as shop:
        assert shop.post("/entries/", "k", {"text": ""}).status_code == 400
        first, again = (shop.post("/entries/", "k", {"text": "a"}) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 201)
        assert (again.content, again["Idempotent-Replayed"]) == (first.content, "true")
        assert shop.post("/entries/", "k", {"text": "b"}).json()["code"] == "reused"
        assert shop.post("/entries/", None, {"text": "b"}).json()["code"] == "missing"
        assert shop.entries() == ["a"]
        loud = [shop.post(f"/entries/{first.json()['id']}/shout/", "k2") for _ in range(2)]
        assert [(one.json(), one["X-Loud"]) for one in loud] == [({"text": "A"}, "yes")] * 2
        assert shop.client.get("/entries/").json() == [first.json()]


def test_validation_that_looks_at_the_database_belongs_inside(sqlite_url: str) -> None:
    """A unique field is not unique any more when the retry comes; guarded around it, that is replayed."""
    with world(sqlite_url, lambda made: viewset(made, "create")) as shop:
        first, again = (shop.post("/entries/", "k", {"text": "a"}) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 201)
        assert shop.post("/entries/", "other", {"text": "a"}).status_code == 400
        assert shop.entries() == ["a"]


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (SoldOut(), 409, "remembered"),
        (PermissionDenied(), 403, "runs"),
        (Throttled(), 429, "runs"),
        (RuntimeError("a bug"), 500, "runs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("style", ["class", "function"])
def test_exceptions_are_answers(
    sqlite_url: str, error: Exception, status: int, again: str, style: str
) -> None:
    errors = [error]

    def urls(idempotency: Idempotency) -> list[Any]:
        def work() -> Response:
            write("written")
            if errors:
                raise errors[0]
            return Response({"done": True}, status=201)

        class Pay(APIView):  # type: ignore[misc]
            @idempotency.atomic
            def post(self, request: Any) -> Response:
                return work()

        @api_view(["POST"])  # type: ignore[untyped-decorator]
        @idempotency.atomic
        def pay(request: Any) -> Response:
            return work()

        return [path("pay", Pay.as_view() if style == "class" else pay)]

    with world(sqlite_url, urls) as shop:
        first = shop.post("/pay", "k")
        assert (first.status_code, shop.entries()) == (status, [])
        errors.clear()
        second = shop.post("/pay", "k")
        if again == "remembered":
            assert (second.status_code, second.content, shop.entries()) == (status, first.content, [])
        else:
            assert (second.status_code, shop.entries()) == (201, ["written"])


def test_permissions_are_asked_at_every_retry(sqlite_url: str) -> None:
    allowed = [True]

    def urls(idempotency: Idempotency) -> list[Any]:
        class Allowed(BasePermission):  # type: ignore[misc]
            def has_permission(self, request: Any, view: Any) -> bool:
                return allowed[0]

        class Pay(APIView):  # type: ignore[misc]
            permission_classes = (Allowed,)

            def post(self, request: Any) -> Response:
                write("paid")
                return Response(request.data, status=201)

        return [path("pay", Pay.as_view())]

    with world(sqlite_url, urls) as shop:
        answers = [shop.post("/pay", "k", {"a": 1}) for _ in range(2)]
        assert [one.status_code for one in answers] == [201, 201]
        assert answers[1].json() == {"a": 1}
        allowed[0] = False
        assert shop.post("/pay", "k", {"a": 1}).status_code == 403
        assert shop.entries() == ["paid"]


def test_the_api_page_describes_an_endpoint_by_its_own_words() -> None:
    """A viewset without a docstring has none; the mixin's would be printed beside every operation."""
    from drf_spectacular.plumbing import get_doc

    from samekey.django import Idempotent

    class Orders(Idempotent, APIView):  # type: ignore[misc]
        pass

    assert get_doc(Orders) == ""


def test_a_method_that_one_view_guards_is_another_ones_own(sqlite_url: str) -> None:
    """REST framework's classes share it: each POST to the other one was a 500, with and without a key."""
    from samekey.django import Idempotent
    from tests.django.ledger.models import Entry

    class EntrySerializer(ModelSerializer):  # type: ignore[misc]
        class Meta:
            model = Entry
            fields = ("id", "text")

    def urls(idempotency: Idempotency) -> list[Any]:
        class Guarded(Idempotent, ModelViewSet):  # type: ignore[misc]
            queryset = Entry.objects.all()
            serializer_class = EntrySerializer
            idempotent: ClassVar = {"create": idempotency.atomic}

        class Plain(ModelViewSet):  # type: ignore[misc]
            queryset = Entry.objects.all()
            serializer_class = EntrySerializer

        router = SimpleRouter()
        router.register("guarded", Guarded, basename="guarded")
        router.register("plain", Plain, basename="plain")
        return [path("", include(router.urls))]

    with world(sqlite_url, urls) as shop:
        assert shop.post("/plain/", None, {"text": "a"}).status_code == 201
        assert shop.post("/plain/", "p", {"text": "b"}).status_code == 201
        assert shop.post("/guarded/", None, {"text": "c"}).status_code == 400
        answers = [shop.post("/guarded/", "g", {"text": "d"}) for _ in range(2)]
        assert [one.status_code for one in answers] == [201, 201]
        assert answers[1]["Idempotent-Replayed"] == "true"
