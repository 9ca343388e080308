"""A payment service on DynamoDB, served by a process of its own. The body says how the charge goes."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, NotExecuted, OutcomeUnknown, current_operation, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

runs: list[str] = []
idempotency = Idempotency(os.environ["SAMEKEY_URL"], policy=ietf())


@idempotency.leased
async def pay(request: Request) -> JSONResponse:
    charge = (await request.json())["charge"]
    operation = current_operation()
    runs.append(operation.downstream_key())
    if charge == "lost":
        raise OutcomeUnknown("the provider did not answer")
    if charge == "refused" and runs.count(operation.downstream_key()) == 1:
        raise NotExecuted("the provider was not asked")
    if charge == "huge":
        return JSONResponse({"paid": "x" * 500_000}, 201)
    return JSONResponse({"paid": len(runs)}, 201)


async def count(request: Request) -> JSONResponse:
    return JSONResponse(runs)


app = Starlette(routes=[Route("/payments", pay, methods=["POST"]), Route("/runs", count)])
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant("shop"))
