"""A shop for a middleware of somebody else's: ``python shop.py NAME PORT``, in an environment that has it.

Authentication comes before the middleware, and each is set up as its own documentation has it, with its store
in memory. Nothing of this project is imported, so that it runs where this project is not installed.
"""

import contextlib
import sys
import uuid
from importlib import import_module
from typing import Any

TOKENS = {"Bearer ann": "ann", "Bearer bob": "bob"}


def make(name: str) -> Any:
    """The application, behind the middleware of that name and its own authentication."""
    starlette, responses = import_module("starlette.applications"), import_module("starlette.responses")
    route = import_module("starlette.routing").Route
    orders: list[dict[str, Any]] = []

    async def place(request: Any) -> Any:
        try:
            wanted = await request.json()
            order = {"id": uuid.uuid4().hex, "sku": str(wanted["sku"]), "quantity": int(wanted["quantity"])}
        except (ValueError, KeyError, TypeError):
            return responses.JSONResponse({"detail": "A sku and a quantity, please."}, 400)
        orders.append(order)
        return responses.JSONResponse(order, 201)

    async def count(_: Any) -> Any:
        return responses.JSONResponse({"count": len(orders)})

    app = starlette.Starlette(routes=[route("/orders", place, methods=["POST"]), route("/count", count)])
    return authenticated(guarded(app, name), responses.JSONResponse)


def guarded(app: Any, name: str) -> Any:
    if name == "asgi-idempotency-header":
        backend = import_module("idempotency_header_middleware.backends.memory").MemoryBackend()
        return import_module("idempotency_header_middleware").IdempotencyHeaderMiddleware(
            app, backend=backend
        )
    idemkit = import_module("idemkit")
    config = idemkit.HttpConfig(scope=lambda request: TOKENS[request.headers["authorization"]])
    return idemkit.IdempotencyMiddleware(app, backend=idemkit.InMemoryBackend(), config=config)


def authenticated(app: Any, json_response: Any) -> Any:
    async def outermost(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] != "/count":
            token = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            if token not in TOKENS:
                await json_response({"detail": "Who are you?"}, 401)(scope, receive, send)
                return
        await app(scope, receive, send)

    return outermost


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        import_module("uvicorn").run(
            make(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning"
        )
