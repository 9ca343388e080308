"""A body is read only once its caller is known (T5, T6), for no longer than it may take, and a large one in a
thread: whoever is refused costs nothing."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from samekey import Idempotency, ietf
from samekey.asgi import IdempotencyMiddleware
from samekey.core.fingerprint import Intent
from samekey.engine import engine as engine_module
from samekey.tenants import single_tenant
from samekey.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.edges.callers import Request, call_asgi, call_wsgi, environ_of, http_scope

KEY = ((b"idempotency-key", b"a-key"), (b"content-type", b"application/json"))


def nobody(_: Any) -> str | None:
    return None


def _now() -> bytes:
    return datetime.now(UTC).isoformat().encode()


REFUSED: dict[str, tuple[Callable[[Any], str | None], tuple[tuple[bytes, bytes], ...], int]] = {
    "nobody": (nobody, (*KEY, (b"request-timestamp", _now())), 401),
    "no good key": (single_tenant(), ((b"idempotency-key", b"a,b"),), 400),
    "too old": (single_tenant(), (*KEY, (b"request-timestamp", b"0")), 400),
}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def _wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"done"]


def _status(app: WsgiMiddleware, environ: dict[str, Any]) -> int:
    said: list[str] = []

    def start_response(line: str, _: Any) -> Any:
        said.append(line)

    app(environ, start_response)
    return int(said[0].partition(" ")[0])


def make(**settings: Any) -> Idempotency:
    return Idempotency("sqlite:///:memory:", policy=ietf(max_age=3600, **settings))


@pytest.mark.parametrize("case", REFUSED)
def test_whoever_is_refused_is_not_read_from_at_the_asgi_edge(case: str) -> None:
    tenant, headers, status = REFUSED[case]
    app = IdempotencyMiddleware(_app, idempotency=make(), tenant=tenant, undecorated="guard")
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(http_scope(Request(headers=headers, body=b"{}")), receive, send))
    assert sent[0]["status"] == status


@pytest.mark.parametrize("case", REFUSED)
def test_whoever_is_refused_is_not_read_from_at_the_wsgi_edge(case: str) -> None:
    tenant, headers, status = REFUSED[case]
    app = WsgiMiddleware(_wsgi_app, idempotency=make(), tenant=tenant, undecorated="guard")

    class Unread(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise AssertionError("the body was read")

        read1 = read

    environ = {**environ_of(Request(headers=headers, body=b"{}")), "wsgi.input": Unread()}
    assert _status(app, environ) == status


def test_a_body_that_trickles_is_refused_at_the_wsgi_edge() -> None:
    """Each read gives a byte, and there is no end to them: what counts is how long they take together."""
    app = WsgiMiddleware(
        _wsgi_app, idempotency=make(body_timeout=0.2), tenant=single_tenant(), undecorated="guard"
    )

    class Trickle(io.RawIOBase):
        def read(self, size: int = -1, /) -> bytes:
            threading.Event().wait(0.01)
            return b"x"

    fresh = (*KEY, (b"request-timestamp", _now()))
    environ = {**environ_of(Request(headers=fresh, body=b"x" * 100_000)), "wsgi.input": Trickle()}
    assert _status(app, environ) == 408


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def noted(*given: Any) -> Intent:
        found.append(threading.current_thread().name)
        return Intent(*given)

    monkeypatch.setattr(engine_module, "Intent", noted)
    return found


@pytest.mark.parametrize(
    ("body", "extra", "in_a_thread"),
    [
        (b"{}", (), False),
        (b"x" * 100_000, (), True),
        (b"{}", ((b"content-encoding", b"gzip"),), True),
    ],
)
def test_what_may_take_long_is_read_in_a_thread(
    readers: list[str], body: bytes, extra: tuple[tuple[bytes, bytes], ...], in_a_thread: bool
) -> None:
    request = Request(headers=(*KEY, *extra, (b"request-timestamp", _now())), body=body)
    app = IdempotencyMiddleware(_app, idempotency=make(), tenant=single_tenant(), undecorated="guard")

    async def twice() -> list[int]:
        return [(await call_asgi(app, request)).status for _ in range(2)]

    assert asyncio.run(twice()) == [200, 200]
    assert [name.startswith("samekey-read") for name in readers] == [in_a_thread] * 2
    here = threading.current_thread().name
    wsgi = WsgiMiddleware(_wsgi_app, idempotency=make(), tenant=single_tenant(), undecorated="guard")
    assert call_wsgi(wsgi, request).status == 200
    assert readers[2:] == [here]
