"""The Prometheus endpoint: for an ASGI or WSGI application, and for a worker, which serves no requests.

    app.mount("/metrics", metrics_app(idempotency))              # Starlette, FastAPI
    server = serve(idempotency, 9464)                            # a worker; server.close() in the end

It shows this process alone. An application that runs as several processes behind one port needs a port for
each, or an OpenTelemetry collector to push to.
"""

from __future__ import annotations

import logging
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import Any, Final, Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..drivers.fork import Lock
from ..drivers.threads import in_a_thread
from ..errors import ConfigurationError
from ..idempotency import Idempotency
from .metrics import MAX_TENANTS, instrument

logger = logging.getLogger("samekey")

ASGIApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]
WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Page = tuple[int, list[tuple[str, str]], bytes]

READ_TIMEOUT: Final = 10.0
"""Seconds that a scraper may take to send its request; a silent one must not hold a thread for ever."""
_REASONS: Final = {200: "200 OK", 405: "405 Method Not Allowed", 500: "500 Internal Server Error"}


def metrics_app(
    idempotency: Idempotency,
    *,
    by_tenant: bool | Literal["digest"] = False,
    max_tenants: int = MAX_TENANTS,
    attributes: Mapping[str, str] | None = None,
) -> ASGIApp:
    """An ASGI application that answers every GET with the metrics. Options as for ``instrument``.

    It is not protected: mount it where only your Prometheus can reach it.
    """
    exposition = _exposition(idempotency, by_tenant, max_tenants, attributes)

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        accepted = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept")
        # In a thread: the gauges may wait for the store a moment, and the event loop must not.
        status, headers, body = await in_a_thread(
            exposition.page, scope["method"], accepted.decode("latin-1")
        )
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app


def metrics_wsgi_app(
    idempotency: Idempotency,
    *,
    by_tenant: bool | Literal["digest"] = False,
    max_tenants: int = MAX_TENANTS,
    attributes: Mapping[str, str] | None = None,
) -> WSGIApp:
    """``metrics_app`` for WSGI."""
    exposition = _exposition(idempotency, by_tenant, max_tenants, attributes)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method = environ.get("REQUEST_METHOD", "GET")
        status, headers, body = exposition.page(method, environ.get("HTTP_ACCEPT", ""))
        start_response(_REASONS[status], headers)
        return [b"" if method == "HEAD" else body]

    return app


def serve(
    idempotency: Idempotency,
    port: int,
    host: str = "127.0.0.1",
    *,
    by_tenant: bool | Literal["digest"] = False,
    max_tenants: int = MAX_TENANTS,
    attributes: Mapping[str, str] | None = None,
) -> MetricsServer:
    """Serves the metrics from a thread of this process, until ``close()``. Port 0 takes a free one.

    ``ConfigurationError`` if the port cannot be had.
    """
    app = metrics_wsgi_app(idempotency, by_tenant=by_tenant, max_tenants=max_tenants, attributes=attributes)
    try:
        kind = _Server6 if ":" in host else _Server
        server = make_server(host, port, app, server_class=kind, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"The metrics cannot be served on {host}:{port}: {error}. Choose another port."
        ) from error
    return MetricsServer(server)


class MetricsServer:
    """A running endpoint."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self.host, self.port = str(server.server_address[0]), int(server.server_address[1])
        self._thread = threading.Thread(
            target=server.serve_forever,
            kwargs={"poll_interval": 0.1},  # how long close() takes
            name="samekey-metrics",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stops serving and gives the port back. Safe to call twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # a scraper that stays connected must not keep the worker from stopping

    def server_bind(self) -> None:
        # Without the reverse look-up of the standard one, which can hang.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A scrape was cut off", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = READ_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


class Exposition:
    """The metrics of one ``Idempotency`` as text, from a meter provider that nobody else uses."""

    def __init__(
        self,
        idempotency: Idempotency,
        by_tenant: bool | Literal["digest"],
        max_tenants: int,
        attributes: Mapping[str, str] | None,
    ) -> None:
        try:
            from opentelemetry.exporter.prometheus import PrometheusMetricReader
            from opentelemetry.sdk.metrics import MeterProvider
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import choose_encoder
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"The Prometheus endpoint needs {error.name}: pip install 'samekey[prometheus]'."
            ) from None
        self._choose_encoder = choose_encoder
        self._registry = CollectorRegistry()
        # Prometheus knows by itself where it scraped; who made an instrument says nothing more.
        reader = PrometheusMetricReader(
            disable_target_info=True, scope_info_enabled=False, registry=self._registry
        )
        self._provider = MeterProvider([reader], shutdown_on_exit=False)
        self._lock = Lock()
        instrument(
            idempotency,
            self._provider,
            by_tenant=by_tenant,
            max_tenants=max_tenants,
            attributes=attributes,
        )

    def page(self, method: str, accepted: str) -> Page:
        """Status, headers and body. Never raises."""
        plain = ("Content-Type", "text/plain; charset=utf-8")
        if method not in ("GET", "HEAD"):
            return 405, [plain, ("Allow", "GET, HEAD")], b"Metrics are read with GET.\n"
        try:
            encoder, content_type = self._choose_encoder(accepted)
            with self._lock:  # two collections at once would mix their series
                body = encoder(self._registry)
        except Exception:
            logger.exception("The metrics could not be shown")
            return 500, [plain], b"The metrics could not be shown; the log says why.\n"
        return 200, [("Content-Type", content_type), ("Content-Length", str(len(body)))], body


_lock = threading.Lock()
_expositions: weakref.WeakKeyDictionary[Idempotency, dict[Any, Exposition]] = weakref.WeakKeyDictionary()


def _exposition(
    idempotency: Idempotency,
    by_tenant: bool | Literal["digest"],
    max_tenants: int,
    attributes: Mapping[str, str] | None,
) -> Exposition:
    """One for each engine and set of options, however often it is asked for."""
    options = (by_tenant, max_tenants, tuple(sorted((attributes or {}).items())))
    with _lock:
        made = _expositions.setdefault(idempotency, {})
        if options not in made:
            made[options] = Exposition(idempotency, by_tenant, max_tenants, attributes)
        return made[options]


async def _live(receive: Any, send: Any) -> None:
    """So that it can also be served by itself."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
