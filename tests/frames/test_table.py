"""The one scenario table, through every framework: over real sockets, and with its own test client.

``tests/edges/test_scenarios.py`` drives the same rows raw, in the process. A row that fails here and not
there is about a server, or about what a framework does around its handlers.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient as LitestarClient
from starlette.testclient import TestClient

from lab import ROOT
from lab.processes import LOOPBACK, ServedApp, _serve, serve_asgi, serve_wsgi, wait_until
from tests.chosen import whole
from tests.edges.callers import Got, Request
from tests.edges.scenarios import Ask, Expect
from tests.frames.stage import ROW, WSGI, Stage, rows

SERVED = [
    *(("uvicorn", kind) for kind in ("starlette", "litestar", "django-async")),
    *(("hypercorn", kind) for kind in ("fastapi", "django")),
    *(("gunicorn", kind) for kind in ("flask", "drf")),
]
"""Each framework behind a server that its users take."""


def started(server: str, kind: str, url: str) -> ServedApp:
    env = {"SAMEKEY_STAGE": kind, "SAMEKEY_STAGE_URL": url}
    if server == "uvicorn":
        options = ("--factory", "--lifespan", "off", "--log-level", "critical")
        return serve_asgi("tests.frames.stage:application", env, directory=ROOT, options=options)
    if server == "gunicorn":
        return serve_wsgi("tests.frames.stage:application()", env, directory=ROOT)

    def command(port: int) -> list[str]:
        mode = "wsgi" if kind in WSGI else "asgi"
        return ["hypercorn", f"{mode}:tests.frames.stage:application()", "--bind", f"{LOOPBACK}:{port}"]

    return _serve(command, env, ROOT, None, 60)


class Sockets:
    """One request, one connection: odd bytes get through as they are."""

    def __init__(self, port: int) -> None:
        self._port = port

    def leave(self, name: str, request: Request, after: int | None = None) -> None:
        """Goes away when so much of the body is sent."""
        self.send(name, request, leaves=True, after=after)

    def send(self, name: str, request: Request, *, leaves: bool = False, after: int | None = None) -> Got:
        query = b"?" + request.query if request.query else b""
        lines = [request.method.encode() + b" " + request.path.encode() + query + b" HTTP/1.1"]
        lines += [b"Host: localhost", b"Connection: close", f"{ROW}: {name}".encode()]
        lines += [key + b": " + value for key, value in request.headers]
        lines += [b"Content-Length: %d" % len(request.body)]
        with socket.create_connection((LOOPBACK, self._port), timeout=30) as connection:
            connection.sendall(b"\r\n".join([*lines, b"", b""]) + request.body[:after])
            if leaves:
                return Got()
            answer = http.client.HTTPResponse(connection, method=request.method)
            answer.begin()
            body = answer.read()
            headers = [(key.encode(), value.encode("latin-1")) for key, value in answer.getheaders()]
            return Got(answer.status, headers, body)

    def runs(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.send("0-leased", Request("GET", "/__runs__")).body)
        return found


def refused_by_the_server(got: Got, expect: Expect) -> bool:
    """A server may refuse by itself what no header may hold: before us, and with nothing run."""
    return expect.status == got.status == 400 and got.code is None


Send = Callable[[str, Request], Got]


def play(send: Send, runs: Callable[[], dict[str, int]], names: list[str]) -> None:
    wrong, table = [], rows()
    for name in names:
        scenario, mode = table[name]
        try:
            for ask, expect in scenario.steps:
                got = send(name, ask.request(f"/{mode}", name))
                if not refused_by_the_server(got, expect):
                    expect.check(got)
        except AssertionError as error:
            wrong.append(f"{scenario.name} ({mode}): {str(error)[:400]}")
    ran = runs()
    wrong += [
        f"{table[name][0].name} ({table[name][1]}) ran {ran.get(name)} times"
        for name in names
        if ran.get(name, 0) != table[name][0].runs
    ]
    assert wrong == [], f"{len(wrong)} things are wrong with {len(names)} rows:\n" + "\n".join(wrong)


@whole
@pytest.mark.parametrize(("server", "kind"), SERVED)
def test_over_real_sockets(server: str, kind: str, tmp_path: Path) -> None:
    with started(server, kind, f"sqlite:///{tmp_path / 'served.db'}") as app:
        client = Sockets(app.port)
        play(client.send, client.runs, list(rows()))
        a_half_received_body_is_not_executed(client)
        a_client_that_leaves_stops_nothing(client)
        of_many_at_once_one_runs(client)


PAY = Ask(body=b'{"amount": 100}')


def a_half_received_body_is_not_executed(client: Sockets) -> None:
    request = PAY.request("/leased", "half")
    client.leave("half", request, after=len(request.body) // 2)
    got = client.send("half", request)
    assert (got.status, got.json(), got.replayed) == (201, {"run": 1}, False)


def a_client_that_leaves_stops_nothing(client: Sockets) -> None:
    request = PAY.request("/leased", "left")
    client.leave("left", request)
    found: list[Got] = []

    def answered() -> bool:
        found.append(client.send("left", request))
        assert found[-1].status in (201, 409), found[-1]
        return found[-1].status == 201

    wait_until(answered)
    assert found[-1].json() == {"run": 1} and client.runs()["left"] == 1


def of_many_at_once_one_runs(client: Sockets) -> None:
    request = PAY.request("/atomic", "many")
    with ThreadPoolExecutor(6) as threads:
        got = list(threads.map(lambda _: client.send("many", request), range(6)))
    assert {one.status for one in got} <= {201, 409} and any(one.status == 201 for one in got), got
    assert client.send("many", request).json() == {"run": 1} and client.runs()["many"] == 1


# ------------------------------------------------------------------ frameworks' own test clients


def headers_of(request: Request) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in request.headers}


def url_of(request: Request) -> str:
    return request.path + (f"?{request.query.decode()}" if request.query else "")


def by_httpx(client: Any, request: Request) -> Got:
    """Starlette's client and Litestar's are of one kind."""
    answer = client.request(
        request.method, url_of(request), headers=headers_of(request), content=request.body
    )
    return Got(answer.status_code, list(answer.headers.raw), answer.content)


def by_flask(app: Any, request: Request) -> Got:
    app.testing = app.config["PROPAGATE_EXCEPTIONS"] = False
    answer = app.test_client().open(
        url_of(request), method=request.method, headers=headers_of(request), data=request.body
    )
    return Got(answer.status_code, _encoded(answer.headers.items()), answer.data)


def by_django(client: Any, request: Request) -> Got:
    given = headers_of(request)
    answer = client.generic(
        request.method,
        url_of(request),
        request.body,
        content_type=given.pop("Content-Type", "application/octet-stream"),
        headers=given,
    )
    answer = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    return Got(answer.status_code, _encoded(answer.items()), answer.content)


def _encoded(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


CLIENTS: dict[str, tuple[Callable[..., Any], Callable[[Any, Request], Got]]] = {
    **dict.fromkeys(("starlette", "fastapi"), (TestClient, by_httpx)),
    "litestar": (LitestarClient, by_httpx),
    "flask": (nullcontext, by_flask),
    **dict.fromkeys(("django", "django-async", "drf"), (nullcontext, by_django)),
}


def can_be_sent(ask: Ask) -> bool:
    """Test clients are for what an application may meet, and take no bytes that no header may hold."""
    return len(ask.keys) < 2 and all(re.fullmatch(rb"[!-~]([ -~]*[!-~])?", key) for key in ask.keys)


@whole
@pytest.mark.parametrize("kind", CLIENTS)
def test_with_the_frameworks_own_test_client(kind: str, tmp_path: Path) -> None:
    stage = Stage(kind, f"sqlite:///{tmp_path / 'own.db'}", client=True)
    names = [name for name, (one, _) in rows().items() if all(can_be_sent(ask) for ask, _ in one.steps)]
    assert len(names) > 150

    opens, asks = CLIENTS[kind]
    options = {} if opens is nullcontext else {"raise_server_exceptions": False}
    clients: dict[str, Any] = {}

    def send(name: str, request: Request) -> Got:
        if name not in clients:
            rest.close()  # a row has one client, which starts and stops its application
            clients[name] = rest.enter_context(opens(stage.of(name)[0], **options))
        return asks(clients[name], request)

    with closing(stage), ExitStack() as rest:
        play(send, lambda: json.loads(stage.runs()), names)
