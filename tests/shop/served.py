"""A shop as it is started by hand, and a client that knows nothing but its requests and answers."""

from __future__ import annotations

import json
import socket
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Self

import httpx2

from lab import environment
from lab.processes import LOOPBACK, GuardedProcess, free_port, wait_until

ORDER = {"sku": "tea", "quantity": 2}
"""What is ordered where it does not matter."""


class Shop:
    """``python -m examples.shop`` in processes of its own: so many of them at each start."""

    def __init__(
        self, name: str, url: str, processes: Sequence[int], directory: Path, server: str | None = None
    ) -> None:
        self.name, self.url, self._processes = name, url, chain(processes, repeat(processes[-1]))
        self._server = () if server is None else ("--server", server)
        self.port = free_port()
        self._log = directory / f"{name}-{self.port}.log"
        self.client = httpx2.Client(base_url=f"http://{LOOPBACK}:{self.port}", timeout=30)
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        options = ("--port", str(self.port), "--url", self.url, "--workers", str(next(self._processes)))
        command = [sys.executable, "-m", "examples.shop", self.name, *options, *self._server]
        self._process = GuardedProcess(command, log=self._log, env=environment())
        wait_until(lambda: not self._process.running or self._answers(), timeout=60)
        assert self._process.running, self._process.output()

    def _answers(self) -> bool:
        try:
            return self.client.get("/orders").status_code == 401
        except httpx2.TransportError:
            return False

    def kill9(self) -> None:
        """Every process of it, in the middle of whatever they do."""
        self._process.kill9()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.client.close()
        self._process.end(grace=10)
        if kind is not None:
            print(self._process.output())


class Customer:
    """One account, of whom nobody has heard before."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.token = uuid.uuid4().hex

    def headers(self, key: str | None) -> dict[str, str]:
        known = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return known if key is None else {**known, "Idempotency-Key": key}

    def post(
        self, path: str, key: str | None, order: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """``order`` may be bytes, to send what is no JSON."""
        body = order if isinstance(order, bytes) else json.dumps(order or ORDER).encode()
        # No connection is used twice: whichever server process is free may answer.
        sent = {**self.headers(key), "Connection": "close"} if headers is None else dict(headers)
        return self.shop.client.post(path, content=body, headers=sent)

    def at_once(self, count: int, path: str, key: str) -> list[httpx2.Response]:
        """The same request, so often, let go by a barrier."""
        barrier = threading.Barrier(count)

        def send() -> httpx2.Response:
            barrier.wait(30)
            return self.post(path, key)

        with ThreadPoolExecutor(count) as threads:
            return [sent.result() for sent in [threads.submit(send) for _ in range(count)]]

    def until_it_is_done(self, path: str, key: str, order: Any = None) -> httpx2.Response:
        """Retries as a client does: while it is told that the first request still runs."""

        def done() -> httpx2.Response | None:
            answer = self.post(path, key, order)
            return None if answer.status_code == 409 and code_of(answer) == "in_progress" else answer

        found = wait_until(done, timeout=60, interval=0.1)
        assert found is not None
        return found

    def kill_the_shop_during(self, path: str, key: str) -> bool:
        """Sends a request twice at once. Whoever is told that the other one runs has the shop killed, and
        started again. False: they came one after the other, or it had been answered by then."""
        sent = [self.in_background(path, key) for _ in range(2)]
        told, others = wait(sent, timeout=60, return_when=FIRST_COMPLETED)
        if not others or any(code_of(one.result()) != "in_progress" for one in told):
            wait(sent, timeout=60)
            return False
        self.shop.kill9()
        killed = all(one.exception(timeout=60) is not None for one in others)
        self.shop.start()
        return killed

    def leave(self, path: str, key: str) -> None:
        """Sends a request and goes away without its answer."""
        body = json.dumps(ORDER).encode()
        lines = {**self.headers(key), "Host": LOOPBACK, "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with socket.create_connection((LOOPBACK, self.shop.port), timeout=10) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def in_background(self, path: str, key: str) -> Future[httpx2.Response]:
        """A request whose answer is not waited for here."""
        thread = ThreadPoolExecutor(1)
        try:
            return thread.submit(self.post, path, key)
        finally:
            thread.shutdown(wait=False)

    def orders(self) -> list[dict[str, Any]]:
        answer = self.shop.client.get("/orders", headers=self.headers(None))
        assert answer.status_code == 200, answer.text
        listed: list[dict[str, Any]] = answer.json()
        return listed


def code_of(answer: httpx2.Response) -> object:
    """What samekey calls the reason; None where the answer is not samekey's."""
    is_problem = answer.headers["content-type"].startswith("application/problem+json")
    return answer.json()["code"] if is_problem else None


def is_replay(answer: httpx2.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"
