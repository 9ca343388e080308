"""An HTTP proxy on loopback that misbehaves by chance: it drops, delays, duplicates, reorders and cuts.

It takes one request at a time from a connection, decides by a seeded generator what befalls it, and counts
what it did. Whatever it does, a real network with real gateways can do.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self

from lab.processes import LOOPBACK, free_port

__all__ = ["MISHAPS", "UnrulyProxy"]

MISHAPS = {
    "drop": 6,  # the request never arrives
    "cut_answer": 6,  # it arrives, and its answer is lost
    "cut_body": 4,  # half of its answer comes
    "delay": 4,  # it takes its time
    "duplicate": 4,  # it arrives twice, at about the same time
    "late": 4,  # the client is cut off; the request arrives when its successor may have
    "bad_gateway": 3,  # 502, and it has arrived
    "unavailable": 3,  # 503, and it has not
    "gateway_timeout": 3,  # 504, and it has arrived
}
"""What befalls a request, each with its weight; the rest of 100 pass as they are."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_LATE = 0.05
"""Seconds at most by which something is held back."""


class UnrulyProxy:
    """A context manager; it has a thread of its own. ``weight`` multiplies every mishap's."""

    def __init__(self, target_port: int, seed: int, weight: float = 1.0) -> None:
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.befell: Counter[str] = Counter()
        self._target = target_port
        self._chance = random.Random(seed)
        self._names = [*MISHAPS, "pass"]
        mishaps = [part * weight for part in MISHAPS.values()]
        self._weights = [*mishaps, max(100 - sum(mishaps), 1)]
        self._loop = asyncio.SelectorEventLoop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="unruly-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(3):
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _message(reader)) is not None:
                (mishap,) = self._chance.choices(self._names, self._weights)
                self.befell[mishap] += 1
                answer = await self._befall(mishap, request)
                if answer is None:
                    break
                writer.write(answer[: len(answer) // 2] if mishap == "cut_body" else answer)
                await writer.drain()
                if mishap == "cut_body":
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _befall(self, mishap: str, request: bytes) -> bytes | None:
        """The answer to give; None cuts the client off."""
        pause = self._chance.random() * _LATE
        if mishap == "drop":
            return None
        if mishap == "unavailable":
            return _page(503)
        if mishap == "late":
            self._later(pause, request)
            return None
        if mishap == "delay":
            await asyncio.sleep(pause)
        if mishap == "duplicate":
            self._later(0, request)
        answer = await self._forward(request)
        if mishap == "cut_answer":
            return None
        if mishap in ("bad_gateway", "gateway_timeout"):
            return _page(502 if mishap == "bad_gateway" else 504)
        return answer

    def _later(self, seconds: float, request: bytes) -> None:
        async def send() -> None:
            await asyncio.sleep(seconds)
            await self._forward(request)

        task = asyncio.get_running_loop().create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, request: bytes) -> bytes:
        """A gateway's own error where the server is away, or dies under the request."""
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self._target)
        except OSError:
            return _page(502)
        try:
            writer.write(request)
            answer = await _message(reader)
            return _page(502) if answer is None else answer
        except (OSError, asyncio.IncompleteReadError):
            return _page(502)
        finally:
            writer.transport.abort()


async def _message(reader: asyncio.StreamReader) -> bytes | None:
    """One request or answer with its body, by its Content-Length; None at the end of the stream."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    found = _LENGTH.search(head)
    return head + (await reader.readexactly(int(found[1])) if found else b"")


def _page(status: int) -> bytes:
    return f"HTTP/1.1 {status} Gateway\r\ncontent-length: 0\r\n\r\n".encode()
