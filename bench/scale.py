"""``python -m bench.scale``: what one PostgreSQL carries, by connections and by the size of the table.

It runs the store's own programs (a claim, a completion, a look at a completed record) through asyncpg, from
two processes beside a throwaway server, and a plain insert of one row for comparison. Commits are durable:
fsync is on, the files are on disk.

Load and server share the machine, so operations a second are a floor. The time that all processes of the
server spent on a processor for one operation is shown beside them: it hardly depends on what else the machine
has to do, and says what a core carries. Each figure is the median of a few rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import psycopg

from bench.load import processor_time
from lab.processes import Racers, Turn
from lab.servers.postgres import PostgresServer, Setting
from samekey.core.claim import Claim
from samekey.core.policy import ietf
from samekey.core.record import Answer, Lease
from samekey.core.states import Mode
from samekey.drivers.postgres.asyncpg import AsyncpgDriver
from samekey.drivers.run import run, run_async
from samekey.drivers.url import drivers_for
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for

Kind = Literal["insert", "claim", "complete", "replay"]
KINDS: Final[tuple[Kind, ...]] = ("insert", "claim", "complete", "replay")
PROCESSES: Final = 2
BATCH: Final = 250_000
"""Rows in one statement of the filling: progress can be seen, and no transaction is too large."""
POLICY: Final = ietf()
ANSWER: Final = Answer(201, ((b"content-type", b"application/json"),), b'{"id": "pay_8Qw1", "amount": 1999}')

FILL: Final = """
insert into samekey.keys (
    scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt, attempts,
    answer_version, answer_status, answer_headers, answer_body,
    created_at, last_run_at, completed_at, expires_at, ttl_ms, ttl_from, after_expiry
)
select
    'tenant-' || n %% 1000, 'fill-' || n, md5(n::text), '=tenant', 'POST /payments',
    decode(md5(n::text), 'hex'), '1', 'completed', 'leased', md5((n + 1)::text), 1, 1, 201,
    '[]'::bytea, '{"id": "pay_8Qw1"}'::bytea, 0, 0, 0, 32503680000000,
    86400000, 'completion', 'new'
from generate_series(%s::bigint, %s::bigint) as n
"""


def new_claim(scope: str, key: str) -> Claim:
    body = secrets.token_bytes(32)
    return Claim(
        id=secrets.token_hex(16),
        attempt=secrets.token_hex(16),
        scope=scope,
        key=key,
        tenant="=tenant",
        endpoint="POST /payments",
        fingerprint=body,
        fingerprint_version="1",
        digest_as=lambda _version: body,
        mode=Mode.LEASED,
        lease_ms=600_000,
        ttl_ms=86_400_000,
    )


# ------------------------------------------------------------------ the load, in each process


class Load:
    """One process's connections, and the leases that it has taken and not completed."""

    def __init__(self, url: str, connections: int) -> None:
        self.connections = connections
        self._driver = AsyncpgDriver(url, pool_size=connections, timeout=60)
        self._queries = queries_for("postgres")
        self._keys = SqlKeys(self._queries)
        self._insert = self._queries.build("plain", "insert into plain (note) values (:note::text)")
        self._leases: list[Lease] = []
        self._rows = 0

    async def measure(self, kind: Kind, seconds: float, rows: int) -> tuple[int, float]:
        """How many were done with every connection at work, and how many that is a second."""
        self._rows = rows
        act: Callable[[], Awaitable[Any]] = getattr(self, f"_{kind}_one")
        begin = time.monotonic()

        async def work() -> int:
            done = 0
            while time.monotonic() < begin + seconds and (kind != "complete" or self._leases):
                await act()
                done += 1
            return done

        count = sum(await asyncio.gather(*(work() for _ in range(self.connections))))
        return count, count / (time.monotonic() - begin)

    async def close(self) -> None:
        await self._driver.close()

    async def _insert_one(self) -> None:
        await self._driver.execute(self._insert(note=secrets.token_hex(16)))

    async def _claim_one(self) -> None:
        claim = new_claim(f"tenant-{random.randrange(1000)}", secrets.token_hex(16))  # noqa: S311
        await run_async(self._driver, lambda: self._keys.claim(claim, POLICY))
        self._leases.append(Lease(claim.scope, claim.key, claim.attempt, claim.lease_ms))

    async def _complete_one(self) -> None:
        lease = self._leases.pop()
        await run_async(self._driver, lambda: self._keys.complete(lease, ANSWER))

    async def _replay_one(self) -> None:
        n = random.randint(1, self._rows)  # noqa: S311
        await run_async(self._driver, lambda: self._keys.read(f"tenant-{n % 1000}", f"fill-{n}"))


