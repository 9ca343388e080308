"""Async views. What stands above samekey's decorator comes before the claim: here, the order is read."""

import asyncio
import functools
from typing import Any

from django.http import JsonResponse
from django.urls import path
from django.views import View

from samekey.django import idempotency

from .. import SLOW, SOLD_OUT, order_of
from ..orm.models import Order


def understood(view: Any) -> Any:
    @functools.wraps(view)
    async def checked(self: Any, request: Any) -> Any:
        try:
            request.order = order_of(request.body)
        except ValueError as error:
            return JsonResponse({"detail": str(error)}, status=400)
        return await view(self, request)

    return checked


class Orders(View):  # type: ignore[misc]
    async def get(self, request: Any) -> JsonResponse:
        found = [order.as_json() async for order in Order.objects.filter(account=request.account)]
        return JsonResponse(found, safe=False)

    @understood
    @idempotency.atomic
    async def post(self, request: Any) -> JsonResponse:
        order = await Order.objects.acreate(account=request.account, **request.order)
        if request.path == "/orders/refused":
            return JsonResponse(SOLD_OUT, status=409)
        if request.path == "/orders/slow":
            await asyncio.sleep(SLOW)
        return JsonResponse(order.as_json(), status=201)


urlpatterns = [path(f"orders{more}", Orders.as_view()) for more in ("", "/slow", "/refused")]
