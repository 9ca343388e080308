"""An order whose card is charged from the outbox: the handler writes, a worker charges.

    samekey worker examples.orders:idempotency
    uvicorn examples.orders:app

The order and the job that charges it commit in one transaction, so there is never one without the other. The
client gets 202 at once. The worker calls the provider, with a key that is the same for every attempt, and its
result becomes the answer that every retry of the request gets from then on.
"""

import os
import sqlite3
from contextlib import closing
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, JobContext, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_api_key

DATABASE = os.environ.get("ORDERS_DATABASE", "orders.db")
PROVIDER = os.environ.get("ORDERS_PROVIDER", "http://127.0.0.1:9000")

with closing(sqlite3.connect(DATABASE)) as database:
    database.execute(
        "create table if not exists orders (id integer primary key, customer text, cents integer, state text)"
    )

idempotency = Idempotency(f"sqlite:///{DATABASE}")


@idempotency.deferred
async def place_order(request: Request) -> JSONResponse:
    """Writes the order and the job, and nothing else: no call to anybody while the transaction is open."""
    wanted = await request.json()
    if wanted["cents"] <= 0:
        return JSONResponse({"error": "an order costs something"}, status_code=400)
    operation = current_operation()
    order = await operation.connection.execute(
        "insert into orders (customer, cents, state) values (?, ?, 'placed')",
        (wanted["customer"], wanted["cents"]),
    )
    await operation.enqueue("charge", {"order": order.lastrowid, "cents": wanted["cents"]})
    return JSONResponse({"order": order.lastrowid, "state": "placed"}, status_code=202)


@idempotency.job("charge", timeout=30)
async def charge(job: JobContext, payload: dict[str, int]) -> Response:
    """Runs in a worker. It may run more than once, so it sends the provider the job's own key."""
    async with httpx2.AsyncClient(base_url=PROVIDER, timeout=10) as provider:
        answer = await provider.post(
            "/charges",
            json={"amount": payload["cents"], "reference": f"order-{payload['order']}"},
            headers={"Idempotency-Key": job.key},
        )
    if answer.status_code == 402:
        # A definite no. It is the final answer; trying again would not change it.
        job.write(set_state, payload["order"], "declined")
        return Response(402, {"order": payload["order"], "state": "declined"})
    answer.raise_for_status()  # anything else that is no charge: try again, later
    job.provider_id = answer.json()["id"]
    job.write(set_state, payload["order"], "paid")
    return Response(201, {"order": payload["order"], "state": "paid", "charge": job.provider_id})


async def set_state(connection: Any, order: int, state: str) -> None:
    """Commits together with the end of the job and the final answer."""
    await connection.execute("update orders set state = ? where id = ?", (state, order))


app = Starlette(routes=[Route("/orders", place_order, methods=["POST"])])
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_api_key({"demo": "acme"}))
