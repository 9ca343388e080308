"""A request and its answer, as no HTTP library has them: what the client decides by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``headers`` are as the caller gave them; the key is added when it is sent."""

    method: str
    url: str
    headers: Pairs = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return _value(self.headers, name)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, its body whole and decoded."""

    status: int
    headers: Pairs = ()
    body: bytes = b""
    native: Any = field(default=None, compare=False, repr=False)
    """The answer as the HTTP library has it; None where it was made of a status resource."""

    def header(self, name: str) -> str | None:
        return _value(self.headers, name)


def pairs(headers: Mapping[str, str]) -> Pairs:
    """Headers as this module has them."""
    return tuple(headers.items())


def _value(headers: Pairs, name: str) -> str | None:
    wanted = name.lower()
    return next((value for found, value in headers if found.lower() == wanted), None)


_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: who knows a key."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(scheme)


def target_of(url: str, location: str) -> str | None:
    """Where a ``Location`` leads from this URL, without its fragment; None if it is no URL at all."""
    try:
        target = urlunsplit(urlsplit(urljoin(url, location))._replace(fragment=""))
        origin_of(target)
    except ValueError:  # a host or a port that cannot be one
        return None
    return target


def without_user(url: str) -> str:
    """The URL without the name and password that may stand in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
