"""A phase whose function hangs in the middle of its transaction: it keeps its locks for ``max_run``."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.phased.world import World, count, execute


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_transaction_that_hangs_keeps_the_write_lock_no_longer_than_max_run(url: str, style: str) -> None:
    reached, let_go = threading.Event(), threading.Event()

    def hangs(connection: Any) -> None:
        connection.execute("insert into rides values ('first')")
        reached.set()
        let_go.wait(60)

    async def hangs_async(connection: Any) -> None:
        await connection.execute("insert into rides values ('first')")
        reached.set()
        await asyncio.to_thread(let_go.wait, 60)

    with World(url, style) as world:

        async def ride(op: Any, _input: Any) -> Any:
            made = op.transaction("start", hangs if style == "sync" else hangs_async)
            return await made if style == "async" else made

        world.define(ride, lease=0.5, max_run=1)
        calling = threading.Thread(target=world.post, args=("k1",))
        calling.start()
        try:
            assert reached.wait(30)
            execute(url, "insert into rides values ('other')")  # waits for the write lock, not for ever
        finally:
            let_go.set()
            calling.join(30)
    assert (count(url, "rides", "first"), count(url, "rides", "other")) == (0, 1)
