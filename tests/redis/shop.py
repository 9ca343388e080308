"""A small shop on Redis, for processes of their own: served by uvicorn, worked for by ``samekey worker``.

``SHOP_STORE`` and ``SHOP_PROVIDER`` are the URLs of its store and of its payment provider.
"""

from __future__ import annotations

import asyncio
import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.provider import ProviderClient, ProviderError
from samekey import Executed, Idempotency, NotExecuted, OutcomeUnknown, current_operation
from samekey import Response as Stored
from samekey.asgi import IdempotencyMiddleware
from samekey.core.record import Record

idempotency = Idempotency(os.environ.get("SHOP_STORE", "redis://127.0.0.1:1"))
provider = ProviderClient(os.environ.get("SHOP_PROVIDER", "http://127.0.0.1:1"))


def charge(reference: str) -> str:
    """One call to the provider, under a key that is the same for every attempt at this operation."""
    key = current_operation().downstream_key()
    try:
        return provider.charge(100, key=key, reference=reference).id
    except ProviderError as error:
        raise NotExecuted(str(error)) from error
    except OSError as error:
        raise OutcomeUnknown(str(error)) from error


@idempotency.leased
async def pay(request: Request) -> Response:
    body = await request.json()
    charged = await asyncio.to_thread(charge, body["reference"])
    current_operation().provider_id = charged
    return JSONResponse({"charge": charged}, 201)


@idempotency.lookup("POST /pay")
def find(record: Record) -> object:
    found = provider.find(record.downstream_key())
    return NotExecuted if found is None else Executed(Stored(201, {"charge": found.id}))


app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
app.add_middleware(
    IdempotencyMiddleware,
    idempotency=idempotency,
    tenant=lambda scope: dict(scope["headers"]).get(b"x-tenant", b"").decode() or None,
)
