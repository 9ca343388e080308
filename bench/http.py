"""``python -m bench.http``: what a guard costs, as a share of the same handler without one.

One uvicorn worker on one core; PostgreSQL and the load on another. Every variant is measured in turn, several
times over, so that the machine's moods fall on all of them alike; the ratio of the medians is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
import uuid

import psycopg

from lab.processes import serve_asgi
from lab.servers.postgres import PostgresServer
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for

BODY = b'{"amount": 1999, "currency": "EUR", "customer": "cus_8Qw1"}'
CONNECTIONS = 32


def request(path: str, key: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    return head.encode() + BODY


async def client(port: int, path: str, key: str | None, until: float) -> int:
    """One keep-alive connection; ``key`` None: a new key each time. Gives how many answers came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while time.monotonic() < until:
        writer.write(request(path, key or uuid.uuid4().hex))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        count += 1
    writer.close()
    return count


async def measure(port: int, path: str, *, replay: bool, seconds: float) -> float:
    """Requests per second with all connections at once."""
    keys = [uuid.uuid4().hex if replay else None for _ in range(CONNECTIONS)]
    for key in keys:
        if key is not None:
            await client(port, path, key, time.monotonic() + 0.001)
    begin = time.monotonic()
    counts = await asyncio.gather(*(client(port, path, key, begin + seconds) for key in keys))
    return sum(counts) / (time.monotonic() - begin)


def prepare(url: str) -> None:
    drivers = drivers_for(url)
    run(drivers.sync, lambda: migrate(queries_for("postgres")))
    drivers.sync.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table bench_payments (id bigserial primary key, amount bigint)")
        connection.execute(
            "create table bench_keys (key text primary key, request bytea, status int, body bytea)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    variants = [
        ("unguarded", "/unguarded", False),
        ("by hand, one transaction: new key", "/by-hand", False),
        ("by hand: replay", "/by-hand", True),
        ("samekey atomic: new key", "/atomic", False),
        ("samekey atomic: replay", "/atomic", True),
        ("samekey leased: new key", "/leased", False),
        ("samekey leased: replay", "/leased", True),
    ]
    results: dict[str, list[float]] = {name: [] for name, _, _ in variants}
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[1]})
    with PostgresServer() as server:
        url = server.create_database()
        prepare(url)
        with serve_asgi("bench.app:app", {"BENCH_URL": url}, options=["--no-access-log"]) as served:
            if len(cores) > 1:
                os.sched_setaffinity(served.pid, {cores[0]})
            for round_number in range(options.rounds):
                for name, path, replay in variants:
                    rate = asyncio.run(measure(served.port, path, replay=replay, seconds=options.seconds))
                    results[name].append(rate)
                print(f"round {round_number + 1} of {options.rounds}", flush=True)
    base = statistics.median(results["unguarded"])
    table = {name: round(statistics.median(rates) / base, 2) for name, rates in results.items()}
    if options.json:
        print(json.dumps({"unguarded_per_second": round(base), "ratios": table}))
        return
    print(f"\n1.00 = {base:.0f} requests a second\n")
    for name, ratio in table.items():
        print(f"{ratio:5.2f}  {name}")


if __name__ == "__main__":
    main()
