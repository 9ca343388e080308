"""Odd requests over connections that are kept, several in flight; what was answered is read as it comes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

WAIT = 30.0
"""Seconds in which an answer comes, on a busy machine too."""


class Sender:
    """One connection to a server on loopback, made anew whenever the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._buffer = b""

    def send(self, requests: list[bytes]) -> Iterator[int]:
        """The status of each answer, in order; 0 where the server closed the connection without one."""
        left = requests
        while left:
            fresh = self._socket is None
            answered = 0
            for status in self._exchange(left):
                yield status
                answered += 1
            left = left[answered:]
            if left:
                # Whatever stood behind the request that the server did not like was not looked at.
                self.close()
                if not answered and fresh:
                    yield 0
                    left = left[1:]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def _exchange(self, requests: list[bytes]) -> Iterator[int]:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=WAIT)
        try:
            self._socket.sendall(b"".join(requests))
        except OSError:
            pass  # it has answered before it had read all of it, and closed
        for _ in requests:
            found = self._answer()
            if found is None:
                return
            yield found[0]
            if found[1]:
                self.close()
                return

    def _answer(self) -> tuple[int, bool] | None:
        """The status of the next answer, and whether it is the last one; None if there is none."""
        while True:
            head = self._until(b"\r\n\r\n")
            if head is None:
                return None
            first, *lines = head.lower().split(b"\r\n")
            status = int(first.split(b" ", 2)[1])
            if status >= 200:
                break
        fields = dict(line.split(b":", 1) for line in lines if b":" in line)
        chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
        if chunked:
            while (size := self._chunk()) > 0:
                pass
            whole = size == 0
        else:
            whole = self._skip(int(fields.get(b"content-length", b"0")))
        told = chunked or b"content-length" in fields or status in (204, 304)
        return status, not (whole and told) or b"close" in fields.get(b"connection", b"")

    def _chunk(self) -> int:
        line = self._until(b"\r\n")
        size = -1 if line is None else int(line.split(b";")[0], 16)
        return size if size >= 0 and self._skip(size + 2) else -1

    def _until(self, end: bytes) -> bytes | None:
        while end not in self._buffer:
            if not self._more():
                return None
        found, self._buffer = self._buffer.split(end, 1)
        return found

    def _skip(self, count: int) -> bool:
        while len(self._buffer) < count:
            if not self._more():
                return False
        self._buffer = self._buffer[count:]
        return True

    def _more(self) -> bool:
        assert self._socket is not None
        try:
            found = self._socket.recv(65536)
        except ConnectionError:
            return False
        self._buffer += found
        return bool(found)
