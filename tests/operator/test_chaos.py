"""Workers and applications are killed and restarted at random under load; afterwards nothing is stuck.

``SAMEKEY_CHAOS_SECONDS=60`` makes it a minute.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from pathlib import Path

import psycopg
import pytest

from lab.processes import GuardedProcess, wait_until
from samekey.drivers.run import run
from samekey.drivers.url import drivers_for
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for
from tests.chosen import whole

pytestmark = whole


SECONDS = float(os.environ.get("SAMEKEY_CHAOS_SECONDS", "8"))
ENOUGH = 20
"""Keys that a storm has met at least, on a machine that takes longer to start a process too."""
ROOT = Path(__file__).parents[2]
WORKER = [
    "-m",
    "samekey.cli",
    "worker",
    "tests.operator.chaos_app:idempotency",
    *("--lease", "1", "--completer-interval", "0.2", "--sweeper-interval", "0.2"),
    *("--reaper-interval", "0.5", "--reconciler-interval", "0.2"),
]
LOAD = ["-m", "tests.operator.chaos_app"]
SETTLED = "'completed', 'failed_retryable', 'dead_letter', 'expired'"


def test_nothing_is_stuck_after_a_storm(postgres_url: str, tmp_path: Path) -> None:
    drivers = drivers_for(postgres_url)
    run(drivers.sync, lambda: migrate(queries_for("postgres")))
    drivers.sync.close()
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    env = {**os.environ, "CHAOS_URL": postgres_url, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "log.txt"

    def start(kind: list[str]) -> GuardedProcess:
        return GuardedProcess([sys.executable, *kind], log=log, cwd=ROOT, env=env)

    with contextlib.ExitStack() as clean_up:
        kinds = [WORKER, WORKER, LOAD, LOAD]
        processes = [start(kind) for kind in kinds]
        clean_up.callback(lambda: [process.kill9() for process in processes])
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends or (_keys(postgres_url) <= ENOUGH and time.monotonic() < ends + 120):
            time.sleep(chance.uniform(0.3, 1.0))  # the storm itself, not a wait for anything
            victim = chance.randrange(len(kinds))
            processes[victim].kill9()
            processes[victim] = start(kinds[victim])
        for process in processes[2:]:
            process.kill9()
        _judge(postgres_url, log)


def _keys(url: str) -> int:
    """How many were claimed."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(distinct key) from samekey.audit").fetchone()
        assert row is not None
        return int(row[0])


def _judge(url: str, log: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:

        def count(where: str) -> int:
            row = connection.execute(f"select count(*) from samekey.keys where {where}").fetchone()
            assert row is not None
            return int(row[0])

        # Unknown is allowed, but only with a date on which it will be asked about.
        stuck = f"state not in ({SETTLED}) and not (state = 'unknown' and reconcile_after is not null)"
        try:
            wait_until(lambda: count(stuck) == 0, timeout=60)
        except TimeoutError:
            rows = connection.execute(f"select state, mode, error_code from samekey.keys where {stuck}")
            pytest.fail(f"stuck: {rows.fetchall()}\n{log.read_text()[-3000:]}")
        assert _keys(url) > ENOUGH, "there was no storm"
        lost = connection.execute(
            "select from_state, count(*) from samekey.audit where to_state is null and actor = 'reaper'"
            " and from_state not in ('completed', 'failed_retryable', 'expired') group by 1"
        ).fetchall()
        assert lost == [], "the reaper took what was in flight or unknown"
