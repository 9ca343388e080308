"""What a driver leaves behind in the memory of its process: nothing that grows with what it has run."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

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
    assert left < A_FEW
