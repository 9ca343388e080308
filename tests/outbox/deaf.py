"""A proxy that loses PostgreSQL's notifications, as a pooler in transaction mode does, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

NOTIFICATION = b"A"


class Deaf:
    """Everything passes but notifications. ``lost`` says how many did not."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.lost = 0
        self.open = 0
        self.accepted = 0
        self.hears = False
        """Switch it on, and it is a plain proxy."""
        self.url = ""

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Deaf]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        user = self._target.netloc.rpartition("@")[0]
        # In the clear, so that it can be read.
        parts = self._target._replace(netloc=f"{user}@127.0.0.1:{port}", query="sslmode=disable")
        self.url = urlunsplit(parts)
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.accepted += 1
        upstream = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            directions = [
                asyncio.ensure_future(_pipe(reader, upstream[1])),
                asyncio.ensure_future(self._filter(upstream[0], writer)),
            ]
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
        finally:
            self.open -= 1
            writer.close()
            upstream[1].close()

    async def _filter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Message by message: one byte of type, four of length, content."""
        while True:
            head = await reader.readexactly(5)
            rest = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            if head[:1] == NOTIFICATION and not self.hears:
                self.lost += 1
                continue
            writer.write(head + rest)
            await writer.drain()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
