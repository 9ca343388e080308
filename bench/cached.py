"""``python -m bench.cached``: replays with and without a Redis in front, side by side in one run.

One uvicorn worker and Redis on one core; PostgreSQL and the load on another. Each variant is measured in
turn, several times over, with an idle database and with a busy one. What counts is the ratio of the medians,
and how much of the work still reaches the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack

import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from bench.load import CONNECTIONS, client, same_key, turns_for
from bench.stands import tables
from lab.processes import ServedApp, Spawned, serve_asgi, spawn
from lab.servers.postgres import PostgresServer
from lab.servers.redis import RedisServer
from samekey import Idempotency
from samekey.asgi import IdempotencyMiddleware
from samekey.core.program import Row, Statement
from samekey.drivers.postgres.asyncpg import AsyncpgDriver
from samekey.tenants import single_tenant

BUSY = 4
"""Connections that keep the database busy with questions of their own."""


def make() -> Starlette:
    """The application: a handler that does nothing, so that the guard is all there is to measure."""
    idempotency = Idempotency(os.environ["BENCH_URL"], cache=os.environ.get("BENCH_CACHE") or None)

    @idempotency.leased
    async def leased(request: Request) -> JSONResponse:
        return JSONResponse({"id": 1}, 201)

    count = 0
    execute = AsyncpgDriver.execute

    async def counted(driver: AsyncpgDriver, statement: Statement) -> Sequence[Row]:
        nonlocal count
        count += 1
        return await execute(driver, statement)

    AsyncpgDriver.execute = counted  # type: ignore[assignment,method-assign]

    async def asked(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(count))

    app = Starlette(routes=[Route("/leased", leased, methods=["POST"]), Route("/asked", asked)])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency, tenant=single_tenant())
    return app


def keep_busy(url: str) -> None:
    """Other people's questions, until it is ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            connection.execute("select count(*) from generate_series(1, 50000)")


def asked(app: ServedApp) -> int:
    """Round trips to the database that the application has made so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{app.port}/asked", timeout=30) as reply:
        return int(reply.read())


async def measure(app: ServedApp, seconds: float) -> tuple[float, float]:
    """Replays a second with all connections at once, and round trips to the database for each of them."""
    keys = [same_key() for _ in range(CONNECTIONS)]
    for key in keys * 2:
        await client(app.port, "/leased", key, iter(range(1)), b"201")
    before, begin = asked(app), time.monotonic()
    took = await asyncio.gather(
        *(client(app.port, "/leased", key, turns_for(seconds), b"201") for key in keys)
    )
    count = sum(len(one) for one in took)
    lasted = time.monotonic() - begin
    return count / lasted, (asked(app) - before) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[1]})
    rates: dict[str, list[float]] = {}
    reached: dict[str, list[float]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        cache = stack.enter_context(RedisServer.start(settings={"appendonly": "no"}))
        if len(cores) > 1:
            os.sched_setaffinity(cache.pid, {cores[0]})  # a busy database must not starve it
        url, busy_url = server.create_database(), server.create_database()
        tables(url, "postgres", "bigserial primary key", "text", "bytea")
        served: dict[str, ServedApp] = {}
        for name, cache_url in (("PostgreSQL", ""), ("with the cache", cache.url)):
            served[name] = stack.enter_context(
                serve_asgi(
                    "bench.cached:make",
                    {"BENCH_URL": url, "BENCH_CACHE": cache_url},
                    options=["--factory", "--no-access-log"],
                )
            )
            if len(cores) > 1:
                os.sched_setaffinity(served[name].pid, {cores[0]})
        for round_number in range(options.rounds):
            for busy in (0, BUSY):
                with ExitStack() as others:
                    for _ in range(busy):
                        load: Spawned[None] = spawn(keep_busy, busy_url)
                        others.callback(load.kill9)
                    for name, app in served.items():
                        rate, share = asyncio.run(measure(app, options.seconds))
                        label = f"{name}, {'busy' if busy else 'idle'} database"
                        rates.setdefault(label, []).append(rate)
                        reached.setdefault(label, []).append(share)
            print(f"round {round_number + 1} of {options.rounds}", flush=True)
    table = {
        label: {
            "replays_per_second": round(statistics.median(found)),
            "round_trips_per_replay": round(statistics.median(reached[label]), 3),
        }
        for label, found in rates.items()
    }
    if options.json:
        print(json.dumps(table))
        return
    print("\nreplays/s  round trips to the database for each")
    for label, row in table.items():
        print(f"{row['replays_per_second']:9,}  {row['round_trips_per_replay']:6.3f}  {label}")


if __name__ == "__main__":
    main()
