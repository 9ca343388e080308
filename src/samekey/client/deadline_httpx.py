"""Deadlines at the sockets of httpx and httpx2, sync: their networks, with the time that is left."""

from __future__ import annotations

from typing import Any, Final

from .deadline import current, to_one_of

_WRITTEN_AT_ONCE: Final = 64 * 1024
"""Bytes: a reader that takes a large body drop by drop is given up in between."""


def bound(transport: Any, library: Any) -> None:
    """Has a transport of the library's own keep deadlines. One of the caller's making keeps its own time."""
    pool: Any = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if backend is not None and not isinstance(backend, BoundedBackend):
        pool._network_backend = BoundedBackend(backend, library)


class BoundedBackend:
    """The network of httpcore, around another one: ``library`` is the httpx that it serves."""

    def __init__(self, inner: Any, library: Any) -> None:
        self._inner = inner
        self._library = library

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> Any:
        def connect(address: str, share: int = 1) -> Any:
            seconds = _left(timeout, self._library.ConnectTimeout, share)
            return BoundedStream(self._inner.connect_tcp(address, port, seconds, **options), self._library)

        return connect(host) if current() is None else to_one_of(host, port, connect)

    def connect_unix_socket(self, path: str, timeout: float | None = None, **options: Any) -> Any:
        seconds = _left(timeout, self._library.ConnectTimeout)
        return BoundedStream(self._inner.connect_unix_socket(path, seconds, **options), self._library)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(_left(seconds, self._library.ConnectTimeout))


class BoundedStream:
    """One of its connections."""

    def __init__(self, inner: Any, library: Any) -> None:
        self._inner = inner
        self._library = library

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._inner.read(max_bytes, _left(timeout, self._library.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITTEN_AT_ONCE):
            part = buffer[start : start + _WRITTEN_AT_ONCE]
            self._inner.write(part, _left(timeout, self._library.WriteTimeout))

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> Any:
        seconds = _left(timeout, self._library.ConnectTimeout)
        return BoundedStream(self._inner.start_tls(ssl_context, server_hostname, seconds), self._library)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _left(timeout: float | None, late: type[Exception], share: int = 1) -> Any:
    attempt = current()
    if attempt is None:
        return timeout
    try:
        return attempt.left(timeout, share)
    except TimeoutError as error:
        raise late(str(error)) from None
