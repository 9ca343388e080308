"""HTTP/1.1 over plain sockets: a probe sends what no client library would, and leaves when it likes.

One connection for each request. What goes out is exactly the bytes that a :class:`RawRequest` holds: repeated
headers, bytes that are not ASCII, half a body. It knows nothing about idempotency.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import ssl
import struct
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

MAX_ANSWER = 4 * 1024 * 1024
"""Bytes of an answer that are read: more than any answer of an API, and a bound."""


class Unreachable(Exception):
    """No connection, or no TLS on it: the sentence says which."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """What is sent. Header values may be bytes, for what cannot be written in Latin-1."""

    method: str
    url: str
    headers: tuple[tuple[str, str | bytes], ...] = ()
    body: bytes | None = None

    @property
    def key(self) -> str:
        """As it stands in the header; empty without one."""
        found = next((value for name, value in self.headers if name.lower() == "idempotency-key"), "")
        return found if isinstance(found, str) else found.decode("latin-1")

    def head(self) -> bytes:
        """The request line and the headers, with what HTTP itself needs."""
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{self.method} {target} HTTP/1.1".encode("latin-1", "replace")]
        given = {name.lower() for name, _ in self.headers}
        own: list[tuple[str, str | bytes]] = [
            ("Host", parts.netloc.rpartition("@")[2]),
            ("User-Agent", "samekey-check"),
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),  # answers are compared byte by byte
        ]
        if self.body is not None:
            own.append(("Content-Length", str(len(self.body))))
        if parts.username is not None:
            who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            own.append(("Authorization", f"Basic {b64encode(who.encode()).decode()}"))
        own = [(name, value) for name, value in own if name.lower() not in given]
        own.append(("Connection", "close"))
        for name, value in (*own, *self.headers):
            text = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
            lines.append(name.encode("latin-1", "replace") + b": " + text)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def whole(self) -> bytes:
        return self.head() + (self.body or b"")


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What came back."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for found, value in self.headers if found.lower() == wanted), None)

    def every(self, name: str) -> tuple[str, ...]:
        wanted = name.lower()
        return tuple(value for found, value in self.headers if found.lower() == wanted)


@dataclass(frozen=True, slots=True)
class RawExchange:
    """A request and what became of it: an answer, or why there is none."""

    request: RawRequest
    answer: RawAnswer | None
    silence: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """0 where nothing was answered."""
        return 0 if self.answer is None else self.answer.status

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    @property
    def failed(self) -> bool:
        """A 5xx, or the connection was cut without a word."""
        return self.answer is None or self.status >= 500

    @property
    def refused(self) -> bool:
        return 400 <= self.status < 500


def connect(url: str, timeout: float) -> socket.socket:
    """A connection to the URL's server; :class:`Unreachable` says why there is none."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", _port(parts)
    try:
        plain = socket.create_connection((host, port), timeout=timeout)
    except TimeoutError:
        raise Unreachable(f"{host}:{port} did not take a connection within {timeout:g} s.") from None
    except OSError as error:
        raise Unreachable(f"{host}:{port} cannot be reached: {error.strerror or error}.") from None
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme != "https":
        return plain
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        plain.close()
        own = isinstance(error, ssl.SSLCertVerificationError)
        advice = " Is its authority your own? Name its certificate in SSL_CERT_FILE." if own else ""
        raise Unreachable(f"No TLS with {host}:{port}: {error}.{advice}") from None


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(url: str) -> bool:
    """Whether every address of the URL's host is this machine; :class:`Unreachable` if it has none."""
    host = urlsplit(url).hostname or ""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unreachable(f"The host {host!r} has no address.") from None
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


def send(request: RawRequest, timeout: float) -> RawExchange:
    """The whole request, and its answer."""
    began = time.monotonic()
    link = connect(request.url, timeout)
    with link:
        try:
            link.sendall(request.whole())
        except OSError:
            pass  # it may have answered before it read everything
        return read(link, request, began, began + timeout)


