"""The service behind a real server: uvicorn for ASGI, gunicorn for WSGI."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lab.processes import PATIENCE, ServedApp, serve_asgi, serve_wsgi
from tests.fire.apps import Settings
from tests.fire.clients import BODY, Client, Got, HttpClient

BETWEEN_RETRIES = 0.05


def serve(settings: Settings, *, options: Sequence[str] = ()) -> ServedApp:
    """Starts a server, with more options of its own; it is stopped by its context manager."""
    if settings.world == "asgi":
        return serve_asgi("tests.fire.apps:asgi", settings.environment, options=options)
    return serve_wsgi("tests.fire.apps:wsgi", settings.environment, threads=40, options=options)


@contextmanager
def served(settings: Settings, *, options: Sequence[str] = ()) -> Iterator[tuple[ServedApp, HttpClient]]:
    """A server and a client of it."""
    with serve(settings, options=options) as server, HttpClient(server.port) as client:
        yield server, client


def retry_while(
    client: Client, path: str, key: str, *codes: str, body: bytes = BODY, timeout: float = PATIENCE
) -> Got:
    """What a client does: the same request again while it is told to come back later."""
    deadline = time.monotonic() + timeout
    while True:
        got = client.send(path, key, body)
        if got.code not in codes:
            return got
        assert "retry-after" in got.headers
        assert time.monotonic() < deadline, f"{key} is answered {got.code} for ever"
        time.sleep(BETWEEN_RETRIES)
