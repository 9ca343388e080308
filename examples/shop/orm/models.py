"""The shop's table, as Django has it."""

from typing import Any

from django.db import models


class Order(models.Model):  # type: ignore[misc]
    account = models.TextField()
    sku = models.TextField()
    quantity = models.IntegerField()

    class Meta:
        db_table = "orders"
        ordering = ("id",)

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "sku": self.sku, "quantity": self.quantity}
