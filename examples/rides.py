"""A ride in three phases: a row in our database, a charge at a provider, a receipt.

    uvicorn examples.rides:app
    samekey worker examples.rides:idempotency

Each phase is remembered when it is done. A process that dies between two of them loses nothing: a retry of
the request goes on after the last one, and so does the worker, if the client never comes back.
"""

import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import httpx2
from fastapi import FastAPI
from pydantic import BaseModel, Field

from samekey import NOT_FOUND, AsyncPhasedOperation, Effect, Idempotency, NotExecuted, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import by_api_key

DATABASE = os.environ.get("RIDES_DATABASE", "rides.db")
PROVIDER = os.environ.get("RIDES_PROVIDER", "http://127.0.0.1:9000")

with closing(sqlite3.connect(DATABASE)) as database:
    database.executescript("""
        create table if not exists rides (
            id integer primary key, operation text unique, rider text, pick_up text, drop_off text,
            cents integer
        );
        create table if not exists receipts (ride integer references rides (id), charge text);
    """)

idempotency = Idempotency(f"sqlite:///{DATABASE}")


class RideRequest(BaseModel):
    """What a rider asks for. It is stored until the ride is done, so that nobody has to ask again."""

    pick_up: str = Field(min_length=1)
    drop_off: str = Field(min_length=1)
    card: str


FARE = 2500


class Payments:
    """The provider's API, as far as rides need it. It keeps our idempotency keys for a day."""

    window = timedelta(hours=24)

    def __init__(self, url: str) -> None:
        self._url = url

    async def charge(self, effect: Effect, cents: int, card: str) -> dict[str, Any]:
        """Charges a card, once for ``effect.key``. A refusal is a result; only trouble is raised."""
        async with self._client(effect) as provider:
            answer = await provider.post(
                "/charges", json={"amount": cents, "card": card}, headers={"Idempotency-Key": effect.key}
            )
        if answer.status_code == 402:
            return {"declined": answer.json()["reason"]}
        if answer.status_code == 429:
            raise NotExecuted("The provider did not even look at it.")
        answer.raise_for_status()  # a 500 says nothing about the charge: the next attempt finds out
        return self._made(effect, answer.json())

    async def find(self, effect: Effect, _cents: int, _card: str) -> Any:
        """The charge that an earlier attempt may have made, long after the provider forgot our key."""
        async with self._client(effect) as provider:
            answer = await provider.get("/charges", params={"key": effect.key})
        if answer.status_code == 404:
            return NOT_FOUND
        answer.raise_for_status()
        return self._made(effect, answer.json())

    def _client(self, effect: Effect) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self._url, timeout=effect.timeout)

    @staticmethod
    def _made(effect: Effect, charge: dict[str, Any]) -> dict[str, Any]:
        effect.provider_id = charge["id"]  # kept with the record: idempotency.find(provider_id=…)
        return {"charge": charge["id"]}


payments = Payments(PROVIDER)
app = FastAPI(title="Rides")
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=by_api_key({"demo": "acme"}))


@app.post("/rides", status_code=201)
@idempotency.phased("create_ride", version=1)
async def create_ride(op: AsyncPhasedOperation, ride: RideRequest) -> Response:
    """Every phase has a name and is done once. What stands between them may run again, so it only decides."""
    ride_id = await op.transaction("ride_created", insert_ride, op, ride)
    paid = await op.effect(
        "card_charged",
        payments.charge,
        FARE,
        ride.card,
        provider_window=payments.window,
        lookup=payments.find,
    )
    if "declined" in paid:
        await op.transaction("ride_cancelled", delete_ride, ride_id)
        return Response(402, {"ride": None, "reason": paid["declined"]})
    await op.transaction("receipt_queued", queue_receipt, ride_id, paid["charge"])
    return Response(201, {"ride": ride_id, "charge": paid["charge"], "cents": FARE})


async def insert_ride(connection: Any, op: AsyncPhasedOperation, ride: RideRequest) -> int:
    row = await connection.execute(
        "insert into rides (operation, rider, pick_up, drop_off, cents) values (?, ?, ?, ?, ?)",
        (op.id, op.tenant, ride.pick_up, ride.drop_off, FARE),
    )
    return int(row.lastrowid)


async def delete_ride(connection: Any, ride_id: int) -> None:
    await connection.execute("delete from rides where id = ?", (ride_id,))


async def queue_receipt(connection: Any, ride_id: int, charge: str) -> None:
    await connection.execute("insert into receipts (ride, charge) values (?, ?)", (ride_id, charge))
