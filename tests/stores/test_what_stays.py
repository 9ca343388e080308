"""What a driver leaves behind in the memory of its process: nothing that grows with what it has run."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from lab import environment
from samekey.drivers.run import run, run_async
from samekey.drivers.url import drivers_for
from samekey.stores.sql.keys import SqlKeys
from samekey.stores.sql.migrations import migrate
from samekey.stores.sql.queries import queries_for

STATEMENTS = 2_000
A_FEW = 400
"""SQLite clears its list of cursors after two hundred."""


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_statements_leave_nothing_behind(kind: str) -> None:
    """In a process of its own: what other tests have left running makes objects, too."""
    ran = subprocess.run(
        [sys.executable, "-m", __name__, kind],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < A_FEW


def left_by(kind: str) -> int:
    drivers, queries = drivers_for("sqlite:///:memory:"), queries_for("sqlite")
    keys = SqlKeys(queries)
    run(drivers.sync, lambda: migrate(queries))

    def look(times: int) -> None:
        for n in range(times):
            run(drivers.sync, lambda n=n: keys.read("scope", f"key {n}"))  # type: ignore[misc]

    async def look_async(times: int) -> None:
        for n in range(times):
            await run_async(drivers.aio, lambda n=n: keys.read("scope", f"key {n}"))  # type: ignore[misc]

    with asyncio.Runner() as runner:
        looks: Callable[[int], None] = look if kind == "sync" else lambda times: runner.run(look_async(times))
        looks(100)
        before = objects()
        looks(STATEMENTS)
        left = objects() - before
        runner.run(drivers.aio.close())
    drivers.sync.close()
    return left


if __name__ == "__main__":
    print(left_by(sys.argv[1]))
