"""A process of its own for the admin: the names of samekey's tables are those of the database it starts with.

python -m tests.django.admin_child URL
"""

from __future__ import annotations

import asyncio
import re
import sys
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from django.db import connections
from django.http import HttpResponse
from django.urls import path

from examples.shop.orm import database
from samekey import Idempotency, OutcomeUnknown, Response, current_operation
from samekey.engine.engine import Engine
from samekey.errors import ConfigurationError
from samekey.workers.outbox import OutboxWorker
from tests.django.world import project, world

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "samekey.django.IdempotencyMiddleware",
]


def main(url: str) -> None:
    project({"default": database(url)})
    from django.contrib import admin
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command
    from django.test import Client

    from samekey.django.models import AuditLine, DeadLetter, Key

    known = [False]
    shipped: list[bool] = []

    def urls(idempotency: Idempotency) -> list[Any]:
        @idempotency.leased
        def pay(request: Any) -> HttpResponse:
            if not known[0]:
                raise OutcomeUnknown("nobody knows")
            return HttpResponse("a secret answer", status=201)

        @idempotency.job("ship", max_attempts=1)
        def ship(job: Any, order: Any) -> Response:
            shipped.append(known[0])
            if not known[0]:
                raise ValueError("no lorry")
            return Response(201, {"shipped": True})

        @idempotency.deferred
        def order(request: Any) -> HttpResponse:
            current_operation().enqueue("ship", {"order": 7})
            return HttpResponse(status=202)

        return [path("admin/", admin.site.urls), path("pay", pay), path("order", order)]

    with world(url, urls, MIDDLEWARE=MIDDLEWARE) as shop:
        from samekey.django import idempotency

        call_command("migrate", verbosity=0)
        User.objects.create_superuser("olga", password="x")
        reader = User.objects.create_user("rita", password="x", is_staff=True)
        reader.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
        operator, looker = Client(), Client()
        assert operator.login(username="olga", password="x")
        assert looker.login(username="rita", password="x")
        assert shop.post("/pay", "k").json()["code"] == "outcome_unknown"

        def page(where: str, client: Client = operator) -> str:
            got = client.get(f"/admin/samekey/{where}")
            assert got.status_code == 200, (where, got.status_code, got.content[:500])
            return str(got.content.decode())

        def act(model: str, name: str, row: str, reason: str, client: Client = operator) -> str:
            form = {"action": name, "_selected_action": [row], "reason": reason}
            return str(client.post(f"/admin/samekey/{model}/", form, follow=True).content.decode())

        # Keys: listed, filtered, searched, and none of them shown whole.
        number = Key.objects.get().pk
        for listed in ("key/", "key/?state__exact=unknown", "key/?mode__exact=leased", f"key/?q={number}"):
            assert "POST /pay" in page(listed), listed
        for listed in ("key/?state__exact=completed", "key/?q=nobody", "key/?q=k"):
            assert "POST /pay" not in page(listed), listed
        assert "Say why: it is kept in the audit" in act("key", "not_executed", number, " ")
        assert shop.post("/pay", "k").json()["code"] == "outcome_unknown"

        # Whoever may only look may not act.
        assert "POST /pay" in page("key/", looker)
        act("key", "not_executed", number, "I would like to", looker)
        assert shop.post("/pay", "k").json()["code"] == "outcome_unknown"

        assert "done." in act("key", "not_executed", number, "the provider has never heard of it")
        known[0] = True
        assert shop.post("/pay", "k").status_code == 201
        assert "it is not in a state for that" in act("key", "not_executed", number, "again")
        assert "done." in act("key", "evict", number, "it was private")
        assert shop.post("/pay", "k").json()["code"] == "result_unavailable"
        one = page(f"key/{number}/change/")
        assert "a secret answer" not in one
        assert 'name="_save"' not in one

        # Dead letters: a job that was given up is tried again.
        known[0] = False
        assert shop.post("/order", "o").status_code == 202
        assert "no lorry" not in page("deadletter/")
        asyncio.run(_work(idempotency.engine))
        dead = DeadLetter.objects.get(state="dead").pk
        assert "ValueError" in page("deadletter/"), page("deadletter/")
        assert "ship" in page(f"deadletter/?q={dead}")
        assert "done." in act("deadletter", "retry", dead, "the lorry is back")
        known[0] = True
        asyncio.run(_work(idempotency.engine))
        assert shipped == [False, True]
        assert shop.post("/order", "o").status_code == 201

        # For looking only: fixtures neither take them along nor put a state back.
        saved = StringIO()
        call_command("dumpdata", stdout=saved)
        assert '"model": "samekey.' not in saved.getvalue()
        assert "olga" in saved.getvalue(), saved.getvalue()[:3000]
        everything = Path(mkdtemp()) / "everything.json"
        call_command("dumpdata", "--all", output=str(everything), verbosity=0)
        row = Key.objects.get(pk=number)
        for write in (
            lambda: call_command("loaddata", str(everything), verbosity=0),
            lambda: Key.objects.update(state="retryable"),
            lambda: Key.objects.filter(pk=number).delete(),
            lambda: Key.objects.bulk_create([row]),
            lambda: AuditLine.objects.bulk_update([AuditLine.objects.first()], ["actor"]),
            row.save,
            row.delete,
        ):
            with pytest.raises(ConfigurationError, match="are not written by Django"):
                write()
        assert shop.post("/pay", "k").json()["code"] == "result_unavailable"

        # The audit: who has done it, and why. Nobody changes anything by hand.
        audit = page("auditline/")
        for said in ("the provider has never heard of it", "olga", "the lorry is back", "it was private"):
            assert said in audit, said
        assert "I would like to" not in audit
        assert "it was private" in page("auditline/?actor=olga")
        assert re.search(r"\bk\b", page(f"auditline/{AuditLine.objects.first().pk}/change/")) is None
        for model in ("key", "deadletter", "auditline"):
            assert operator.get(f"/admin/samekey/{model}/add/").status_code == 403
    connections.close_all()
    print("seen to")


async def _work(engine: Engine) -> None:
    worker = OutboxWorker(engine)
    await worker.run_once()
    await worker.drain()
    await worker.stop()


if __name__ == "__main__":
    main(sys.argv[1])
