"""What is checked: one endpoint, a request that it accepts, and how its effects are counted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .masking import Secrets, is_credential, secrets_of, without_secrets

Headers = tuple[tuple[str, str], ...]

UNIQUE = "{unique}"
"""In a string of the body: replaced by something new in each operation, where a body is taken only once."""

ABSENT: Any = object()
"""No body at all, which is not the same as ``null``."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How a request differs from the ordinary one, so that the server is slow or fails."""

    body: Any = ABSENT
    headers: Headers = ()
    times: int | None = None
    """How often the same request fails before it works; None if nobody knows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Another endpoint of the same server, where a key of this one must mean nothing."""

    url: str
    method: str = "POST"
    body: Any = ABSENT


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint."""

    url: str
    body: Any = ABSENT
    method: str = "POST"
    headers: Headers = ()
    other_headers: Headers = ()
    """How a second tenant's request differs."""
    count_url: str | None = None
    """Answers how many effects there have been: a number, or JSON with a count or a list."""
    same: str | None = None
    """JSON pointer to what names the operation in its answer, such as ``/id``."""
    slow: Variation | None = None
    failing: Variation | None = None
    retention: float | None = None
    """Seconds after which a key is forgotten; given, the check waits for it."""
    name: str = ""
    elsewhere: tuple[Place, ...] = ()
    """Other endpoints, at which the keys of this one are tried."""
    secret_values: frozenset[str] = field(default=frozenset(), repr=False)
    """What else must not be shown: what a plan took from the environment."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.count_url is not None:
            check_url(self.count_url)
        for place in self.elsewhere:
            check_url(place.url)
        if not self.method.isalpha():
            raise ConfigurationError(f"{self.method!r} is no HTTP method.")

    @property
    def other_tenant(self) -> Headers:
        """All headers of the second tenant."""
        return over(self.headers, self.other_headers)

    @property
    def secrets(self) -> Secrets:
        """What no report may show."""
        variations = [variation for variation in (self.slow, self.failing) if variation is not None]
        headers = [*self.headers, *self.other_headers, *(pair for row in variations for pair in row.headers)]
        urls = [url for url in (self.url, self.count_url) if url is not None]
        urls += [place.url for place in self.elsewhere]
        return secrets_of(headers, urls, self.secret_values)

    @property
    def credentials(self) -> frozenset[str]:
        """Names, in lower case, of the headers that say who the client is."""
        telling = {name.lower() for name, _ in self.other_headers}
        return frozenset(telling | {name.lower() for name, _ in self.headers if is_credential(name)})


def over(headers: Headers, others: Headers) -> Headers:
    """The first, with those of the second in place of their namesakes."""
    names = {name.lower() for name, _ in others}
    return (*((name, value) for name, value in headers if name.lower() not in names), *others)


def check_url(url: str) -> None:
    """Refuses what cannot be asked, in a sentence that holds nothing secret."""
    shown = without_secrets(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"{shown!r} is no URL: its host or its port makes no sense.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigurationError(f"{shown!r} cannot be asked: write http://host:port/path or https://….")
    if not url.isprintable() or " " in url:
        raise ConfigurationError(f"{shown!r} holds characters that a URL cannot have; encode them.")


def header_of(text: str) -> tuple[str, str]:
    """``Name: value``, as it is written on a command line."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not name.isascii() or any(c.isspace() for c in name):
        raise ConfigurationError("A header is none (it is not shown here): write 'Name: value'.")
    if not _is_value(value):
        raise ConfigurationError(
            f"The value of the header {name!r} cannot be sent: write 'Name: value', in characters of "
            "Latin-1 and on one line."
        )
    if name.lower() == "idempotency-key":
        raise ConfigurationError("Idempotency-Key is what the check sends by itself; leave it out.")
    return name, value


def headers_of(pairs: Iterable[str]) -> Headers:
    return tuple(header_of(pair) for pair in pairs)


def _is_value(value: str) -> bool:
    return all(c == "\t" or (c.isprintable() and ord(c) < 256) for c in value)


def body_of(text: str) -> Any:
    """The JSON document of an option; what is no JSON is refused in a sentence."""

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The body is no JSON: {error}.") from None
