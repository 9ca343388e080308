"""An application of your own, checked in a test: served on loopback by a thread for as long as that takes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..errors import ConfigurationError

START = 30.0
"""Seconds for an application to start."""
STOP = 2
"""Seconds for handlers to end: one that hangs for ever must not keep the test."""


@contextmanager
def serving_asgi(app: Any) -> Iterator[str]:
    """The address of an ASGI application, its lifespan included. Needs uvicorn."""
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise ConfigurationError("An ASGI application is served by uvicorn: pip install uvicorn.") from None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", lifespan="auto", timeout_graceful_shutdown=STOP)
        )

        def run() -> None:
            try:
                server.run(sockets=[listening])
            except SystemExit:
                pass  # how uvicorn says that the application did not start

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        end = time.monotonic() + START
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        if not server.started:
            server.should_exit = True
            raise ConfigurationError("The application did not start; its log says why.")
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STOP + 1)
            server.force_exit = True
            thread.join(STOP)  # a thread of its pool cannot be ended; this one is a daemon


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is a part of the check."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving_wsgi(app: Any) -> Iterator[str]:
    """The address of a WSGI application."""
    with make_server("127.0.0.1", 0, app, server_class=_Server, handler_class=_Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
