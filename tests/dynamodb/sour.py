"""A server in front of DynamoDB that spoils chosen requests: it refuses, hangs, or loses the answer."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

REFUSALS = "com.amazonaws.dynamodb.v20120810#"


@dataclass(frozen=True)
class Refuse:
    """Answers with this error; nothing is done."""

    code: str
    said: str = ""
    status: int = 400


@dataclass(frozen=True)
class Lose:
    """Has it done, and then breaks off, or answers that something went wrong."""

    status: int | None = None


@dataclass(frozen=True)
class Date:
    """Has it done, and dates the answer."""

    date: str | None


@dataclass(frozen=True)
class Hang:
    """Says nothing until the test is over."""


Spoil = Refuse | Lose | Date | Hang


@dataclass
class Sour:
    """``spoils`` are for the next requests, one each; then everything is passed on as it is."""

    endpoint: str
    spoils: deque[Spoil] = field(default_factory=deque)
    always: Spoil | None = None
    asked: list[str] = field(default_factory=list)
    """The operations that were asked for."""
    over: threading.Event = field(default_factory=threading.Event)

    def next(self) -> Spoil | None:
        return self.spoils.popleft() if self.spoils else self.always

    def url(self, url: str) -> str:
        """The URL of the same table behind this server."""
        return f"{url.partition('?')[0]}?endpoint={self.endpoint}"


@contextlib.contextmanager
def sour(endpoint: str) -> Iterator[Sour]:
    """In front of the server at ``endpoint``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    spoiler = Sour(f"http://127.0.0.1:{server.server_address[1]}")
    server.daemon_threads = True
    server.spoiler, server.behind = spoiler, urlsplit(endpoint).netloc  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield spoiler
    finally:
        spoiler.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        spoiler: Sour = self.server.spoiler
        body = self.rfile.read(int(self.headers["content-length"]))
        spoiler.asked.append(self.headers["x-amz-target"].partition(".")[2])
        match spoiler.next():
            case Refuse(code, said, status):
                refusal = json.dumps({"__type": REFUSALS + code, "message": said}).encode()
                self._answer(status, refusal, self.date_time_string())
            case Lose(None):
                self._pass_on(body)
                self.close_connection = True
            case Lose(status):
                self._pass_on(body)
                self._answer(status or 500, b"{}", self.date_time_string())
            case Date(date):
                status, answer = self._pass_on(body)
                self._answer(status, answer, date)
            case Hang():
                spoiler.over.wait(60)
                self.close_connection = True
            case None:
                status, answer = self._pass_on(body)
                self._answer(status, answer, self.date_time_string())

    def _pass_on(self, body: bytes) -> tuple[int, bytes]:
        with contextlib.closing(HTTPConnection(self.server.behind, timeout=60)) as behind:
            behind.request("POST", self.path, body, dict(self.headers.items()))
            answer = behind.getresponse()
            return answer.status, answer.read()

    def _answer(self, status: int, body: bytes, date: str | None) -> None:
        self.send_response_only(status)
        if date is not None:
            self.send_header("Date", date)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""
