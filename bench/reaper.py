"""``python -m bench.reaper``: a pass of the reaper over a large table that holds a few expired records.

It fills a throwaway PostgreSQL with ``--rows`` completed records, lets a thousand of them expire, and shows
the plan and the time of the statement that finds and deletes them. The figure to beat is 10 ms.
"""

from __future__ import annotations

import argparse
import time

import psycopg

from lab.servers.postgres import PostgresServer
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for
from samekey.stores.sql.upkeep import Upkeep

FILL = """
insert into samekey.keys (
    scope, key, id, tenant, endpoint, fingerprint, fingerprint_version, state, mode, attempt, attempts,
    answer_version, answer_status, answer_headers, answer_body,
    created_at, last_run_at, completed_at, expires_at, ttl_ms, ttl_from, after_expiry
)
select
    '7:=tenant', n::text, md5(n::text), '=tenant', 'POST /payments', '\\x00'::bytea, '1', 'completed',
    'atomic', md5((n + 1)::text), 1, 1, 201, '[]'::bytea, '{"id": 1}'::bytea, 0, 0, 0,
    case when n <= %(expired)s then 1 else 32503680000000 end, 86400000, 'completion', 'new'
from generate_series(1, %(rows)s) as n
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--expired", type=int, default=1000)
    options = parser.parse_args()
    with PostgresServer(settings={"max_wal_size": "8GB", "maintenance_work_mem": "1GB"}) as server:
        url = server.create_database()
        drivers, queries = drivers_for(url, timeout=60), queries_for("postgres")
        run(drivers.sync, lambda: migrate(queries))
        print(f"filling a table with {options.rows:,} records …", flush=True)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("alter table samekey.keys disable trigger user")
            connection.execute(FILL % {"rows": options.rows, "expired": options.expired})
            connection.execute("alter table samekey.keys enable trigger user")
            connection.execute("vacuum analyze samekey.keys")
            sql, names = queries["reap"].rendered["format"]
            values = {"now": None, "batch": options.expired}
            connection.execute("begin")
            plan = connection.execute(
                f"explain (analyze, buffers) {sql}", [values[name] for name in names]
            ).fetchall()
            connection.execute("rollback")
        print("\n".join(str(row[0]) for row in plan), flush=True)
        upkeep = Upkeep(SqlKeys(queries))
        begin = time.perf_counter()
        reaped = run(drivers.sync, lambda: upkeep.reap(batch=options.expired))
        whole = time.perf_counter() - begin
        begin = time.perf_counter()
        nothing = run(drivers.sync, lambda: upkeep.reap(batch=options.expired))
        empty = time.perf_counter() - begin
        print(f"\nreaped {reaped} of {options.rows:,} with their audit in {whole * 1000:.1f} ms")
        print(f"a pass that finds {nothing}: {empty * 1000:.1f} ms")
        drivers.sync.close()


if __name__ == "__main__":
    main()
