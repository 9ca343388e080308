"""Deadlines at the sockets of requests: connections of urllib3 that ask how much time is left, and that know
whether any of a request has left this machine."""

from __future__ import annotations

import http.client
import io
from typing import Any

from .deadline import current, to_one_of


def bound(manager: Any) -> Any:
    """Has a pool manager of urllib3 make such connections, whatever its own are: plain, TLS, SOCKS."""
    manager.pool_classes_by_scheme = {
        scheme: _pool(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
    }
    return manager


def _pool(pool: Any) -> Any:
    if issubclass(pool.ConnectionCls, BoundedConnection):
        return pool
    connection = type(pool.ConnectionCls.__name__, (BoundedConnection, pool.ConnectionCls), {})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


class _Answer(http.client.HTTPResponse):
    """Head and body are read by way of ``_Reads``."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Reads(sock))


class _Reads(io.RawIOBase):
    """What comes in at a socket, each time with what is left of the attempt."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._timeout = sock.gettimeout()
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        attempt = current()
        if attempt is not None:
            self._sock.settimeout(attempt.left(self._timeout))
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()


class BoundedConnection:
    """Before a connection class of urllib3's."""

    response_class = _Answer
    timeout: Any
    sock: Any
    port: int
    _dns_host: Any
    _connecting = False

    def putrequest(self, *args: Any, **options: Any) -> Any:
        attempt = current()
        if attempt is not None:
            attempt.watched = True
        return super().putrequest(*args, **options)  # type: ignore[misc]

    def connect(self) -> None:
        attempt = current()
        if attempt is not None:
            attempt.watched = True
            self.timeout = attempt.left(self.timeout)
        self._connecting = True
        try:
            super().connect()  # type: ignore[misc]
        finally:
            self._connecting = False

    def _new_conn(self) -> Any:
        attempt, host, timeout = current(), getattr(self, "_dns_host", None), self.timeout
        if attempt is None:
            return super()._new_conn()  # type: ignore[misc]

        def connect(address: str, share: int) -> Any:
            self._dns_host, self.timeout = address, attempt.left(timeout, share)
            try:
                return super(BoundedConnection, self)._new_conn()  # type: ignore[misc]
            finally:
                self._dns_host, self.timeout = host, timeout

        if host is None or hasattr(self, "_socks_options"):  # it is the proxy's to find
            sock = super()._new_conn()  # type: ignore[misc]
        else:
            sock = to_one_of(host, self.port, connect)
        sock.settimeout(attempt.left(self.timeout))  # a handshake may follow
        return sock

    def send(self, data: Any) -> None:
        attempt = current()
        if attempt is not None and not self._connecting:  # what a proxy is told is none of the request
            if self.sock is None:
                self.connect()
            attempt.watched = attempt.began = True
            self.sock.settimeout(attempt.left(self.timeout))
        super().send(data)  # type: ignore[misc]
