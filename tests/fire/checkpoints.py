"""Places at which a test stops an application, and lets it go on: files in a directory that both can see.

The application passes many places, each with the key of its request. One that a test has armed stops it
there until the test opens the place, or ends the process. Files work between processes, survive a kill -9
and need no thread that a blocked event loop could starve.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lab.processes import PATIENCE, wait_until
from samekey.core.program import Statement
from samekey.drivers.url import Drivers

current_key: ContextVar[str] = ContextVar("fire_key", default="")
"""The idempotency key of the request that this code works for."""

POLL = 0.002


class Checkpoints:
    """Arm a place for one key, wait until it is reached, open it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    # The test's side

    def arm(self, place: str, key: str) -> None:
        """The next request with this key stops at this place, once."""
        self._file("armed", place, key).touch()

    def wait_reached(self, place: str, key: str, request: Future[Any]) -> None:
        """Until this request stands there. One that is answered instead is a failure at once."""
        reached = self._file("reached", place, key)
        wait_until(lambda: reached.exists() or request.done())
        assert reached.exists(), f"{key} passed {place!r} and got {request.result()}"

    def open(self, place: str, key: str) -> None:
        """Lets whoever stopped there go on."""
        self._file("open", place, key).touch()

    # The application's side

    def pass_by(self, place: str) -> None:
        key = current_key.get()
        if self._stops(place, key):
            wait_until(self._file("open", place, key).exists, interval=POLL)

    async def pass_by_async(self, place: str) -> None:
        key = current_key.get()
        if self._stops(place, key):
            opened, deadline = self._file("open", place, key), time.monotonic() + PATIENCE
            while not opened.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{place} was never opened")
                await asyncio.sleep(POLL)

    def _stops(self, place: str, key: str) -> bool:
        """One request wins the right to stop: renaming is atomic."""
        try:
            os.rename(self._file("armed", place, key), self._file("reached", place, key))
        except FileNotFoundError:
            return False
        return True

    def _file(self, kind: str, place: str, key: str) -> Path:
        return self._directory / quote(f"{kind} {place} {key}", safe="")


class Journal:
    """Lines that processes append to one file. What is written stays, whatever becomes of the writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, *words: str) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{' '.join(words)}\n".encode())
        finally:
            os.close(file)

    def count(self, *words: str) -> int:
        """How often exactly this line is there."""
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            return 0
        return lines.count(" ".join(words))


# ------------------------------------------------------------------ places inside the engine


def with_checkpoints(drivers: Drivers, checkpoints: Checkpoints) -> Drivers:
    """The same drivers, passing by "before X" and "after X" for every statement X, and for commit."""
    return Drivers(
        drivers.dialect, _Driver(drivers.sync, checkpoints), _AsyncDriver(drivers.aio, checkpoints)
    )


class _Driver:
    """Stands before a driver or a session; what it does not know goes straight through."""

    def __init__(self, inner: Any, checkpoints: Checkpoints) -> None:
        self._inner = inner
        self._checkpoints = checkpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, statement: Statement) -> Any:
        self._checkpoints.pass_by(f"before {statement.name}")
        rows = self._inner.execute(statement)
        self._checkpoints.pass_by(f"after {statement.name}")
        return rows

    def open(self, connection: Any = None) -> Any:
        return _Driver(self._inner.open(connection), self._checkpoints)

    def commit(self) -> None:
        self._checkpoints.pass_by("before commit")
        self._inner.commit()
        self._checkpoints.pass_by("after commit")

    def close(self) -> None:
        self._inner.close()


class _AsyncDriver:
    """The same for async code."""

    def __init__(self, inner: Any, checkpoints: Checkpoints) -> None:
        self._inner = inner
        self._checkpoints = checkpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def execute(self, statement: Statement) -> Any:
        await self._checkpoints.pass_by_async(f"before {statement.name}")
        rows = await self._inner.execute(statement)
        await self._checkpoints.pass_by_async(f"after {statement.name}")
        return rows

    async def open(self, connection: Any = None) -> Any:
        return _AsyncDriver(await self._inner.open(connection), self._checkpoints)

    async def commit(self) -> None:
        await self._checkpoints.pass_by_async("before commit")
        await self._inner.commit()
        await self._checkpoints.pass_by_async("after commit")

    async def close(self) -> None:
        await self._inner.close()
