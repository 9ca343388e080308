"""A guarded application that dies now and then, in a process of its own: before it commits, or after.

``SHOP_DATABASE`` is a SQLite file; ``SHOP_DEATHS`` how many of a thousand requests it dies of.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

# A claim that died with the server ends with its lease.
policy = ietf(lease=timedelta(seconds=1))
idempotency = Idempotency(f"sqlite:///{os.environ['SHOP_DATABASE']}", policy=policy)
deaths = int(os.environ.get("SHOP_DEATHS", "0")) / 1000
chance = random.Random()  # another course after each restart


@idempotency.atomic
async def pay(request: Request) -> JSONResponse:
    order = (await request.json())["order"]
    await current_operation().connection.execute("insert into payments (order_name) values (?)", (order,))
    if chance.random() < deaths / 2:
        os._exit(9)
    return JSONResponse({"order": order}, 201)


guarded = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
guarded.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Around all of it: it dies after the commit too, before the answer is out."""

    async def dying(message: Any) -> None:
        if message["type"] == "http.response.start" and chance.random() < deaths / 2:
            os._exit(9)
        await send(message)

    await guarded(scope, receive, dying if scope["type"] == "http" else send)
