"""The API that the demo starts: payments in our own database, transfers at a bank.

Two files stand for two companies: ``payments.db`` is ours, ``bank.db`` is the bank's. What is written to
the bank cannot be rolled back by us, which is the difference between the two handlers below.

    DEMO_DIRECTORY=/tmp uvicorn examples.payments_demo_app:app
"""

import asyncio
import os
import sqlite3
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import Idempotency, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_api_key

DIRECTORY = Path(os.environ.get("DEMO_DIRECTORY", "."))
OURS, BANK = DIRECTORY / "payments.db", DIRECTORY / "bank.db"

with sqlite3.connect(OURS) as ours:
    ours.execute("create table if not exists payments (id integer primary key, customer text, cents integer)")
with sqlite3.connect(BANK) as bank:
    bank.execute("create table if not exists transfers (account text, cents integer, reference text)")

# Creates its own table in the same file, beside ours.
idempotency = Idempotency(f"sqlite:///{OURS}")


# The default lease is a minute. Two seconds, so that nobody has to wait long after a kill -9.
@idempotency.atomic(lease=2)
async def create_payment(request: Request) -> JSONResponse:
    """Atomic: what is written through this connection commits together with the answer, or not at all."""
    wanted = await request.json()
    database = current_operation().connection
    inserted = await database.execute(
        "insert into payments (customer, cents) values (?, ?)", (wanted["customer"], wanted["cents"])
    )
    await half_way(request)
    return JSONResponse({"payment": inserted.lastrowid, "cents": wanted["cents"]}, status_code=201)


@idempotency.leased(lease=2, on_error="unknown")
async def create_transfer(request: Request) -> JSONResponse:
    """Leased: the effect is somewhere else, so a crash leaves nobody who could tell whether it happened."""
    wanted = await request.json()
    # The same for every attempt: a bank that knows idempotency keys would refuse to do it twice.
    reference = current_operation().downstream_key("transfer")
    await asyncio.to_thread(tell_the_bank, wanted["account"], wanted["cents"], reference)
    await half_way(request)
    return JSONResponse({"transfer": reference, "cents": wanted["cents"]}, status_code=201)


def tell_the_bank(account: str, cents: int, reference: str) -> None:
    with sqlite3.connect(BANK) as bank:
        bank.execute("insert into transfers values (?, ?, ?)", (account, cents, reference))


async def half_way(request: Request) -> None:
    """For the demo: says that the work is half done, and waits if the request asks for it.

    A header, because headers are not part of what makes two requests the same.
    """
    seconds = float(request.headers.get("demo-pause", "0"))
    if seconds:
        print("half-way through", request.headers["idempotency-key"], flush=True)
        await asyncio.sleep(seconds)


app = Starlette(
    routes=[
        Route("/payments", create_payment, methods=["POST"]),
        Route("/transfers", create_transfer, methods=["POST"]),
    ]
)
# Whose key is it? Here the caller is known by an API key; samekey keeps only an HMAC of it.
app.add_middleware(
    IdempotencyMiddleware, idempotency=idempotency, tenant=by_api_key(["demo"], secret=b"not for production")
)
