"""The admin: what operators may see there, and the acts that the audit keeps."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from samekey import Idempotency, OutcomeUnknown
from samekey.django.models import Key
from tests.django.world import world

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "samekey.django.IdempotencyMiddleware",
]


def test_pages_and_acts(sqlite_url: str) -> None:
    known = [False]

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.leased
        def pay(request: Any) -> HttpResponse:
            if not known[0]:
                raise OutcomeUnknown("nobody knows")
            return HttpResponse("a secret answer", status=201)

        return [path("admin/", admin.site.urls), path("pay", pay)]

    with world(sqlite_url, urls, MIDDLEWARE=MIDDLEWARE) as shop:
        call_command("migrate", verbosity=0)
        User.objects.create_superuser("olga", password="x")
        operator = Client()
        assert operator.login(username="olga", password="x")
        assert shop.post("/pay", "k").json()["code"] == "outcome_unknown"

        listed = operator.get("/admin/samekey/key/")
        assert listed.status_code == 200
        assert b"POST /pay" in listed.content
        number = Key.objects.get().pk

        def act(name: str, reason: str) -> str:
            form = {"action": name, "_selected_action": [number], "reason": reason}
            return str(operator.post("/admin/samekey/key/", form, follow=True).content.decode())

        assert "Say why: it is kept in the audit" in act("not_executed", " ")
        assert shop.post("/pay", "k").json()["code"] == "outcome_unknown"
        assert "done." in act("not_executed", "the provider has never heard of it")
        known[0] = True
        assert shop.post("/pay", "k").status_code == 201
        assert "it is not in a state for that" in act("not_executed", "again")
        assert "done." in act("evict", "it was private")
        assert shop.post("/pay", "k").json()["code"] == "result_unavailable"

        audit = operator.get("/admin/samekey/auditline/").content.decode()
        assert "the provider has never heard of it" in audit
        assert "olga" in audit
        one = operator.get(f"/admin/samekey/key/{number}/change/").content.decode()
        assert "a secret answer" not in one
        assert 'name="_save"' not in one
        assert operator.get("/admin/samekey/deadletter/").status_code == 200
        assert operator.get("/admin/samekey/key/add/").status_code == 403
