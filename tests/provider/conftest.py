"""A provider in a process of its own, and a server that hears its webhooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples.provider import SIGNATURE, Provider
from lab.processes import LOOPBACK

SECRET = "whsec_test"


@dataclass(frozen=True, slots=True)
class Heard:
    """One delivery."""

    signature: str | None
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Answers the next deliveries with ``statuses``, and all after that with 200."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.heard.append(Heard(self.headers[SIGNATURE], body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}/hooks"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def ids(self) -> list[str]:
        return [heard.event["id"] for heard in list(self.heard)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with Provider.start(tmp_path / "provider") as found:
        yield found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def telling(tmp_path: Path, receiver: Receiver) -> Iterator[Provider]:
    """A provider that sends webhooks to the receiver."""
    with Provider.start(tmp_path / "telling", webhook_url=receiver.url, webhook_secret=SECRET) as found:
        yield found
