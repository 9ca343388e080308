"""A server that answers as it is told, request by request, also with half an answer or none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True)
class Say:
    """An answer."""

    status: int = 201
    body: bytes = b'{"done": true}'
    headers: tuple[tuple[str, str], ...] = ()
    cut_body: bool = False
    """Half of the body, and the connection is gone."""


@dataclass(frozen=True)
class Hang:
    """Takes the request, and never answers: until the client gives up."""


@dataclass(frozen=True)
class Cut:
    """Takes the request, and the connection is gone."""


MOST_DROPS = 200


@dataclass(frozen=True)
class Trickle:
    """An answer of which a byte comes now and then, for ten seconds, or until nobody listens."""

    part: Literal["body", "head", "interim answers"] = "body"


def problem(status: int, code: str, **headers: str) -> Say:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    body = json.dumps({"code": code, "title": code}).encode()
    return Say(status, body, (("content-type", "application/problem+json"), *named))


@dataclass
class Seen:
    method: str
    path: str
    key: str | None
    body: bytes
    headers: dict[str, str]


@dataclass
class Scripted:
    """What is said next; the last is repeated."""

    script: list[Say | Cut | Hang | Trickle]
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    port: int = 0
    drops: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    stop: Callable[[], None] = lambda: None
    """Closes the port: new connections are refused."""

    @property
    def keys(self) -> set[str | None]:
        return {one.key for one in self.seen if one.method != "GET"}


@contextmanager
def scripted(*script: Say | Cut | Hang | Trickle) -> Iterator[Scripted]:
    told = Scripted(list(script))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                told.seen.append(Seen(self.command, self.path, headers.get("idempotency-key"), body, headers))
                act = told.script.pop(0) if len(told.script) > 1 else told.script[0]
            if isinstance(act, Hang):
                told.over.wait(30)
            if isinstance(act, Hang | Cut):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if isinstance(act, Trickle):
                self.close_connection = True
                self._trickle(act)
                return
            self.send_response(act.status)
            for name, value in act.headers:
                self.send_header(name, value)
            self.send_header("content-length", str(len(act.body)))
            self.end_headers()
            self.wfile.write(act.body[: len(act.body) // 2] if act.cut_body else act.body)
            if act.cut_body:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def _trickle(self, act: Trickle) -> None:
            if act.part == "body":
                self.send_response(201)
                self.send_header("content-length", "1000")
                self.end_headers()
            elif act.part == "head":
                self.wfile.write(b"HTTP/1.1 201 Created\r\nx-long: ")
            drop = b"HTTP/1.1 100 Continue\r\n\r\n" if act.part == "interim answers" else b"x"
            while told.drops < MOST_DROPS and not told.over.wait(0.05):
                told.drops += 1
                self.wfile.write(drop)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._serve
            raise AttributeError(name)

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    told.url = f"http://127.0.0.1:{told.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    def stop() -> None:
        told.over.set()
        server.shutdown()
        server.server_close()
        thread.join()

    told.stop = stop
    try:
        yield told
    finally:
        stop()
