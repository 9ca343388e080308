"""samekey for Django and Django REST framework: an app, a middleware, and decorators for views.

    INSTALLED_APPS = [..., "samekey.django"]
    MIDDLEWARE = [..., "samekey.django.IdempotencyMiddleware"]     # after authentication
    SAMEKEY = {"DATABASE": "default", "TENANT": "samekey.django.by_user"}

    from samekey.django import idempotency

    @idempotency.atomic
    def create_order(request): ...

In an atomic view the transaction is Django's own, on the alias' own connection: what the ORM writes commits
together with the answer, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.operation import current_operation
    from ..idempotency import Idempotency
    from .middleware import IdempotencyMiddleware
    from .tenants import by_header, by_user
    from .views import Idempotent

    idempotency: Idempotency

__all__ = [
    "IdempotencyMiddleware",
    "Idempotent",
    "by_header",
    "by_user",
    "current_operation",
    "idempotency",
]


def __getattr__(name: str) -> Any:
    """Django imports this package before there are settings: whatever needs them is found when it is used."""
    match name:
        case "idempotency":
            from .conf import the_idempotency

            return the_idempotency()
        case "IdempotencyMiddleware":
            from .middleware import IdempotencyMiddleware

            return IdempotencyMiddleware
        case "by_user" | "by_header":
            from . import tenants

            return getattr(tenants, name)
        case "Idempotent":
            from .views import Idempotent

            return Idempotent
        case "current_operation":
            from ..engine.operation import current_operation

            return current_operation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
