"""What the tests of ``once`` run in processes of their own, which import nothing else of them."""

from __future__ import annotations

import time

from lab.processes import Turn
from samekey import Idempotency, StillRunning
from tests.phased.world import execute


def one_of_many(turn: Turn, url: str, key: str) -> str:
    idempotency = Idempotency(url)

    def work() -> str:
        execute(url, f"insert into rides values ('{key}')")
        return f"racer {turn.racer}"

    try:
        result: str = idempotency.once(tenant="acme", key=key, run=work)
        return result
    except StillRunning:
        return "still running"
    finally:
        idempotency.close()


def holds_on(url: str) -> None:
    Idempotency(url).once(tenant="acme", key="k1", run=lambda: time.sleep(60), lease=0.4, max_run=60)
