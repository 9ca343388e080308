"""The example of the documentation, as its readers would run it: a server, a worker, and kill -9."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlparse

import httpx2
import pytest

from lab.processes import GuardedProcess, serve_asgi, wait_until
from tests.chosen import whole

ROOT = Path(__file__).parent.parent.parent
RIDE = {"pick_up": "Bern", "drop_off": "Thun", "card": "4242"}
HEADERS = {"Authorization": "Bearer demo", "Idempotency-Key": '"ride-1"'}


class CardProvider:
    """The API that the example's client expects, with a ledger."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.next: deque[str] = deque()
        self.hanging, self.release = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def _handler(provider: Self) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                todo = provider.next.popleft() if provider.next else "charge"
                if todo == "decline":
                    return self._answer(402, {"reason": "stolen"})
                if todo == "busy":
                    return self._answer(429, {})
                key = self.headers["idempotency-key"]
                if key not in provider.ledger:
                    provider.ledger.append(key)
                if todo == "hang":
                    provider.hanging.set()
                    provider.release.wait(30)
                return self._answer(201, {"id": f"ch_{provider.ledger.index(key) + 1}"})

            def do_GET(self) -> None:
                (key,) = parse_qs(urlparse(self.path).query)["key"]
                known = key in provider.ledger
                self._answer(200 if known else 404, {"id": "ch_1"} if known else {})

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def provider() -> Iterator[CardProvider]:
    made = CardProvider()
    yield made
    made.close()


@pytest.fixture
def environment(tmp_path: Path, provider: CardProvider) -> dict[str, str]:
    return {"RIDES_DATABASE": str(tmp_path / "rides.db"), "RIDES_PROVIDER": provider.url}


def rows(environment: dict[str, str], table: str) -> list[Any]:
    with closing(sqlite3.connect(environment["RIDES_DATABASE"])) as connection:
        return connection.execute(f"select * from {table}").fetchall()


def post(url: str, key: str = "ride-1") -> httpx2.Response:
    return httpx2.post(f"{url}/rides", json=RIDE, headers={**HEADERS, "Idempotency-Key": key}, timeout=30)


def post_in_vain(url: str, key: str) -> None:
    with pytest.raises(httpx2.HTTPError):
        post(url, key)


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[None]:
    process = GuardedProcess(
        [
            *(sys.executable, "-m", "samekey.cli", "worker", "examples.rides:idempotency"),
            *("--completer-interval", "0.1"),
        ],
        log=log,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    try:
        yield
    finally:
        assert process.end() == 0, process.output()


@whole
def test_the_example(provider: CardProvider, environment: dict[str, str], tmp_path: Path) -> None:
    with serve_asgi("examples.rides:app", environment, directory=ROOT) as server:
        first, again = post(server.url), post(server.url)
        assert (first.status_code, first.json()) == (201, {"ride": 1, "charge": "ch_1", "cents": 2500})
        assert again.content == first.content and again.headers["Idempotent-Replayed"] == "true"
        # A declined card is a final answer, and leaves no ride behind.
        provider.next.append("decline")
        assert [post(server.url, "ride-2").status_code for _ in range(2)] == [402, 402]
        # A busy provider did nothing; the same key goes on.
        provider.next.append("busy")
        assert post(server.url, "ride-3").status_code == 503
        wait_until(lambda: post(server.url, "ride-3").status_code == 201)
        assert len(rows(environment, "rides")) == len(rows(environment, "receipts")) == 2
        # The server dies while the provider charges.
        provider.next.append("hang")
        lost = threading.Thread(target=post_in_vain, args=(server.url, "ride-4"))
        lost.start()
        assert provider.hanging.wait(10)
        server.kill9()
        lost.join()
    assert len(provider.ledger) == 3 and len(rows(environment, "receipts")) == 2
    # Nobody asks again. A worker with no web application finishes it, once its lease has run out.
    with closing(sqlite3.connect(environment["RIDES_DATABASE"])) as connection, connection:
        connection.execute("update samekey_keys set locked_until = 1 where state = 'in_progress'")
    with worker(environment, tmp_path / "worker.log"):
        wait_until(lambda: len(rows(environment, "receipts")) == 3)
    assert len(provider.ledger) == 3, "charged once"
    assert [charge for _, charge in rows(environment, "receipts")] == ["ch_1", "ch_2", "ch_3"]
    assert rows(environment, "samekey_inputs") == rows(environment, "samekey_phases") == []
