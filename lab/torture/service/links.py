"""A way to MySQL or MariaDB that can fail: the same proxy, which here sees statements in their protocol.

It reads just enough to lose a COMMIT, its acknowledgement, or the reply to another statement. A client of
this protocol sends one command and waits for its answer. So what arrives at once is one command, but for
those that are larger than a read: these pass unread, as does encrypted traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Self
from urllib.parse import urlsplit

from lab.processes import LOOPBACK
from lab.proxy import FaultProxy, _Connection, _Session

QUERY: Final = b"\x00\x03"
"""A packet's number, the first of its command, and the command that carries SQL; the length is before it."""
BEGIN: Final = "start transaction;\n"
"""What stands before several statements that travel together."""


class _MySQLSession(_Session):
    """The server speaks first, and answers every command."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_due = 0

    def from_client(self, data: bytes) -> Iterator[tuple[bytes, str | None]]:
        whole = int.from_bytes(data[:3], "little") == len(data) - 4
        # One length in 256 begins as the other protocol's Execute does, and would be completed as such.
        if whole and data[3:5] == QUERY and data[:1] != b"E":
            self.answers_due = self.answers_seen + 1
            yield data, data[5:].decode("utf-8", "replace").removeprefix(BEGIN)
        else:
            yield data, None

    def from_server(self, data: bytes) -> None:
        self.answers_seen += 1


class _MySQLConnection(_Connection):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._session = _MySQLSession()


class MySQLProxy(FaultProxy):
    """``on_commit`` and ``on_statement`` see the texts that a client sends, several at once as one."""

    @classmethod
    def before(cls, url: str) -> Self:
        parts = urlsplit(url)
        return cls(parts.hostname or LOOPBACK, parts.port or 3306)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._accepted += 1
        self._connections[task] = connection = _MySQLConnection(self, reader, writer)
        try:
            await connection.run(*self._target)
        finally:
            del self._connections[task]
