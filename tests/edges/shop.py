"""A shop for tests of the request path: it counts charges, whatever application makes them."""

from __future__ import annotations

from typing import Any

import flask

from samekey.asgi import IdempotencyMiddleware
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.apps import tenant_of
from tests.edges.callers import AsgiClient, Got, LoopThread, call_wsgi
from tests.edges.scenarios import Ask
from tests.edges.world import Store, World


class Shop:
    """Counts charges, and sends the same request as often as it is told."""

    def __init__(self, store: Store, loop: LoopThread) -> None:
        self.store, self.loop = store, loop
        self.idempotency = store.idempotency
        self.world = World()
        self.charges = 0

    def charge(self) -> None:
        self.charges += 1

    def guard(self, app: Any, **options: Any) -> Any:
        app.add_middleware(IdempotencyMiddleware, idempotency=self.idempotency, tenant=tenant_of, **options)
        return app

    def guard_wsgi(self, app: Any, **options: Any) -> WsgiMiddleware:
        return WsgiMiddleware(app, idempotency=self.idempotency, tenant=tenant_of, **options)

    def send(self, app: Any, times: int = 2, path: str = "/pay", **asked: Any) -> list[Got]:
        ask = Ask(**asked).request(path, self.world.name)
        if isinstance(app, flask.Flask | WsgiMiddleware):
            return [call_wsgi(app, ask) for _ in range(times)]
        client = AsgiClient(app, self.loop)
        return [client.send(ask) for _ in range(times)]

    def states(self) -> list[str]:
        return [state for state, _ in self.store.records(f"{self.world.name}-alice")]
