"""Bodies of requests on their way to the application, kept as they pass.

A claim needs the whole body, but whether somebody will claim is known no earlier than when it happens. So the
application reads from the server as ever, and what it has read is remembered, up to the largest body that any
handler takes. The claim reads the rest, and the application gets that as well, in its order.
"""

from __future__ import annotations

import asyncio
import io
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from ..core.policy import Policy
from ..core.problem import Refusal
from ..errors import ConfigurationError
from .guards import exceeds, too_large
from .messages import Message, Receive, Scope, from_outside

_SENT: Final = "samekey.body"
"""The key in the scope under which it stands what was sent so far: one request may meet several guards, one
after the other."""
_CHUNK: Final = 64 * 1024
_BROKE_OFF: Final = Refusal(400, "The body broke off before its end. Nothing was done.")
_TOO_SLOW: Final = Refusal(408, "The body did not come in time. Nothing was done.")
_IN_THE_LOOP: Final = (
    "A sync guarded function was called in the event loop before the body of its request was there, and "
    "waiting for it would block the loop: nothing was run. Declare the function with async def, or read the "
    "body first (await request.body())."
)


class _Sent:
    """What a client has sent so far, for everybody who reads it from the same source."""

    def __init__(self, source: Receive, most: int) -> None:
        # It stands in the scope, which the source most often knows: holding each other, they would wait for
        # the garbage collector.
        self._source: Callable[[], Receive | None]
        try:
            self._source = weakref.ref(source)
        except TypeError:
            self._source = lambda: source  # not every object can be referred to
        self._most = most
        self._lock = asyncio.Lock()
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_whole = False
        self.client_left = False

    @property
    def passes(self) -> bool:
        """Whether there is nothing more to remember: it is whole, or larger than any handler takes."""
        return self.is_whole or self.size > self._most

    def is_from(self, source: Receive) -> bool:
        return self._source() is source

    async def more(self, known: int, receive: Receive) -> None:
        """Waits until there are more pieces than are known, or there will be none."""
        async with self._lock:
            if len(self.pieces) > known or self.client_left or self.passes:
                return
            message = await receive()
            if message["type"] == "http.disconnect":
                self.client_left = True
            else:
                self.pieces.append(bytes(message.get("body", b"")))
                self.size += len(self.pieces[-1])
                self.is_whole = not message.get("more_body", False)


class AsgiBody:
    """The body of one request, as one guard hands it on."""

    def __init__(self, scope: Scope, receive: Receive, most: int) -> None:
        sent = scope.get(_SENT)
        if not isinstance(sent, _Sent) or not sent.is_from(receive) or sent.size > most:
            sent = scope[_SENT] = _Sent(receive, most)
        self._sent = sent
        self._source = receive
        self._more = from_outside(receive)
        self._given = 0
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        self._lengths = [value for name, value in headers if name == b"content-length" and value.isdigit()]
        self._announced = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
        self._home = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> Message:
        """The next message, for the application."""
        sent = self._sent
        while True:
            if self._given < len(sent.pieces):
                # Once a claim has read it whole, the rest comes in one piece.
                end = len(sent.pieces) if sent.is_whole else self._given + 1
                piece = b"".join(sent.pieces[self._given : end])
                self._given = end
                return {"type": "http.request", "body": piece, "more_body": not sent.is_whole}
            if sent.client_left:
                return {"type": "http.disconnect"}
            if sent.passes:
                return await self._more()
            await sent.more(self._given, self._more)

    def is_larger(self, limit: int) -> bool:
        """Whether it is too large by what its client says."""
        return any(exceeds(value, limit) for value in self._lengths)

    async def whole_async(self, policy: Policy) -> bytes | Refusal | None:
        """Reads what is missing, as long as a client may take for it."""
        sent, limit = self._sent, policy.max_body
        try:
            async with asyncio.timeout(policy.body_timeout.total_seconds()):
                while not self._is_settled(limit):
                    await sent.more(len(sent.pieces), self._more)
        except TimeoutError:
            return _TOO_SLOW
        return self._result(limit)

    def whole(self, policy: Policy) -> bytes | Refusal | None:
        """For a sync handler, which runs in a thread while the loop waits for it."""
        if self._is_settled(policy.max_body):
            return self._result(policy.max_body)
        if threading.get_ident() == self._home:
            raise ConfigurationError(_IN_THE_LOOP)
        return asyncio.run_coroutine_threadsafe(self.whole_async(policy), self._loop).result()

    def _is_settled(self, limit: int) -> bool:
        sent = self._sent
        return sent.passes or sent.client_left or sent.size > limit or self.is_larger(limit)

    def _result(self, limit: int) -> bytes | Refusal | None:
        sent = self._sent
        if sent.size > limit or self.is_larger(limit):
            return too_large(limit)
        if not sent.is_whole:
            return _BROKE_OFF
        return b"".join(sent.pieces) if sent.size or self._announced else None


