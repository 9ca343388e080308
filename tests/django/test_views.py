"""Views of every kind: functions, classes, REST framework's; decorated or not."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import pytest
from django.contrib.auth.decorators import login_required
from django.core.signals import got_request_exception
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from django.views.generic import CreateView

from samekey import Idempotency, current_operation
from tests.django.test_atomic import write
from tests.django.world import world


def test_methods_of_a_class_are_guarded_one_by_one(sqlite_url: str) -> None:
    ran: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        class Orders(View):  # type: ignore[misc]
            @idempotency.atomic
            def post(self, request: Any, number: int) -> HttpResponse:
                write(f"post {number}")
                return HttpResponse(status=201)

            def patch(self, request: Any, number: int) -> HttpResponse:
                ran.append("patch")
                return HttpResponse("patched")

            def get(self, request: Any, number: int) -> HttpResponse:
                ran.append("get")
                return HttpResponse("got")

        return [path("orders/<int:number>", Orders.as_view())]

    with world(sqlite_url, urls) as shop:
        answers = [shop.post("/orders/7", "k"), shop.post("/orders/7", "k"), shop.post("/orders/7")]
        assert [answer.status_code for answer in answers] == [201, 201, 400]
        sent = {"Idempotency-Key": "k2"}
        assert [shop.client.patch("/orders/7", headers=sent).content for _ in range(2)] == [b"patched"] * 2
        assert [shop.client.get("/orders/7", headers=sent).content for _ in range(2)] == [b"got"] * 2
        assert shop.client.put("/orders/7", headers=sent).status_code == 405
        assert (shop.entries(), ran) == (["post 7"], ["patch", "get", "get"])


def test_a_method_that_is_inherited_is_guarded_by_a_line_in_the_class(sqlite_url: str) -> None:
    from samekey.django import Idempotent
    from tests.django.ledger.models import Entry

    def urls(idempotency: Idempotency) -> list[Any]:
        class Create(Idempotent, CreateView):  # type: ignore[misc]
            model = Entry
            fields = ("text",)
            success_url = "/done"
            idempotent: ClassVar = {"post": idempotency.atomic}

        return [path("new", csrf_exempt(Create.as_view()))]

    with world(sqlite_url, urls) as shop:
        sent = {"Idempotency-Key": "k"}
        answers = [shop.client.post("/new", {"text": "hello"}, headers=sent) for _ in range(2)]
        assert [(one.status_code, one["Location"]) for one in answers] == [(302, "/done")] * 2
        assert shop.entries() == ["hello"]


def test_others_decorators_run_at_every_retry(sqlite_url: str) -> None:
    allowed = [True]

    def urls(idempotency: Idempotency) -> list[Any]:
        def checked(view: Any) -> Any:
            def around(request: Any) -> Any:
                return view(request) if allowed[0] else HttpResponse(status=403)

            return around

        class Pay(View):  # type: ignore[misc]
            @method_decorator(checked)  # type: ignore[untyped-decorator]
            @idempotency.atomic
            def post(self, request: Any) -> HttpResponse:
                write("paid")
                return HttpResponse(status=201)

        return [path("pay", Pay.as_view())]

    with world(sqlite_url, urls) as shop:
        assert [shop.post("/pay", "k").status_code for _ in range(2)] == [201, 201]
        allowed[0] = False
        assert (shop.post("/pay", "k").status_code, shop.entries()) == (403, ["paid"])


def test_a_decorator_that_is_made_anew_at_each_call_is_refused(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @method_decorator(idempotency.atomic, name="post")
        class Pay(View):  # type: ignore[misc]
            def post(self, request: Any) -> HttpResponse:
                raise AssertionError("it was run")

        return [path("pay", Pay.as_view())]

    with world(sqlite_url, urls) as shop:
        assert shop.post("/pay", "k").status_code == 500
        assert "Decorate this function itself" in caplog.text


def test_undecorated_views_are_guarded_where_a_key_is_sent(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        def plain(request: Any) -> HttpResponse:
            ran.append(current_operation().mode)
            return HttpResponse("done")

        @csrf_exempt  # type: ignore[untyped-decorator]
        @require_POST  # type: ignore[untyped-decorator]
        def harmless(request: Any) -> HttpResponse:
            ran.append("harmless")
            return HttpResponse("done")

        @login_required  # type: ignore[untyped-decorator]
        def wrapped(request: Any) -> HttpResponse:
            raise AssertionError("it was run")

        return [path("plain", plain), path("harmless", harmless), path("wrapped", wrapped)]

    with world(sqlite_url, urls) as shop:
        for place in ("/plain", "/harmless"):
            answers = [shop.post(place, f"k{place}") for _ in range(2)]
            assert [one.content for one in answers] == [b"done"] * 2
            assert answers[1]["Idempotent-Replayed"] == "true"
            assert shop.post(place).content == b"done"
        assert ran == ["leased", "leased", "harmless", "harmless"]
        assert shop.post("/wrapped", "k").status_code == 500
        assert "Put @idempotency.leased" in caplog.text


def test_replays_and_verdicts_are_no_errors_to_django(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.leased
        def pay(request: Any) -> HttpResponse:
            return HttpResponse("no", status=409)

        return [path("pay", pay)]

    def hear(**facts: Any) -> None:
        told.append(facts)

    with world(sqlite_url, urls) as shop, caplog.at_level(logging.DEBUG, "django"):
        shop.post("/pay", "k")
        caplog.clear()
        got_request_exception.connect(hear)
        try:
            answers = [shop.post("/pay", "k"), shop.post("/pay", "k", {"other": 1}), shop.post("/pay")]
        finally:
            got_request_exception.disconnect(hear)
        assert [answer.status_code for answer in answers] == [409, 422, 400]
        assert (told, [record for record in caplog.records if record.name.startswith("django")]) == ([], [])


def test_what_became_of_an_operation_can_be_asked(sqlite_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.leased
        def pay(request: Any) -> JsonResponse:
            return JsonResponse({"id": current_operation().id}, status=201)

        return [path("pay", pay)]

    with world(sqlite_url, urls, policy={"status_path": "/operations"}) as shop:
        number = shop.post("/pay", "k").json()["id"]
        mine = shop.client.get(f"/operations/{number}")
        other = shop.client.get(f"/operations/{number}", headers={"X-Account": "bob"})
        assert (mine.status_code, mine.json()["state"], other.status_code) == (200, "completed", 404)


def test_modes_with_jobs_and_phases(database_url: str) -> None:
    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.job("send")
        def send(job: Any, payload: Any) -> dict[str, str]:
            return {"sent": payload}

        @idempotency.deferred
        def accept(request: Any) -> HttpResponse:
            write("accepted")
            current_operation().enqueue("send", "hello")
            return HttpResponse(status=202)

        @idempotency.phased("ride")
        def ride(op: Any, given: Any) -> Any:
            op.transaction("written", lambda connection: str(write("ride").pk))
            return {"ride": op.effect("called", lambda effect: "yes")}

        return [path("accept", accept), path("ride", ride)]

    with world(database_url, urls) as shop:
        assert [shop.post("/accept", "k1").status_code for _ in range(2)] == [202, 202]
        first, again = (shop.post("/ride", "k2", {"a": 1}) for _ in range(2))
        assert (first.json(), again.content) == ({"ride": "yes"}, first.content)
        assert shop.entries() == ["accepted", "ride"]


def test_plain_functions_run_once_in_djangos_transaction(database_url: str) -> None:
    from samekey.django import conf

    def urls(idempotency: Idempotency) -> list[Any]:
        return []

    with world(database_url, urls) as shop:
        idempotency = conf.the_idempotency()

        def run() -> int:
            return int(write("once").pk)

        results = [idempotency.once(tenant="ann", key="k", run=run, mode="atomic") for _ in range(2)]
        assert results[0] == results[1]
        with pytest.raises(ZeroDivisionError):
            idempotency.once(tenant="ann", key="k2", run=lambda: write("undone").pk // 0, mode="atomic")
        assert shop.entries() == ["once"]