class _Until(io.RawIOBase):
    """What comes on a connection up to a moment: a time-out of its own for each part bounds nothing."""

    def __init__(self, link: socket.socket, end: float) -> None:
        self._link = link
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._link.settimeout(left)
        return self._link.recv_into(buffer)


class _Source:
    """One buffer for all answers on a connection: what follows an interim answer is not lost."""

    def __init__(self, link: socket.socket, end: float) -> None:
        self._buffer = io.BufferedReader(_Until(link, end))

    def makefile(self, mode: str) -> io.BufferedReader[_Until]:
        return self._buffer


def read(link: socket.socket, request: RawRequest, began: float, end: float) -> RawExchange:
    """The answer to a request that was sent on this connection, if all of it is there before the end."""
    source = _Source(link, end)
    interim: list[http.client.HTTPResponse] = []  # one that is let go closes the buffer
    try:
        # HEAD and the like are never sent, so the method only matters for whether there is a body.
        while True:
            response = http.client.HTTPResponse(source, method=request.method)  # type: ignore[arg-type]
            response.begin()
            if response.status >= 200:
                break
            interim.append(response)
        body = response.read(MAX_ANSWER)
    except TimeoutError:
        return RawExchange(request, None, "no answer in time", time.monotonic() - began)
    except (OSError, http.client.HTTPException, ValueError) as error:
        told = str(error) or type(error).__name__
        return RawExchange(
            request, None, f"the connection ended without an answer ({told})", time.monotonic() - began
        )
    headers = tuple((name, str(value)) for name, value in response.headers.items())
    answer = RawAnswer(response.status, response.reason or "", headers, _decoded(body, response))
    return RawExchange(request, answer, seconds=time.monotonic() - began)


def _decoded(body: bytes, response: http.client.HTTPResponse) -> bytes:
    """What a compressed body says: two of them may be written differently. As it is, if it is none."""
    if (response.headers.get("content-encoding") or "").strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, MAX_ANSWER)
    except zlib.error:
        return body


def leave(request: RawRequest, timeout: float, pause: float) -> None:
    """Sends all of it, and resets the connection after a pause, without reading: the answer finds nobody."""
    link = connect(request.url, timeout)
    try:
        link.sendall(request.whole())
        time.sleep(pause)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    finally:
        link.close()


def leave_half_way(request: RawRequest, timeout: float) -> None:
    """Sends the headers and half of the body, and closes."""
    link = connect(request.url, timeout)
    try:
        body = request.body or b""
        link.sendall(request.head() + body[: len(body) // 2])
    except OSError:
        pass
    finally:
        link.close()


def beside_half(half: RawRequest, request: RawRequest, timeout: float) -> RawExchange:
    """The request, sent while another one has come only half-way: whoever serves one at a time is silent."""
    link = connect(half.url, timeout)
    with link:
        try:
            link.sendall(half.whole()[: len(half.whole()) - len(half.body or b"") // 2 - 1])
        except OSError:
            pass
        return send(request, timeout)


def together(requests: Sequence[RawRequest], timeout: float) -> list[RawExchange]:
    """All at the same moment: everything but the last byte is sent first, then the last byte of each."""
    links: list[socket.socket | None] = []
    for request in requests:
        try:
            link = connect(request.url, timeout)
            link.sendall(request.whole()[:-1])
            links.append(link)
        except (Unreachable, OSError):
            links.append(None)
    answers: list[RawExchange | None] = [None] * len(requests)
    start = threading.Barrier(sum(link is not None for link in links) or 1)

    def one(place: int, link: socket.socket, request: RawRequest) -> None:
        with link:
            start.wait()
            began = time.monotonic()
            try:
                link.sendall(request.whole()[-1:])
            except OSError:
                pass
            answers[place] = read(link, request, began, began + timeout)

    threads = _started(
        [
            lambda place=place, link=link, request=request: one(place, link, request)  # type: ignore[misc]
            for place, (link, request) in enumerate(zip(links, requests, strict=True))
            if link is not None
        ]
    )
    for thread in threads:
        thread.join()
    return [
        answer if answer is not None else RawExchange(request, None, "no connection")
        for answer, request in zip(answers, requests, strict=True)
    ]


def _started(tasks: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    return threads
