"""A process that stands still inside a transaction of samekey's own does not hold its locks for long."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from lab.processes import wait_until
from samekey import Idempotency
from samekey.core.program import BEGIN, Program
from samekey.drivers.run import run, run_async
from samekey.testing.conformance import new_claim

HOLDER = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and state = 'idle in transaction' and pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("style", ["sync", "async"])
def test_the_server_ends_it_and_the_program_is_run_again(postgres_url: str, style: str) -> None:
    idempotency = Idempotency(postgres_url, timeout=1.0)
    idempotency.migrate()
    drivers, keys = idempotency.engine.drivers, idempotency.engine.keys
    claim, stands, goes_on, tries = new_claim(), threading.Event(), threading.Event(), list[int]()

    def stands_still() -> Program[Any]:
        tries.append(1)
        yield BEGIN
        decision = yield from keys.claim(claim, idempotency.engine.policy)
        stands.set()
        goes_on.wait(60)  # as a process does that was stopped here, or whose machine has lost its network
        yield from keys.renew([])
        return decision

    def carry() -> Any:
        if style == "sync":
            return run(drivers.sync, stands_still)
        return asyncio.run(run_async(drivers.aio, stands_still))

    done = list[Any]()
    thread = threading.Thread(target=lambda: done.append(carry()))
    with psycopg.connect(postgres_url, autocommit=True) as observer:
        thread.start()
        assert stands.wait(60)
        wait_until(lambda: observer.execute(HOLDER).fetchone() == (0,))
        goes_on.set()
        thread.join(60)
        assert not thread.is_alive() and len(tries) == 2
        assert observer.execute("select attempt from samekey.keys").fetchall() == [(claim.attempt,)]
    idempotency.close()
