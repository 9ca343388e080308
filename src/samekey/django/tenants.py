"""Whose key is it? Functions of Django's request, for ``SAMEKEY["TENANT"]``. None is answered 401."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def by_user(request: Any) -> str | None:
    """The authenticated user, by its primary key: of Django's own authentication or of REST framework's."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return None
    # A user that is no row (REST framework lets an authentication class give any object) must say who it is.
    identity = getattr(user, "pk", None)
    return None if identity is None else str(identity)


def by_header(name: str) -> Callable[[Any], str | None]:
    """What a gateway that has authenticated the caller says in a header: ``by_header("X-Account")``.

    Only where nobody else can send that header.
    """

    def resolve(request: Any) -> str | None:
        return request.headers.get(name) or None

    return resolve
