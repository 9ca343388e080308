"""samekey in Litestar: a plugin.

    app = Litestar([create_payment], plugins=[SamekeyPlugin(idempotency, tenant=by_user)])

It stands inside of the application's own middleware, so authentication comes before it; guards, dependencies
and validation come before the claim, which is the handler's. It refuses at start-up what would have no
effect, waits at shutdown for handlers that still run, and answers for the status resource.
"""

from __future__ import annotations

from typing import Any, Unpack
from urllib.parse import unquote

from litestar.config.app import AppConfig
from litestar.exceptions import NotFoundException
from litestar.handlers import get
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute
from litestar.types import ASGIApp
from litestar.types.empty import Empty
from litestar.utils.scope.state import ScopeState

from .edges.asgi import AsgiMiddleware
from .edges.guards import GuardOptions, checked_options
from .edges.litestar import is_known
from .edges.messages import PATH
from .errors import ConfigurationError
from .idempotency import Idempotency
from .openapi import describe

__all__ = ["SamekeyPlugin"]

_NEXT = "samekey.next"
"""The key in the scope under which a request carries what is behind the guard on its way."""


class SamekeyPlugin(InitPlugin, ReceiveRoutePlugin):
    """Guards the application that it is given to.

    The options are those of ``samekey.asgi.IdempotencyMiddleware``. ``tenant`` is given the ASGI scope, as it
    is behind the application's authentication.
    """

    def __init__(
        self,
        idempotency: Idempotency,
        **options: Unpack[GuardOptions],
    ) -> None:
        if not isinstance(idempotency, Idempotency):
            raise ConfigurationError("SamekeyPlugin is given an Idempotency: SamekeyPlugin(idempotency, …).")
        checked_options("SamekeyPlugin", options)
        if not is_known():
            raise ConfigurationError(
                "This version of Litestar calls its handlers in a way that samekey does not know, so nothing "
                "would be guarded. Use another version: samekey is tested with Litestar 2."
            )
        self.idempotency = idempotency
        self._given = False
        self._behind = _Behind()
        self.samekey_middleware = AsgiMiddleware(
            self._behind,
            idempotency=idempotency,
            **options,
        )
        self._behind.samekey_past = self.samekey_middleware

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        if self._given:
            raise ConfigurationError("This SamekeyPlugin has an application already: make one for each.")
        self._given = True
        app_config.middleware.append(self)  # the innermost, so that authentication is outside
        app_config.on_startup.insert(0, self._start)
        app_config.on_shutdown.append(self.samekey_middleware.drain)
        path = self.idempotency.engine.policy.status_path
        if path is not None:
            status = get(f"{path.rstrip('/')}/{{operation:str}}", include_in_schema=False)
            app_config.route_handlers.append(status(_no_such_operation))
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        handlers: Any = getattr(route, "route_handlers", None) or [getattr(route, "route_handler", None)]
        self._behind.app = handlers[0].ownership_layers[0]

    def __call__(self, app: ASGIApp) -> ASGIApp:
        """As Litestar makes a middleware, for each route: all of them are one."""

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            scope[_NEXT] = app
            _note_mount(scope)
            await self.samekey_middleware(scope, _from_its_beginning(scope, receive), send)

        return guarded

    def _start(self) -> None:
        found = "\n".join(self.samekey_middleware.look())
        if found:
            raise ConfigurationError(found)
        if self._behind.app.openapi_config is not None:
            describe(self._behind.app, self.idempotency)


class _Behind:
    """What is behind the one guard: whatever comes next on the way of a request. To look at, it is the
    application."""

    app: Any = None
    samekey_past: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await scope[_NEXT](scope, receive, send)


def _note_mount(scope: dict[str, Any]) -> None:
    """A mounted application is given a path without its mount's, which would be one key's for two mounts."""
    if getattr(scope.get("route_handler"), "is_mount", False) and scope.get("raw_path"):
        scope[PATH] = unquote(scope["raw_path"].partition(b"?")[0])


def _from_its_beginning(scope: Any, receive: Any) -> Any:
    """What a middleware outside has read of the body is kept by Litestar, and does not come again."""
    if scope["type"] != "http" or ScopeState.from_scope(scope).body is Empty:
        return receive
    kept: list[Any] = [ScopeState.from_scope(scope).body]

    async def receive_kept() -> Any:
        if kept:
            return {"type": "http.request", "body": kept.pop(), "more_body": False}
        return await receive()

    return receive_kept


async def _no_such_operation() -> None:
    """The guard has answered for every operation that there could be."""
    raise NotFoundException("There is no such operation.")
