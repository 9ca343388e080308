"""Views of the project whose tests are in ``own_cases.py``."""

from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpResponse
from django.urls import path

from samekey.django import idempotency
from tests.django.ledger.models import Entry

called: list[str] = []


@idempotency.atomic
def pay(request: Any) -> HttpResponse:
    text = request.GET.get("text", "paid")
    Entry.objects.create(text=text)
    transaction.on_commit(lambda: called.append(text))
    if request.GET.get("fail"):
        raise RuntimeError("a bug")
    return HttpResponse("done", status=201)


@idempotency.atomic
def swallows(request: Any) -> HttpResponse:
    Entry.objects.create(text="one")
    try:
        Entry.objects.create(text="one")
    except IntegrityError:
        pass
    return HttpResponse("done", status=201)


@idempotency.leased
def call(request: Any) -> HttpResponse:
    Entry.objects.create(text="called")
    return HttpResponse("done", status=201)


@idempotency.atomic
async def pay_async(request: Any) -> HttpResponse:
    await Entry.objects.acreate(text="async")
    return HttpResponse("done", status=201)


urlpatterns = [
    path("pay", pay),
    path("swallows", swallows),
    path("call", call),
    path("pay_async", pay_async),
]
