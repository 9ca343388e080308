"""Text that can be shown to anybody: what the user gave as a secret is masked wherever it occurs.

Secret is every value that came with a header, from the environment or in the query of a URL, but for those
of a few names that are known to be harmless. Names tell too little: a server may repeat what it was sent.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

from .wire import RawExchange

MASK = "•••"
LONGEST = 2000
"""Characters of a body that are shown."""
SHORT = 4
"""A value of fewer characters is masked only where it was given: it occurs in every other word."""
WORD = 8
"""One of fewer characters is masked only where it stands by itself."""

HARMLESS = frozenset(
    {"accept", "accept-encoding", "accept-language", "cache-control", "content-language", "content-type",
     "prefer", "user-agent", "api-version", "x-api-version", "stripe-version", "version", "limit", "page",
     "samekey-check"}
)  # fmt: skip
"""Names of headers and of parameters whose values may be shown."""

_CREDENTIAL = re.compile(
    r"auth|cookie|token|secret|key|jwt|assertion|passw|credential|signature|session", re.IGNORECASE
)


def is_credential(name: str) -> bool:
    """Whether a header of this name may hold something secret."""
    return not name.lower().startswith("idempotency-key") and _CREDENTIAL.search(name) is not None


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must not be shown."""

    names: frozenset[str] = frozenset()
    """Of headers, in lower case."""
    values: frozenset[str] = field(default=frozenset(), repr=False)

    def out_of(self, text: str) -> str:
        """The text without them."""
        pattern = _pattern(self.values)
        text = pattern.sub(MASK, text) if pattern is not None else text
        return re.sub(r"(?<=://)[^/\s@]*@", f"{MASK}@", text)

    def hides(self, name: str) -> bool:
        return name.lower() in self.names or is_credential(name)


def secrets_of(
    headers: Iterable[tuple[str, str]], urls: Iterable[str], others: Iterable[str] = ()
) -> Secrets:
    """Those in headers and URLs, and other values."""
    given = [(name.lower(), value) for name, value in headers if name.lower() not in HARMLESS]
    values = {part for _, value in given for part in _parts(value)}
    for url in urls:
        values |= set(_in_url(url))
    values |= {value for value in others if not value.startswith(("http://", "https://"))}
    return Secrets(frozenset(name for name, _ in given), frozenset(value for value in values if value))


def without_secrets(url: str) -> str:
    """A URL that may be no URL: what comes before its host and after its path is left out."""
    shown = re.sub(r"//[^?]*@", f"//{MASK}@", url)
    return re.sub(r"\?.*", f"?{MASK}", shown, flags=re.DOTALL)


def _parts(value: str) -> Iterator[str]:
    """A header's value, and what is in it: the token behind its scheme, a password, the values of cookies."""
    yield value
    scheme, _, token = value.partition(" ")
    if token and scheme.isalpha():
        yield token.strip()
        if scheme.lower() == "basic":
            yield from _decoded(token.strip())
    for pair in re.split(r"[;,]\s*", value):
        _, equals, inner = pair.partition("=")
        if equals and inner.strip("="):
            yield inner.strip('"')


def _decoded(token: str) -> Iterator[str]:
    try:
        text = base64.b64decode(token, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
    yield text
    yield text.partition(":")[2]


def _in_url(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    yield parts.password or ""
    for pair in parts.query.split("&"):
        name, equals, value = pair.partition("=")
        if not equals:
            yield name
        elif name.lower() not in HARMLESS:
            yield from (pair, value, unquote_plus(value))  # the pair, for a value that is too short alone


@cache
def _pattern(values: frozenset[str]) -> re.Pattern[str] | None:
    """Finds them as they are, and as they are written in JSON and in URLs; the longest first."""
    spelled = {
        form
        for value in values
        if len(value) >= SHORT
        for form in (
            value,
            quote(value),
            quote(value, safe=""),
            quote_plus(value),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            html.escape(value),
            html.escape(value, quote=False),
        )
    }
    if not spelled:
        return None
    words = (
        re.escape(form) if len(form) >= WORD else rf"(?<!\w){re.escape(form)}(?!\w)"
        for form in sorted(spelled, key=len, reverse=True)
    )
    return re.compile("|".join(words))


def shown_request(exchange: RawExchange, secrets: Secrets) -> str:
    """What was sent, without what is secret."""
    head, _, body = exchange.request.whole().partition(b"\r\n\r\n")
    first, *headers = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    return _shown(f"{method} {shown_url(target, secrets)} {version}", headers, body, secrets)


def shown_url(url: str, secrets: Secrets) -> str:
    """Without the values of its query, the shortest included."""
    path, mark, query = url.partition("?")
    if not mark:
        return secrets.out_of(url)
    pairs = [pair.partition("=") for pair in query.split("&")]
    shown = [
        f"{name}={MASK}" if value and name.lower() not in HARMLESS else f"{name}{equals}{value}"
        for name, equals, value in pairs
    ]
    return secrets.out_of(f"{path}?{'&'.join(shown)}")


def shown_answer(exchange: RawExchange, secrets: Secrets) -> str:
    """What came back, or why nothing did."""
    answer = exchange.answer
    if answer is None:
        return f"({secrets.out_of(exchange.silence)})"
    first = f"HTTP/1.1 {answer.status} {answer.reason}".rstrip()
    return _shown(first, [f"{name}: {value}" for name, value in answer.headers], answer.body, secrets)


def _shown(first: str, headers: Collection[str], body: bytes, secrets: Secrets) -> str:
    lines = [secrets.out_of(first)]
    for line in headers:
        name, _, value = line.partition(": ")
        lines.append(f"{name}: {MASK if secrets.hides(name) and value else secrets.out_of(value)}")
    text = secrets.out_of(body.decode("utf-8", "backslashreplace"))
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(body)} bytes)"
    return "\n".join(lines) + (f"\n\n{text}" if text else "")
