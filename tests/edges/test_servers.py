"""Behind real servers: uvicorn and gunicorn, over sockets, with clients that leave (X9) and flood (T6)."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lab.processes import ServedApp, children_of, serve_asgi, serve_wsgi, wait_until

ROOT = Path(__file__).parents[2]
MEGABYTE = 1024 * 1024


class Server:
    """A running server and what its handlers wrote down."""

    def __init__(self, kind: str, folder: Path) -> None:
        env = {"SAMEKEY_TEST_FOLDER": str(folder)}
        self.kind = kind
        self.folder = folder
        self.app: ServedApp = (
            serve_asgi("tests.edges.served:asgi_app", env, directory=ROOT)
            if kind == "uvicorn"
            else serve_wsgi("tests.edges.served:wsgi_app", env, directory=ROOT)
        )
        self.client = httpx2.Client(base_url=self.app.url, timeout=20)

    def post(self, path: str, key: str | None, **options: Any) -> httpx2.Response:
        headers = [("x-tenant", "ann"), *([("idempotency-key", key)] if key is not None else [])]
        headers += options.pop("headers", [])
        options.setdefault("content", b'{"amount": 1}')
        return self.client.post(path, headers=headers, **options)

    def runs(self, name: str) -> int:
        path = self.folder / f"{name}.runs"
        return path.stat().st_size if path.exists() else 0

    def let_go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def states(self, key: str) -> list[str]:
        connection = sqlite3.connect(self.folder / "served.db", timeout=10)
        try:
            rows = connection.execute("select state from samekey_keys where key = ?", (key,)).fetchall()
        finally:
            connection.close()
        return [str(state) for (state,) in rows]

    def open(self, path: str, key: str, *more: str) -> socket.socket:
        """The head of a request on a socket of its own."""
        connection = socket.create_connection(("127.0.0.1", self.app.port), timeout=20)
        lines = [f"POST {path} HTTP/1.1", "Host: test", "X-Tenant: ann", f"Idempotency-Key: {key}", *more]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection

    def stopping(self) -> bool:
        """Whether it has heard that it must stop, by its own words."""
        output = self.app.output()
        return "Shutting down" in output or "Handling signal: term" in output

    @property
    def worker(self) -> int:
        """The process that runs the application."""
        return self.app.pid if self.kind == "uvicorn" else children_of(self.app.pid)[0]

    def close(self) -> None:
        self.client.close()
        self.app.stop()


@pytest.fixture(scope="module", params=["uvicorn", "gunicorn"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(request.param, tmp_path_factory.mktemp(request.param))
    yield found
    found.close()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.mark.parametrize("route", ["pay", "atomic", "free"])
def test_once_and_again(server: Server, name: str, route: str) -> None:
    first, again = (server.post(f"/{route}/{name}", name) for _ in range(2))
    assert first.status_code == 200 and first.json()["run"] == 1
    assert again.headers["idempotent-replayed"] == "true" and again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert len(again.headers.get_list("date")) <= 1
    assert server.post(f"/{route}/{name}", f'"{name}"').headers["idempotent-replayed"] == "true"
    other = server.post(f"/{route}/{name}", name, content=b"{}")
    assert (other.status_code, other.json()["code"]) == (422, "reused")
    assert server.runs(name) == 1


@pytest.mark.parametrize("route", ["pay", "atomic", "free"])
def test_a_request_that_is_made_anew_on_its_way(server: Server, name: str, route: str) -> None:
    first, again = (server.post(f"/v1/{route}/{name}", name) for _ in range(2))
    assert first.status_code == 200 and first.json()["run"] == 1
    assert again.headers["idempotent-replayed"] == "true" and again.content == first.content
    assert server.runs(name) == 1


@pytest.mark.parametrize("route", ["pay", "atomic", "free"])
def test_a_request_that_is_made_anew_at_another_path(server: Server, name: str, route: str) -> None:
    """Nothing shows that it is the request whose key waits: nothing runs, and no key is burnt."""
    closes = [("Connection", "close")]  # uvicorn does, where an application has failed
    got = [server.post(f"/v2/{route}/{name}", name, headers=closes).status_code for _ in range(2)]
    assert got == [500, 500] and (server.runs(name), server.states(name)) == (0, [])


def test_refusals(server: Server, name: str) -> None:
    for key in (None, "a,b", "", "x" * 300, '"open'):
        got = server.post(f"/pay/{name}", key)
        assert got.status_code == 400, key
        assert got.headers["content-type"] == "application/problem+json"
    twice = server.post(f"/pay/{name}", name, headers=[("Idempotency-Key", name)])
    assert (twice.status_code, twice.json()["code"]) == (400, "malformed")
    assert server.post(f"/nothing/{name}", name).status_code == 404
    assert server.client.get(f"/pay/{name}").status_code == 405
    assert (server.runs(name), server.states(name)) == (0, [])


def test_a_chunked_body(server: Server, name: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"amount"'
        yield b": 1}"

    first = server.post(f"/pay/{name}", name, content=chunks())
    assert first.json() == {"run": 1, "length": 13}
    assert server.post(f"/pay/{name}", name).headers["idempotent-replayed"] == "true"


def test_the_status_resource_over_one_connection(server: Server, name: str) -> None:
    server.post(f"/pay/{name}", name)
    retry = server.post(f"/pay/{name}", name, content=b"{}")
    assert retry.status_code == 422
    connection = sqlite3.connect(server.folder / "served.db")
    (operation,) = connection.execute("select id from samekey_keys where key = ?", (name,)).fetchone()
    connection.close()
    for _ in range(2):  # a body after HEAD would be taken for the next answer
        head = server.client.head(f"/idempotency/{operation}", headers={"x-tenant": "ann"})
        got = server.client.get(f"/idempotency/{operation}", headers={"x-tenant": "ann"})
        assert head.status_code == got.status_code == 200 and head.content == b""
        assert json.loads(got.json()["answer"]["body"])["run"] == 1
        assert server.client.get(f"/idempotency/{operation}", headers={"x-tenant": "bob"}).status_code == 404


def test_a_client_that_leaves_during_the_handler(server: Server, name: str) -> None:
    with server.open(f"/slow/{name}", name, "Content-Length: 13") as connection:
        connection.sendall(b'{"amount": 1}')
        wait_until(lambda: server.runs(name) == 1)
    in_progress = server.post(f"/slow/{name}", name)
    assert (in_progress.status_code, in_progress.json()["code"]) == (409, "in_progress")
    server.let_go(name)
    wait_until(lambda: server.states(name) == ["completed"])
    retry = server.post(f"/slow/{name}", name)
    assert retry.headers["idempotent-replayed"] == "true" and retry.json() == {"run": 1}
    assert server.runs(name) == 1


def test_a_client_that_leaves_during_the_body(server: Server, name: str) -> None:
    with server.open(f"/pay/{name}", name, "Content-Length: 13") as connection:
        connection.sendall(b'{"amount"')
    with server.open(f"/pay/{name}", name, "Transfer-Encoding: chunked") as connection:
        connection.sendall(b'9\r\n{"amount"\r\n')
    # The same server has since answered others.
    assert server.post(f"/free/{name}", f"{name}-free").status_code == 200
    assert (server.runs(name), server.states(name)) == (1, [])
    assert server.post(f"/pay/{name}", name).json() == {"run": 2, "length": 13}


def _memory(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' procfs")
@pytest.mark.parametrize("how", ["Content-Length: 104857600", "Transfer-Encoding: chunked"])
def test_a_hundred_megabytes_are_refused_with_memory_flat(server: Server, name: str, how: str) -> None:
    server.post(f"/pay/{name}", f"{name}-warm", content=b"x" * 1000)
    pid = server.worker
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the highest mark so far
    before = _memory(pid, "VmRSS")
    sent, answer = 0, b""
    chunk = b"x" * 65536
    framed = b"10000\r\n" + chunk + b"\r\n" if how.startswith("Transfer") else chunk
    with server.open(f"/pay/{name}", name, how) as connection:
        connection.settimeout(10)
        try:
            while sent < 100 * MEGABYTE:
                connection.sendall(framed)
                sent += len(chunk)
                answer = answer or _waiting(connection)
            answer = answer or connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            # The server has had enough. Of what is announced that is before it has read any, and a reset may
            # take its answer away: it must be there for the head alone, below.
            assert sent >= MEGABYTE or answer or how.startswith("Content-Length")
    growth = _memory(pid, "VmHWM") - before
    assert growth < 20, f"{growth:.0f} MB more for a body that was refused"
    assert not answer or b" 413 " in answer.split(b"\r\n", 1)[0], answer
    if how.startswith("Content-Length"):
        with server.open(f"/pay/{name}", name, how) as connection:
            connection.settimeout(10)
            assert b" 413 " in connection.recv(65536).split(b"\r\n", 1)[0]
    assert (server.runs(name), server.states(name)) == (1, []), "only the request that warmed up has run"
    small = server.post(f"/pay/{name}", name)
    assert small.status_code == 200, "the key is as free as before"


def _waiting(connection: socket.socket) -> bytes:
    """What has come in so far, without waiting for it."""
    connection.setblocking(False)
    try:
        return connection.recv(65536)
    except BlockingIOError:
        return b""
    finally:
        connection.settimeout(10)


@pytest.mark.parametrize("kind", ["uvicorn", "gunicorn"])
def test_shutdown_lets_a_handler_finish(kind: str, tmp_path: Path, name: str) -> None:
    """Its client is gone, the server is told to stop, and still the outcome is recorded."""
    server = Server(kind, tmp_path)
    try:
        with server.open(f"/slow/{name}", name, "Content-Length: 2") as connection:
            connection.sendall(b"{}")
            wait_until(lambda: server.runs(name) == 1)
        stopping = threading.Thread(target=server.app.stop)
        stopping.start()
        wait_until(server.stopping)
        server.let_go(name)
        stopping.join(20)
        assert not stopping.is_alive()
        assert server.states(name) == ["completed"]
    finally:
        server.close()
