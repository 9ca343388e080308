"""Ten processes on one key: one of them runs it, new, after a lease that ran out, and after expiry."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from functools import partial
from typing import Any

from lab.processes import Racers, Turn
from samekey import ietf
from samekey.core.decide import Decision
from samekey.core.states import Mode
from samekey.drivers.run import run, run_async
from samekey.drivers.url import Drivers, drivers_for
from samekey.stores.dynamodb.statements import DynamoStatements
from samekey.stores.keys import Keys
from samekey.testing.conformance import new_claim
from samekey.testing.conformance_subject import DAY, NOW
from tests.chosen import whole

pytestmark = whole


KEYS, POLICY = Keys(DynamoStatements()), ietf()
LEASE = 60_000
made: dict[str, tuple[Drivers, asyncio.Runner]] = {}
"""What a racer keeps from round to round."""


def get_ready(turn: Turn, url: str) -> None:
    """Connected, before the race."""
    drivers, runner = made[url] = drivers_for(url, timeout=60), asyncio.Runner()
    run(drivers.sync, lambda: KEYS.read("race", "nobody's"))
    runner.run(run_async(drivers.aio, lambda: KEYS.read("race", "nobody's")))


def claim(turn: Turn, url: str, key: str, now: int) -> tuple[str, str]:
    """Half of the racers are async code."""
    drivers, runner = made[url]
    mine = new_claim(scope="race", key=key, mode=Mode.REPEATABLE, lease_ms=LEASE)
    decision: Decision
    if turn.racer % 2:
        decision = run(drivers.sync, lambda: KEYS.claim(mine, POLICY, now=now))
    else:
        decision = runner.run(run_async(drivers.aio, lambda: KEYS.claim(mine, POLICY, now=now)))
    return type(decision).__name__, mine.attempt


def finish(turn: Turn, url: str) -> None:
    drivers, runner = made.pop(url)
    runner.run(drivers.aio.close())
    runner.close()
    drivers.sync.close()


def test_of_ten_processes_one_runs_it(dynamodb_session_url: str) -> None:
    url = dynamodb_session_url
    drivers = drivers_for(url)

    def stored(key: str) -> Any:
        return run(drivers.sync, lambda: KEYS.read("race", key))

    with Racers(10, timeout=240) as racers:
        racers.race(get_ready, url)
        for _ in range(3):
            key = secrets.token_hex(8)
            # A new key; its lease has run out; again; then it has failed, and its retention is over.
            for life, now in enumerate((NOW, NOW + LEASE, NOW + 2 * LEASE, NOW + 9 * DAY)):
                if life == 3:
                    lease = stored(key).lease(LEASE)
                    assert run(drivers.sync, partial(KEYS.fail, lease, "declined", now=NOW))
                said = racers.race(claim, url, key, now)
                assert Counter(kind for kind, _ in said) == {"Execute": 1, "Outstanding": 9}
                [winner] = [attempt for kind, attempt in said if kind == "Execute"]
                assert stored(key).attempt == winner
        racers.race(finish, url)
    drivers.sync.close()