class WsgiBody(io.BufferedIOBase):
    """``wsgi.input`` in the place of the server's own."""

    def __init__(self, environ: dict[str, Any], most: int) -> None:
        self._environ = environ
        self._source: Any = environ["wsgi.input"]
        self._most = most
        self._kept = bytearray()
        self._given = 0
        self._size = 0
        self._is_whole = False
        length = environ.get("CONTENT_LENGTH") or ""
        self._length = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None

    @staticmethod
    def of(environ: dict[str, Any], most: int) -> WsgiBody:
        """The body of a request; from its beginning, also where somebody outside has sent it in before."""
        body = environ.get("wsgi.input")
        if not isinstance(body, WsgiBody) or not body._keeps:
            body = environ["wsgi.input"] = WsgiBody(environ, most)
        body._environ, body._given = environ, 0
        return body

    @property
    def _keeps(self) -> bool:
        return self._size <= self._most

    # What the application reads

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = -1 if size is None else size
        found = self._take(wanted)
        while (wanted < 0 or len(found) < wanted) and not self._is_whole:
            more = self._pull(self._source.read, wanted - len(found) if wanted >= 0 else -1)
            found += more
            if not more or self._length is None:
                break  # a source that has no known end is asked once for each time that we are
        return found

    def read1(self, size: int = -1, /) -> bytes:
        return self._take(size) or self.read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        wanted = -1 if size is None else size
        end = self._kept.find(b"\n", self._given) + 1
        found = self._take(wanted if end == 0 else min(end - self._given, wanted if wanted >= 0 else end))
        if found.endswith(b"\n") or self._is_whole or len(found) == wanted:
            return found
        return found + self._pull(self._source.readline, wanted - len(found) if wanted >= 0 else -1)

    def _take(self, size: int) -> bytes:
        """What is remembered and was not given yet."""
        end = len(self._kept) if size < 0 else self._given + size
        found = bytes(self._kept[self._given : end])
        self._given += len(found)
        return found

    def _pull(self, read: Callable[..., bytes], size: int) -> bytes:
        """More from the server, which is given at once."""
        found = self._receive(read, size)
        self._given = len(self._kept)
        return found

    def _receive(self, read: Callable[..., bytes], size: int) -> bytes:
        left = None if self._length is None else self._length - self._size
        if left is not None:
            size = left if size < 0 else min(size, left)
        found = b"" if size == 0 else (read() if size < 0 else read(size))
        self._size += len(found)
        self._is_whole = (not found and size != 0) or self._size == self._length
        if self._keeps:
            self._kept += found
        else:  # larger than any handler takes: it passes
            self._kept.clear()
        return found

    # What a claim reads

    async def whole_async(self, policy: Policy) -> bytes | Refusal | None:
        """For an async view, whose loop is its own."""
        return self.whole(policy)

    def is_larger(self, limit: int) -> bool:
        """Whether it is too large by what its client says."""
        length = self._environ.get("CONTENT_LENGTH") or ""
        return length.isascii() and length.isdigit() and exceeds(length, limit)

    def whole(self, policy: Policy) -> bytes | Refusal | None:
        """Reads what is missing. A body that breaks off is never executed."""
        environ, limit = self._environ, policy.max_body
        length = environ.get("CONTENT_LENGTH") or ""
        if self.is_larger(limit):
            return too_large(limit)
        if length and self._length is None:
            return Refusal(400, "Content-Length is not a number. Nothing was done.")
        chunked = environ.get("HTTP_TRANSFER_ENCODING")
        if not length and not environ.get("wsgi.input_terminated"):
            if chunked:
                # The server does not say where the body ends, so it can neither be compared nor handed on.
                detail = "The body's length must be known: send Content-Length. Nothing was done."
                return Refusal(411, detail)
            self._is_whole = True
        # In one piece it would come no earlier than with its last byte, however slowly that is sent.
        read = getattr(self._source, "read1", None) or self._source.read
        until = time.monotonic() + policy.body_timeout.total_seconds()
        try:
            while not self._is_whole and self._size <= limit:
                if time.monotonic() > until:
                    return _TOO_SLOW
                self._receive(read, min(_CHUNK, limit + 1 - self._size))
        except TimeoutError:
            return _TOO_SLOW
        except OSError:
            return _BROKE_OFF
        if self._size > limit:
            return too_large(limit)
        if self._length is not None and self._size < self._length:
            return _BROKE_OFF
        if not self._size and not length and not chunked:
            return None
        if self._given == 0 and self._length is None:
            self._length = self._size
            environ["CONTENT_LENGTH"] = str(self._size)  # for those who want to know it before they read
        return bytes(self._kept)