_kept: dict[tuple[str, int], tuple[asyncio.Runner, Load]] = {}
"""Between the rounds of one process: what it claims in one, it completes in the next."""


def measure(
    _turn: Turn, url: str, connections: int, kind: Kind, seconds: float, rows: int
) -> tuple[int, float]:
    """One round of one kind, with this many connections of this process."""
    if (url, connections) not in _kept:
        hang_up(_turn)
        _kept[url, connections] = (asyncio.Runner(), Load(url, connections))
    runner, load = _kept[url, connections]
    return runner.run(load.measure(kind, seconds, rows))


def hang_up(_turn: Turn) -> None:
    for runner, load in _kept.values():
        runner.run(load.close())
        runner.close()
    _kept.clear()


# ------------------------------------------------------------------ the tables


def prepare(url: str) -> None:
    drivers = drivers_for(url, timeout=60)
    run(drivers.sync, lambda: migrate(queries_for("postgres")))
    drivers.sync.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table plain (id bigserial primary key, note text)")


def fill(url: str, first: int, last: int) -> None:
    """Completed records, without their audit: that is a table of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter table samekey.keys disable trigger user")
        for begin in range(first, last + 1, BATCH):
            connection.execute(FILL, [begin, min(begin + BATCH - 1, last)])
        connection.execute("alter table samekey.keys enable trigger user")
        connection.execute("vacuum analyze samekey.keys")
        connection.execute("checkpoint")


def sizes(url: str) -> tuple[int, int]:
    """Bytes of the table and of its indexes."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select pg_table_size('samekey.keys'), pg_indexes_size('samekey.keys')"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell of the table."""

    rows: int
    connections: int
    kind: Kind
    per_second: float
    server_us: float
    """Microseconds of processor time that the server spent on one."""


def one_row(
    server: PostgresServer, processes: Racers, url: str, rows: int, connections: int, options: Any
) -> list[Measured]:
    """Every kind, with this many connections in all."""
    each = max(1, connections // PROCESSES)
    found: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for kind in KINDS:  # connects, and prepares its statements
        processes.race(measure, url, each, kind, 0.2, rows)
    for _ in range(options.rounds):
        for kind in KINDS:
            before = processor_time(server.pid)
            done = processes.race(measure, url, each, kind, options.seconds, rows)
            spent = processor_time(server.pid) - before
            count = max(1, sum(one[0] for one in done))
            found[kind].append((sum(one[1] for one in done), spent / count * 1e6))
    return [
        Measured(
            rows,
            each * PROCESSES,
            kind,
            round(statistics.median(one[0] for one in found[kind])),
            round(statistics.median(one[1] for one in found[kind])),
        )
        for kind in KINDS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000, 5_000_000])
    parser.add_argument("--connections", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: list[Measured] = []
    settings: dict[str, Setting] = {"fsync": True, "shared_buffers": "512MB", "max_wal_size": "8GB"}
    with PostgresServer(settings=settings) as server, Racers(PROCESSES, timeout=600) as processes:
        url = server.create_database()
        prepare(url)
        there = 0
        print(f"{os.cpu_count()} cores for the server and {PROCESSES} processes of load", flush=True)
        print("each cell: operations a second, microseconds of the server's processor time for one")
        for rows in sorted(options.rows):
            fill(url, there + 1, rows)
            there = rows
            table, indexes = sizes(url)
            print(f"\n{rows:,} records: table {table >> 20:,} MB, indexes {indexes >> 20:,} MB")
            print("connections  " + "  ".join(f"{kind:>16}" for kind in KINDS), flush=True)
            for connections in options.connections:
                row = one_row(server, processes, url, rows, connections, options)
                results += row
                cells = "  ".join(f"{one.per_second:>7,.0f} {one.server_us:>5,.0f} µs" for one in row)
                print(f"{row[0].connections:11}  {cells}", flush=True)
        processes.race(hang_up)
    if options.json:
        print(json.dumps([asdict(one) for one in results]))


if __name__ == "__main__":
    main()
