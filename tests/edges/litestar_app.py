"""The service of ``apps.py`` in Litestar, async and with sync handlers in threads."""

from __future__ import annotations

import inspect
from typing import Any

from litestar import Litestar, Request, route
from litestar.response import Stream
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from samekey.litestar import SamekeyPlugin
from tests.edges.world import Reply


def litestar_response(reply: Reply) -> Any:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
    if reply.chunks is not None:
        media = dict(headers).pop("content-type", None)
        return Stream(iter(reply.chunks), status_code=reply.status, headers=dict(headers), media_type=media)
    return ASGIResponse(body=reply.body or b"", status_code=reply.status, headers=headers)


def litestar_app(handlers: dict[str, Any], methods: Any, options: dict[str, Any]) -> Litestar:
    """``methods`` gives those of a path."""
    routes = []
    for path, handler in handlers.items():
        handler.__annotations__["return"] = ASGIApp
        if "request" in handler.__annotations__:
            handler.__annotations__["request"] = Request
        decorate = route(path, http_method=methods(path), name=path, **_in_a_thread(handler))
        routes.append(decorate(handler))
    idempotency = options.pop("idempotency")
    return Litestar(routes, plugins=[SamekeyPlugin(idempotency, **options)], openapi_config=None)


def _in_a_thread(handler: Any) -> Any:
    return {} if inspect.iscoroutinefunction(handler) else {"sync_to_thread": True}
