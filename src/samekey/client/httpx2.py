"""Clients and transports of httpx2 that send each operation under one key until it has its answer."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar

import httpx2

from .carry import Keyed
from .pending import Pending
from .scope import sending
from .shell import AsyncShell, SyncShell, async_pending_of, header_pairs, pending_of, wrap

__all__ = ["AsyncClient", "AsyncKeyedTransport", "Client", "KeyedTransport"]


class KeyedTransport(SyncShell, httpx2.BaseTransport):
    """A transport around another one, for ``transport=`` and ``mounts=``."""

    _library: ClassVar[Any] = httpx2

    def __init__(self, inner: httpx2.BaseTransport | None = None, keyed: Keyed | None = None) -> None:
        super().__init__(inner or httpx2.HTTPTransport(), keyed or Keyed())


class AsyncKeyedTransport(AsyncShell, httpx2.AsyncBaseTransport):
    """The same for async clients."""

    _library: ClassVar[Any] = httpx2

    def __init__(self, inner: httpx2.AsyncBaseTransport | None = None, keyed: Keyed | None = None) -> None:
        super().__init__(inner or httpx2.AsyncHTTPTransport(), keyed or Keyed())


class Client(httpx2.Client):
    """``httpx2.Client``, whose operations keep their keys."""

    def __init__(self, *, keyed: Keyed | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._keyed = keyed or Keyed()
        wrap(self, lambda inner: KeyedTransport(inner, self._keyed))

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        with sending(request.extensions, header_pairs(self.headers), str(request.url)):
            return super().send(request, **options)

    def pending(self) -> list[Pending[httpx2.Response]]:
        """What was begun, by this process or an earlier one, and has no final answer."""
        return pending_of(httpx2, self, self._keyed)


class AsyncClient(httpx2.AsyncClient):
    """``httpx2.AsyncClient``, whose operations keep their keys."""

    def __init__(self, *, keyed: Keyed | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._keyed = keyed or Keyed()
        wrap(self, lambda inner: AsyncKeyedTransport(inner, self._keyed))

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        with sending(request.extensions, header_pairs(self.headers), str(request.url)):
            return await super().send(request, **options)

    def pending(self) -> list[Pending[Awaitable[httpx2.Response]]]:
        """What was begun, by this process or an earlier one, and has no final answer: await ``finish()``."""
        return async_pending_of(httpx2, self, self._keyed)
