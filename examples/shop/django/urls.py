"""Sync views. What stands above samekey's decorator comes before the claim: here, the order is read."""

import functools
import time
from typing import Any

from django.http import JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from samekey.django import idempotency

from .. import SLOW, SOLD_OUT, order_of
from ..orm.models import Order


def understood(view: Any) -> Any:
    @functools.wraps(view)
    def checked(request: Any) -> Any:
        try:
            request.order = order_of(request.body)
        except ValueError as error:
            return JsonResponse({"detail": str(error)}, status=400)
        return view(request)

    return checked


class Orders(View):  # type: ignore[misc]
    def get(self, request: Any) -> JsonResponse:
        found = Order.objects.filter(account=request.account)
        return JsonResponse([order.as_json() for order in found], safe=False)

    @method_decorator(understood)  # type: ignore[untyped-decorator]
    @idempotency.atomic
    def post(self, request: Any) -> JsonResponse:
        order = Order.objects.create(account=request.account, **request.order)
        return JsonResponse(order.as_json(), status=201)


@understood
@idempotency.atomic
def slow(request: Any) -> JsonResponse:
    order = Order.objects.create(account=request.account, **request.order)
    time.sleep(SLOW)
    return JsonResponse(order.as_json(), status=201)


@understood
@idempotency.atomic
def refused(request: Any) -> JsonResponse:
    Order.objects.create(account=request.account, **request.order)
    return JsonResponse(SOLD_OUT, status=409)


urlpatterns = [
    path("orders", Orders.as_view()),
    path("orders/slow", slow),
    path("orders/refused", refused),
]
