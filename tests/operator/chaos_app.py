"""A small shop for the chaos test: leased calls, deferred orders and phased rides, all with short leases."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
import warnings
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import (
    Backoff,
    Executed,
    Idempotency,
    Input,
    NotExecuted,
    OutcomeUnknown,
    Response,
    StillUnknown,
    current_operation,
    ietf,
)
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

QUICK = Backoff(timedelta(milliseconds=50), timedelta(milliseconds=200))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a time to live of seconds is what this test is about
    idempotency = Idempotency(os.environ["CHAOS_URL"], policy=ietf(lease=1, max_run=2, ttl=30), pool_size=4)


@idempotency.leased
async def transfer(request: Request) -> JSONResponse:
    await asyncio.sleep(random.random() / 10)
    fate = random.random()
    if fate < 0.2:
        raise OutcomeUnknown("the provider did not answer")
    if fate < 0.3:
        raise NotExecuted("the provider refused the connection")
    return JSONResponse({"sent": True}, 201)


@idempotency.deferred
async def order(request: Request) -> JSONResponse:
    await current_operation().enqueue("charge", {"amount": 5})
    return JSONResponse({}, 202)


@idempotency.job("charge", max_attempts=5, timeout=1, backoff=QUICK)
async def charge(job: Any, payload: Any) -> Response:
    await asyncio.sleep(random.random() / 20)
    if random.random() < 0.3:
        raise RuntimeError("try again")
    return Response(201, {"charged": payload["amount"]})


@idempotency.phased("ride", max_attempts=5, backoff=QUICK)
async def ride(op: Any, input: Input) -> Response:
    await op.transaction("booked", _nothing)
    await op.effect("paid", _pay, provider_window=3600)
    return Response(201, {"ride": op.id})


async def _nothing(connection: Any) -> None:
    return None


async def _pay(effect: Any) -> str:
    await asyncio.sleep(random.random() / 20)
    if random.random() < 0.3:
        raise TimeoutError("slow")
    return str(effect.key)


@idempotency.lookup()
async def find(record: Any) -> Any:
    return random.choice([Executed(Response(201, {"found": True})), NotExecuted, StillUnknown])


app = Starlette(
    routes=[
        Route("/transfer", transfer, methods=["POST"]),
        Route("/order", order, methods=["POST"]),
        Route("/ride", ride, methods=["POST"]),
    ]
)
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())


async def load(seconds: float) -> None:
    """Requests without end, each with its retries; this process is killed in the middle of them."""
    import httpx2

    async def client(http: httpx2.AsyncClient) -> None:
        while True:
            key, path = uuid.uuid4().hex, random.choice(["/transfer", "/order", "/ride"])
            for _ in range(random.randint(1, 3)):
                await http.post(path, json={}, headers={"Idempotency-Key": key})
                await asyncio.sleep(random.random() / 50)

    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://chaos", timeout=30) as http:
        clients = [asyncio.create_task(client(http)) for _ in range(4)]
        await asyncio.wait(clients, timeout=seconds)
        for task in clients:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(load(float(os.environ.get("CHAOS_SECONDS", "60"))))
