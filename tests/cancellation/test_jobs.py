"""A job, cancelled wherever it waits by a worker that is stopped, is done once by the next one (X4, B7)."""

from __future__ import annotations

import asyncio
import gc
import time
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
        self.before = 0
        """Jobs that were there before the last request."""

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

    def jobs(self) -> int:
        table = (
            "samekey.jobs" if self.shop.idempotency.engine.drivers.dialect == "postgres" else "samekey_jobs"
        )
        return int(self.shop._ask(f"select count(*) from {table}")[0][0])

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


async def requests_cancelled_everywhere(store: Store) -> int:
    """The request that enqueues, cancelled by its server."""
    orders = Orders(store.url)
    assert (await orders.post("the-first")).status == 202

    async def operation(cancellation: Cancellation) -> Got:
        orders.before = orders.jobs()
        return await orders.post(cancellation.label)

    points = 0
    async for cancelled in enumerate_cancellations(operation, moments=store.moments):
        points += 1
        await orders.shop.at_rest(cancelled.label)
        jobs = await asyncio.to_thread(orders.jobs)
        rows = await asyncio.to_thread(orders.shop.rows, cancelled.label)
        if jobs != orders.before + rows:
            raise Found(f"{rows} rows and {jobs - orders.before} jobs: {cancelled}")
        got = await orders.post(cancelled.label)  # the client's retry
        if got.status != 202:
            raise Found(f"a retry got {got.status}: {cancelled}")
        if (await asyncio.to_thread(orders.jobs)) != orders.before + 1:
            raise Found(f"a retry was answered without its one job: {cancelled}")
    await orders.shop.aclose()
    return points


def test_a_request_that_enqueues(store: Store) -> None:
    assert asyncio.run(requests_cancelled_everywhere(store)) > 6


def test_a_job_of_a_worker_that_is_stopped(store: Store) -> None:
    assert asyncio.run(cancelled_everywhere(store)) > 6
    gc.collect()  # nothing was left to be said
