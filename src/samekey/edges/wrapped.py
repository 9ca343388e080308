"""What stands around an application, and how to look through it.

By convention middleware keeps what it wraps under one of a few names. Whatever an application does when it is
looked at, it is of another kind then, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_WRAPPED: Final = ("app", "wsgi_app", "application", "wsgi_application", "asgi_app", "__wrapped__")
_DEEPEST: Final = 64
"""Middleware in middleware; a chain that is longer than this goes round in circles."""


def inside(app: Any) -> Any:
    """What a middleware wraps; None where that cannot be seen."""
    for name in _WRAPPED:
        inner = attribute(app, name)
        if callable(inner) and inner is not app:
            return inner
    return None


def attribute(thing: Any, name: str) -> Any:
    """An attribute; None where there is none, or looking for it fails."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def routes_of(app: Any) -> Sequence[Any] | None:
    """The routes of a router as Starlette has them; None for anything else that is called ``routes``."""
    routes = attribute(app, "routes")
    return routes if isinstance(routes, list | tuple) and not is_litestar(app) else None


def is_litestar(app: Any) -> bool:
    return callable(attribute(attribute(app, "asgi_router"), "handle_routing"))


def is_flask(app: Any) -> bool:
    return all(attribute(app, name) is not None for name in ("view_functions", "url_map", "wsgi_app"))


def behind(app: Any, is_it: Any) -> Any:
    """The first application for which ``is_it`` holds, behind whatever wraps it; None if there is none."""
    for _ in range(_DEEPEST):
        if app is None:
            return None
        owner = attribute(app, "__self__")
        for one in (app, owner):
            if one is not None and is_it(one):
                return one
        app = inside(app) or (None if owner is None else inside(owner))
    return None
