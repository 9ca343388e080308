"""``python -m bench.spray``: one tenant sprays keys while another works; what does the second one notice?

With ``active_keys`` set, the sprayer's storage is bounded by its cap. The other tenant's new keys and retries
are timed before and during the spraying, in the same process mix, and the ratio is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Event

from lab.servers.postgres import PostgresServer
from samekey import Idempotency, ietf
from samekey.core.claim import scope_part
from samekey.drivers.run import run
from samekey.errors import LimitExceeded
from samekey.stores.sql.migrations import migrate

CAP = 1000


def guarded(url: str) -> Idempotency:
    return Idempotency(url, policy=ietf(active_keys=CAP))


def spray(url: str, keys: int, begun: Event) -> None:
    idempotency = guarded(url)
    for number in range(keys):
        try:
            idempotency.once(tenant="sprayer", key=f"spray-{number}", run=lambda: None)
        except LimitExceeded:
            begun.set()
    idempotency.close()


def other(idempotency: Idempotency, name: str, count: int) -> tuple[float, float]:
    """The median milliseconds of a new key and of a retry."""
    new: list[float] = []
    again: list[float] = []
    for number in range(count):
        for times in (new, again):
            begin = time.perf_counter()
            idempotency.once(tenant="other", key=f"{name}-{number}", run=lambda: 1)
            times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(new), statistics.median(again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    options = parser.parse_args()
    with PostgresServer() as server:
        url = server.create_database()
        idempotency = guarded(url)
        run(idempotency.engine.drivers.sync, lambda: migrate(idempotency.engine.queries))
        other(idempotency, "warm", 50)
        quiet = other(idempotency, "quiet", 200)
        context = multiprocessing.get_context("spawn")
        begun = context.Event()
        sprayer = context.Process(target=spray, args=(url, options.keys, begun))
        sprayer.start()
        begin = time.perf_counter()
        begun.wait(60)
        loud = other(idempotency, "loud", 200)
        still_spraying = sprayer.is_alive()
        sprayer.join()
        seconds = time.perf_counter() - begin
        stored = run(
            idempotency.engine.drivers.sync,
            lambda: idempotency.engine.store.finding.find(tenant=scope_part("sprayer"), limit=options.keys),
        )
        print(f"{options.keys:,} keys sprayed in {seconds:.0f} s: {len(stored):,} stored, the cap is {CAP:,}")
        print(f"the other tenant, alone:  new key {quiet[0]:.2f} ms, retry {quiet[1]:.2f} ms")
        print(f"while it was sprayed:     new key {loud[0]:.2f} ms, retry {loud[1]:.2f} ms")
        print(f"ratio:                    new key {loud[0] / quiet[0]:.2f},  retry {loud[1] / quiet[1]:.2f}")
        idempotency.close()
        if len(stored) > CAP or not still_spraying:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
