"""What the measurements share: requests over kept connections, processor time, round trips on the wire."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from lab.processes import LOOPBACK, children_of

BODY = b'{"amount": 1999, "currency": "EUR", "customer": "cus_8Qw1"}'
CONNECTIONS = 32
HOT_CONNECTIONS = 64
TICKS = os.sysconf("SC_CLK_TCK")

Keys = Callable[[], Iterator[str]]
"""The keys that one connection sends, one after the other."""


def request(path: str, key: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    return head.encode() + BODY


async def client(
    port: int, path: str, keys: Iterator[str], turns: Iterator[object], fine: bytes
) -> list[float]:
    """One kept connection, as long as there are turns. Gives how many seconds each answer took."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    took: list[float] = []
    for _ in turns:
        begin = time.perf_counter()
        writer.write(request(path, next(keys)))
        head = await reader.readuntil(b"\r\n\r\n")
        if head[9:12] not in fine:
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        took.append(time.perf_counter() - begin)
    writer.close()
    return took


def turns_for(seconds: float) -> Iterator[None]:
    """Turns for as long as that."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None


def new_keys() -> Iterator[str]:
    while True:
        yield uuid.uuid4().hex


def same_key() -> Iterator[str]:
    key = uuid.uuid4().hex
    while True:
        yield key


def half_and_half() -> Iterator[str]:
    """A new key, then the same once more."""
    for key in new_keys():
        yield key
        yield key


def hot_key() -> Iterator[str]:
    """One key for everybody, another one every tenth of a second."""
    while True:
        yield f"hot-{time.time() * 10:.0f}"


class Clients:
    """Kept connections that send one kind of keys, the same in each measurement."""

    def __init__(self, port: int, path: str, keys: Keys) -> None:
        self._port, self._path = port, path
        # Of a hot key all but one are told that it is being worked on.
        self._fine = b"201 202 409" if keys is hot_key else b"201 202"
        self._each = [keys() for _ in range(HOT_CONNECTIONS if keys is hot_key else CONNECTIONS)]
        if keys is same_key:
            self.send(len(self._each))  # from now on they are replays

    def send(self, count: int) -> list[float]:
        """So many requests. Gives how many seconds each took."""
        share = -(-count // len(self._each))
        return asyncio.run(self._send(share))

    async def _send(self, share: int) -> list[float]:
        took = await asyncio.gather(
            *(client(self._port, self._path, one, iter(range(share)), self._fine) for one in self._each)
        )
        return [second for one in took for second in one]


def processor_time(*pids: int) -> float:
    """Seconds that these processes and their children have spent, the ended ones included."""

    def spent(pid: int, fields: int) -> int:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return 0  # ended meanwhile, and counted with its parent
        return sum(int(word) for word in stat.rpartition(")")[2].split()[11 : 11 + fields])

    # For the parent also what it has waited for; for its children only their own.
    return sum(spent(pid, 4) + sum(spent(child, 2) for child in children_of(pid)) for pid in pids) / TICKS


def connect(url: str) -> Any:
    """A connection of the usual driver, in autocommit mode; SQLite with full durability."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        made = sqlite3.connect(parts.path, isolation_level=None, timeout=30)
        made.execute("pragma journal_mode = wal")
        made.execute("pragma synchronous = full")
        return made
    if parts.scheme == "mysql":
        import pymysql  # type: ignore[import-untyped]

        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=parts.path[1:],
            autocommit=True,
        )
    import psycopg

    return psycopg.connect(url, autocommit=True)


class Relay:
    """A wire in between that counts how often a client spoke after its server had: the round trips."""

    def __init__(self) -> None:
        self.trips = 0
        self._port = 0

    def url(self, url: str) -> str:
        """The same URL by way of this relay."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user + '@' if user else ''}{LOOPBACK}:{self._port}"))

    async def _join(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(LOOPBACK, target)
        asks = False

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_client: bool) -> None:
            nonlocal asks
            while data := await source.read(65536):
                self.trips += is_client and not asks
                asks = is_client
                sink.write(data)
            sink.close()

        try:
            await asyncio.gather(pass_on(reader, to_server, True), pass_on(from_server, writer, False))
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the relay ends
        finally:
            to_server.close()
            writer.close()

    @classmethod
    @contextmanager
    def before(cls, url: str) -> Iterator[Relay]:
        relay, target = cls(), urlsplit(url).port
        assert target is not None
        ready = threading.Event()
        end: list[Callable[[], object]] = []

        async def serve() -> None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            end.append(lambda: loop.call_soon_threadsafe(ended.set))
            server = await asyncio.start_server(lambda r, w: relay._join(target, r, w), LOOPBACK, 0)
            relay._port = server.sockets[0].getsockname()[1]
            ready.set()
            await ended.wait()
            server.close()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        ready.wait(10)
        try:
            yield relay
        finally:
            end[0]()
            thread.join(10)
