"""The shop that ``samekey torture`` runs: an order is written with its job, a worker has it charged.

Worker processes import it as ``lab.torture.outbox.shop:idempotency`` and are told by their environment
where the shop's database and its provider are; the driver makes its own with ``Shop``.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from examples.provider import Charge, ProviderClient
from samekey import Backoff, Idempotency, JobContext, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.tenants import single_tenant

VARIABLE = "SAMEKEY_TORTURE_SHOP"

MAX_ATTEMPTS = 100
"""Workers die all the time here, and none of it is a job's fault."""
BACKOFF = Backoff(first=timedelta(milliseconds=200), longest=timedelta(seconds=2))


@dataclass(frozen=True, slots=True)
class Shop:
    """Where everything is."""

    url: str
    schema: str
    provider_url: str
    downstream_keys: bool = True
    """Without them the provider cannot tell a second attempt from a second order."""

    def as_environment(self) -> dict[str, str]:
        """For a worker process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def orders(self) -> str:
        """The table of orders."""
        return f'"{self.schema}".orders' if self.url.startswith("postgres") else "orders"

    def open(self) -> Idempotency:
        """A new engine that knows the shop's jobs."""
        idempotency = Idempotency(self.url, schema=self.schema, timeout=10)
        provider = ProviderClient(self.provider_url, timeout=10)

        def charge(job: JobContext, number: int) -> Response:
            """Each line is a place to die: before the charge, after it, before it is recorded."""
            key = job.key if self.downstream_keys else None
            made = provider.charge(number, key=key, reference=str(number))
            job.provider_id = made.id
            job.write(_execute, self.paid(number))
            return receipt(made)

        async def charge_async(job: JobContext, number: int) -> Response:
            return await asyncio.to_thread(charge, job, number)

        declare = functools.partial(idempotency.job, max_attempts=MAX_ATTEMPTS, timeout=30, backoff=BACKOFF)
        declare("charge")(charge)
        declare("charge_async")(charge_async)
        return idempotency

    def paid(self, number: int) -> str:
        return f"update {self.orders} set paid = paid + 1 where number = {number:d}"  # noqa: S608 - a number

    def app(self, idempotency: Idempotency, tenant: str) -> IdempotencyMiddleware:
        """The shop's API: ``POST /orders`` with the number of the order."""

        @idempotency.deferred
        async def place_order(_scope: Any, receive: Any, send: Any) -> None:
            number = json.loads((await receive())["body"])["number"]
            operation = current_operation()
            insert = f"insert into {self.orders} (number, paid) values ({number:d}, 0)"  # noqa: S608
            await operation.connection.execute(insert)
            # Async jobs and sync ones: the worker runs them in different ways.
            await operation.enqueue("charge_async" if number % 2 else "charge", number)
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return IdempotencyMiddleware(
            place_order, idempotency=idempotency, tenant=single_tenant(tenant), undecorated="pass"
        )


def receipt(charge: Charge) -> Response:
    """The final answer to an order."""
    return Response(201, {"charge": charge.id, "amount": charge.amount})


def _execute(connection: Any, sql: str) -> Any:
    """A coroutine for an async job's connection; done at once for a sync one's."""
    return connection.execute(sql)


@functools.cache
def _from_environment() -> Idempotency:
    return Shop(**json.loads(os.environ[VARIABLE])).open()


def __getattr__(name: str) -> Any:
    # Made when a worker asks for it, so that the driver can import this module too.
    if name == "idempotency":
        return _from_environment()
    raise AttributeError(name)
