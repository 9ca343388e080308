"""Phased work, cancelled wherever it waits, is taken up by the next request and done once (X3, X9)."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from samekey import Backoff, Input, Response
from samekey.asgi import IdempotencyMiddleware
from samekey.testing.cancellation import Cancellation, Cancelled, enumerate_cancellations
from tests.cancellation.test_requests import Deadline
from tests.cancellation.world import Found, Shop, Store
from tests.edges.callers import Got, Request, call_asgi

NO_PAUSE = Backoff(first=timedelta(0), longest=timedelta(0))


class Rides:
    """A row, a charge, a row. The provider recognises a charge by its key."""

    def __init__(self, url: str) -> None:
        self.shop = Shop(url)
        self.late: dict[bytes, Cancellation] = {}
        self.charges: defaultdict[str, set[str]] = defaultdict(set)

        @self.shop.idempotency.phased("ride", version=1, backoff=NO_PAUSE)
        async def ride(op: Any, input: Input) -> Response:
            label = input.json()["label"]
            await op.transaction("booked", lambda connection: self.shop.write(label, connection))
            await op.effect("charged", self._charge, label, provider_window=86_400)
            await op.transaction("receipt", lambda connection: self.shop.write(f"r-{label}", connection))
            return Response(201, {"ride": label})

        app = Starlette(
            routes=[Route("/rides", ride, methods=["POST"])], middleware=[Middleware(Deadline, self.late)]
        )
        self._app = IdempotencyMiddleware(app, idempotency=self.shop.idempotency, tenant=lambda scope: "t")

    async def _charge(self, effect: Any, label: str) -> str:
        await asyncio.sleep(0)
        self.charges[label].add(effect.key)
        await asyncio.sleep(0)
        return "ch_1"

    async def post(self, label: str) -> Got:
        headers = ((b"idempotency-key", label.encode()), (b"content-type", b"application/json"))
        return await call_asgi(
            self._app, Request("POST", "/rides", headers, json.dumps({"label": label}).encode())
        )

    async def check(self, cancelled: Cancelled) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=30)
        got = await self.post(cancelled.label)
        if got.status != 201:
            raise Found(
                f"the next request did not go on: {got.status} {got.body!r} {got.error!r}, {cancelled}"
            )
        label = cancelled.label
        done = (self.shop.rows(label), len(self.charges[label]), self.shop.rows(f"r-{label}"))
        if done != (1, 1, 1):
            raise Found(f"rides, charges and receipts were {done}: {cancelled}")


async def cancelled_everywhere(store: Store) -> int:
    rides = Rides(store.url)
    assert (await rides.post("the-first")).status == 201

    async def operation(cancellation: Cancellation) -> Got:
        cancellation.aim(None)
        rides.late[cancellation.label.encode()] = cancellation
        return await rides.post(cancellation.label)

    points = 0
    async for cancelled in enumerate_cancellations(operation, moments=store.moments):
        points += 1
        rides.late.clear()
        await rides.check(cancelled)
    await rides.shop.aclose()
    return points


def test_a_phased_handler_behind_a_deadline(store: Store) -> None:
    assert asyncio.run(cancelled_everywhere(store)) > 20
