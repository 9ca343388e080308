"""Transports of httpx2 for calls to a provider from inside an operation."""

from __future__ import annotations

from typing import Any, ClassVar

import httpx2

from ..client.shell import AsyncShell, SyncShell
from .call import Outgoing

__all__ = ["AsyncProviderTransport", "ProviderTransport"]


class ProviderTransport(SyncShell, httpx2.BaseTransport):
    """For ``httpx2.Client(transport=…)``, around another transport or the library's own."""

    _library: ClassVar[Any] = httpx2

    def __init__(self, outgoing: Outgoing, inner: httpx2.BaseTransport | None = None) -> None:
        super().__init__(inner or httpx2.HTTPTransport(), outgoing)


class AsyncProviderTransport(AsyncShell, httpx2.AsyncBaseTransport):
    """The same for ``httpx2.AsyncClient``."""

    _library: ClassVar[Any] = httpx2

    def __init__(self, outgoing: Outgoing, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        super().__init__(inner or httpx2.AsyncHTTPTransport(), outgoing)
