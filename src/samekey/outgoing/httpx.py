"""Transports of httpx for calls to a provider from inside an operation."""

from __future__ import annotations

from typing import Any, ClassVar

import httpx

from ..client.shell import AsyncShell, SyncShell
from .call import Outgoing

__all__ = ["AsyncProviderTransport", "ProviderTransport"]


class ProviderTransport(SyncShell, httpx.BaseTransport):
    """For ``httpx.Client(transport=…)``, around another transport or the library's own."""

    _library: ClassVar[Any] = httpx

    def __init__(self, outgoing: Outgoing, inner: httpx.BaseTransport | None = None) -> None:
        super().__init__(inner or httpx.HTTPTransport(), outgoing)


class AsyncProviderTransport(AsyncShell, httpx.AsyncBaseTransport):
    """The same for ``httpx.AsyncClient``."""

    _library: ClassVar[Any] = httpx

    def __init__(self, outgoing: Outgoing, inner: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(inner or httpx.AsyncHTTPTransport(), outgoing)
