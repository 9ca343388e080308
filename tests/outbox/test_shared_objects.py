"""An event about an object that several orders have, and that is done in each of them, stops none of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from samekey import Executed, Resolution, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.drivers.run import run
from samekey.workers.reconciler import Reconciler
from tests.edges.callers import AsgiClient
from tests.outbox.world import NO_PAUSE, Act, Outbox, order, tenant_of


async def updated(outbox: Outbox, evidence: Executed, source: str) -> Resolution:
    return await outbox.idempotency.resolve_async(
        evidence,
        source=source,
        event_id="evt_1",
        tenant="ann",
        occurred_at=datetime.now(UTC),
        verify=lambda: True,
        provider_id="cus_42",
    )


def test_the_customer_of_two_phased_orders(outbox: Outbox) -> None:
    told: list[str] = []
    charges: list[str] = []
    again = {"source": "cards", "provider_window": timedelta(hours=24)}

    async def customer(effect: Any) -> str:
        effect.provider_id = "cus_42"
        return "cus_42"

    async def charge(effect: Any) -> str:
        charges.append(f"ch_{len(charges) + 1}")
        if len(charges) == 2:
            told.append(await updated(outbox, Executed("cus_42", "cus_42"), "cards"))
        effect.provider_id = charges[-1]
        return charges[-1]

    async def mail(effect: Any) -> str:
        return "sent"

    @outbox.idempotency.phased("ride", version=1, backoff=NO_PAUSE)
    async def ride(op: Any, input: Any) -> Response:
        await op.effect("customer", customer, **again)
        charged = await op.effect("charged", charge, **again)
        await op.effect("mailed", mail, source="post", provider_window=timedelta(hours=24))
        return Response(201, {"charge": charged})

    app = Starlette(routes=[Route("/rides", ride, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, idempotency=outbox.idempotency, tenant=tenant_of)
    client = AsgiClient(app, outbox.loop)
    got = [client.send(replace(order(key), path="/rides")).status for key in ("k1", "k2")]
    assert (got, told) == ([201, 201], ["ambiguous"])
    engine = outbox.idempotency.engine
    outbox.run(Reconciler(engine).run_once())
    left = run(engine.drivers.sync, engine.store.tables.effects.unused)
    assert not left, "all of it is done: there is nothing to see to"


def test_a_decline_while_an_event_about_the_customer_comes(outbox: Outbox) -> None:
    charging, go_on = Event(), Event()
    charges: list[int] = []

    @outbox.idempotency.job("charge", backoff=NO_PAUSE, source="cards")
    def charge(job: Any, _payload: Any) -> Response:
        charges.append(1)
        job.provider_id = f"ch_{len(charges)}"
        if len(charges) == 1:
            return Response(201)
        charging.set()
        assert go_on.wait(30)
        return Response(402, {"error": "declined"})

    @outbox.idempotency.job("customer", backoff=NO_PAUSE, source="crm")
    def customer(job: Any, _payload: Any) -> dict[str, str]:
        job.provider_id = "cus_42"
        return {}

    client = outbox.client("async", Act(jobs=(("charge", {}), ("customer", {}))))
    client.send(order("k1"))
    worker = outbox.work(rounds=2)
    client.send(order("k2"))

    def is_reached() -> bool:
        done = sum(job.name == "customer" and job.state == "done" for job in outbox.jobs())
        return charging.is_set() and done == 2

    async def story() -> Resolution:
        await worker.run_once()
        for _ in range(1200):
            if await asyncio.to_thread(is_reached):
                break
            await asyncio.sleep(0.05)
        told = await updated(outbox, Executed(Response(200), "cus_42"), "crm")
        go_on.set()
        await worker.drain()
        return told

    assert outbox.run(story()) is Resolution.TOO_LATE
    assert client.send(order("k2")).status == 402
