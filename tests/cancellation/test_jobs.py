"""A job, cancelled wherever it waits by a worker that is stopped, is done once by the next one (X4, B7)."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections import defaultdict
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from samekey import Backoff, Response, current_operation
from samekey.asgi import IdempotencyMiddleware
from samekey.testing.cancellation import Cancellation, Cancelled, enumerate_cancellations
from samekey.workers.outbox import OutboxWorker
from tests.cancellation.world import PATIENCE, Found, Shop, Store
from tests.edges.callers import Got, Request, call_asgi

NO_PAUSE = Backoff(first=timedelta(0), longest=timedelta(0))
LEASE = timedelta(seconds=1)
"""After which another worker takes what a stopped one could not even give back."""


class Orders:
    """Orders that are charged by a worker. The provider recognises a charge by its key."""

    def __init__(self, url: str) -> None:
        self.shop = Shop(url)
        self.charges: defaultdict[str, set[str]] = defaultdict(set)

        @self.shop.idempotency.job("charge", max_attempts=50, backoff=NO_PAUSE)
        async def charge(job: Any, payload: Any) -> Response:
            await asyncio.sleep(0)
            self.charges[payload["label"]].add(job.key)
            await asyncio.sleep(0)
            return Response(201, payload)

        @self.shop.idempotency.deferred
        async def order(request: StarletteRequest) -> StarletteResponse:
            label = (await request.body()).decode()
            await self.shop.write(label)
            await current_operation().enqueue("charge", {"label": label})
            return StarletteResponse(status_code=202)

        app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
        self._app = IdempotencyMiddleware(app, idempotency=self.shop.idempotency, tenant=lambda scope: "t")

    async def post(self, label: str) -> Got:
        request = Request("POST", "/orders", ((b"idempotency-key", label.encode()),), label.encode())
        return await call_asgi(self._app, request)

    async def work(self, cancellation: Cancellation | None = None) -> None:
        """A worker's round. One that is cancelled is stopped without any grace."""
        worker = OutboxWorker(self.shop.idempotency.engine, lease=LEASE, grace=timedelta(0))
        stopping: list[asyncio.Task[None]] = []
        if cancellation is not None:
            cancellation.aim(lambda: stopping.append(asyncio.ensure_future(worker.stop())))
        await worker.run_once()
        await worker.drain()
        await asyncio.gather(*stopping)
        await worker.stop()

    async def check(self, cancelled: Cancelled) -> None:
        deadline = time.monotonic() + PATIENCE
        while (got := await self.post(cancelled.label)).status == 202:
            if time.monotonic() > deadline:
                raise Found(f"nobody does the job: {cancelled}")
            await self.work()
        done = (got.status, self.shop.rows(cancelled.label), len(self.charges[cancelled.label]))
        if done != (201, 1, 1):
            raise Found(f"status, rows and charges were {done}: {cancelled}")


async def cancelled_everywhere(store: Store) -> int:
    orders = Orders(store.url)

    async def operation(cancellation: Cancellation) -> None:
        cancellation.aim(None)
        assert (await orders.post(cancellation.label)).status == 202
        await orders.work(cancellation)

    points = 0
    async for cancelled in enumerate_cancellations(operation, moments=store.moments):
        points += 1
        await orders.check(cancelled)
    await orders.shop.aclose()
    return points


def test_a_job_of_a_worker_that_is_stopped(store: Store) -> None:
    with warnings.catch_warnings():
        # asyncpg's request to cancel, which is given up together with the connection.
        warnings.filterwarnings("ignore", "coroutine 'Connection._cancel' was never awaited")
        assert asyncio.run(cancelled_everywhere(store)) > 6
        gc.collect()
