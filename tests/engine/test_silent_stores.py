"""A store that says nothing: nobody waits for longer than the docs say."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from samekey.drivers.postgres.asyncpg import AsyncpgDriver
from samekey.engine.modes import atomic
from samekey.errors import StoreUnavailable
from samekey.stores.sql.queries import queries_for


class Silence:
    """Takes connections, and never says a word."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        for one in (self._socket, *self.taken):
            one.close()


def test_a_crowd_does_not_ask_a_silent_server_one_after_the_other() -> None:
    silence = Silence()
    driver = AsyncpgDriver(f"postgresql://x:y@127.0.0.1:{silence.port}/z", pool_size=10, timeout=0.5)

    async def main() -> None:
        statement = queries_for("postgres").statement("clock", None)
        crowd = (driver.execute(statement) for _ in range(10))
        got = await asyncio.gather(*crowd, return_exceptions=True)
        assert all(isinstance(one, StoreUnavailable) for one in got), got
        await driver.close()

    asyncio.run(main())
    # Who asks may do so for as long as it likes to wait; those behind it do not begin anew.
    assert len(silence.taken) <= 3
    silence.close()


@pytest.mark.parametrize(("each", "asked"), [(0.0, 7), (1.0, 4), (6.0, 1)])
def test_what_became_of_a_commit_is_asked_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch, each: float, asked: int
) -> None:
    """``each``: what a question takes."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pauses = []
    for pause in atomic.settling():
        pauses.append(pause)
        now += each + pause
    assert len(pauses) == asked and now <= 100.0 + sum(atomic.SETTLE_PAUSES) + each + 1.6
