"""A payment provider for tests: a real HTTP server on loopback with an append-only journal.

What stands in the journal has happened; nothing takes it back, whatever becomes of the caller. With
``deduplicates`` a second charge under one key is the first one; without it, it is a second charge.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from lab.processes import wait_until
from samekey import NOT_FOUND, Effect, NotExecuted


class ProviderFailed(Exception):
    """The provider answered 500: nobody knows what it did."""


class Provider:
    """The provider's side. Leaving the context ends the server."""

    def __init__(self, journal: Path, *, deduplicates: bool = True) -> None:
        self._path = journal
        self._path.touch()
        self.deduplicates = deduplicates
        self.next: deque[str] = deque()
        """What happens to the next charges: ``drop``, ``hang``, ``fail``, ``refuse`` or ``decline``."""
        self.calls = 0
        self.looked_up = 0
        self.arrived = threading.Event()
        """A charge that hangs has been made."""
        self.release = threading.Event()
        """Lets charges that hang be answered."""
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def journal(self, label: str | None = None) -> list[tuple[str, str]]:
        """Every charge that was made, as (key, label), in order."""
        lines = [line.split(" ", 1) for line in self._path.read_text().splitlines()]
        return [(key, what) for key, what in lines if label is None or what == label]

    def charge(self, key: str, label: str) -> dict[str, Any]:
        with self._lock:
            if self.deduplicates and key in self._ids:
                return {"id": self._ids[key]}
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            os.write(file, f"{key} {label}\n".encode())
            os.close(file)
            self._ids[key] = f"ch_{len(self.journal())}"
            return {"id": self._ids[key]}

    def find(self, key: str) -> dict[str, Any] | None:
        with self._lock:
            self.looked_up += 1
            return {"id": self._ids[key]} if key in self._ids else None

    def _handler(provider: Self) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                provider.calls += 1
                todo = provider.next.popleft() if provider.next else "charge"
                if todo == "fail":
                    return self._answer(500, {})
                if todo == "refuse":
                    return self._answer(503, {})
                if todo == "decline":
                    return self._answer(402, {"reason": "stolen"})
                made = provider.charge(self.headers["idempotency-key"], body["label"])
                if todo == "drop":
                    self.close_connection = True
                    return None
                if todo == "hang":
                    provider.arrived.set()
                    provider.release.wait(30)
                return self._answer(201, made)

            def do_GET(self) -> None:
                found = provider.find(self.path.rpartition("/")[2])
                self._answer(404 if found is None else 200, found or {})

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # the client has gone

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ProviderClient:
    """Our side: what a phased operation calls."""

    def __init__(self, url: str) -> None:
        self._url = url

    def charge(self, effect: Effect, label: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._url, timeout=effect.timeout)
        try:
            connection.request(
                "POST", "/charges", json.dumps({"label": label}), {"idempotency-key": effect.key}
            )
            response = connection.getresponse()
            content: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status == 503:
            raise NotExecuted("The provider was too busy to begin.")
        if response.status == 500:
            raise ProviderFailed
        if response.status == 402:
            return {"declined": content["reason"]}
        effect.provider_id = content["id"]
        return content

    def find(self, effect: Effect, _label: str) -> Any:
        connection = http.client.HTTPConnection(self._url, timeout=effect.timeout)
        try:
            connection.request("GET", f"/charges/{effect.key}")
            response = connection.getresponse()
            content: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status == 404:
            return NOT_FOUND
        effect.provider_id = content["id"]
        return content


def wait_for_charges(provider: Provider, count: int) -> None:
    wait_until(lambda: len(provider.journal()) >= count)
