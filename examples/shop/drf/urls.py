"""Views of REST framework. ``perform_create`` is reached once the order was found valid: there it claims."""

import time
from typing import Any

from django.urls import path
from rest_framework.exceptions import APIException
from rest_framework.mixins import CreateModelMixin, ListModelMixin
from rest_framework.serializers import CharField, IntegerField, ModelSerializer
from rest_framework.viewsets import GenericViewSet

from samekey.django import idempotency

from .. import SLOW, SOLD_OUT
from ..orm.models import Order


class SoldOut(APIException):  # type: ignore[misc]
    status_code = 409
    default_detail = SOLD_OUT["detail"]


class OrderSerializer(ModelSerializer):  # type: ignore[misc]
    sku = CharField()
    quantity = IntegerField(min_value=1)

    class Meta:
        model = Order
        fields = ("id", "sku", "quantity")


class Orders(CreateModelMixin, ListModelMixin, GenericViewSet):  # type: ignore[misc]
    serializer_class = OrderSerializer

    def get_queryset(self) -> Any:
        return Order.objects.filter(account=self.request.account)

    @idempotency.atomic
    def perform_create(self, serializer: Any) -> None:
        serializer.save(account=self.request.account)
        if self.request.path == "/orders/refused":
            raise SoldOut
        if self.request.path == "/orders/slow":
            time.sleep(SLOW)


orders = Orders.as_view({"get": "list", "post": "create"})
urlpatterns = [path(f"orders{more}", orders) for more in ("", "/slow", "/refused")]
