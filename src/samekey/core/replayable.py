"""Which headers of an answer may be kept and sent again.

Never: cookies and credentials (they belong to one session), hop-by-hop headers (they belong to one
connection), and what is only true at one moment (dates, ages, rate limits, our own marks).
"""

from __future__ import annotations

from typing import Final

from .record import Answer, Headers

_NEVER: Final = frozenset(
    {
        # credentials
        b"cookie",
        b"set-cookie",
        b"set-cookie2",
        b"authorization",
        b"www-authenticate",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"authentication-info",
        b"proxy-authentication-info",
        b"x-csrf-token",
        b"x-csrftoken",
        b"x-xsrf-token",
        b"x-auth-token",
        b"x-access-token",
        b"x-refresh-token",
        b"dpop-nonce",
        b"clear-site-data",
        # one connection
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"alt-svc",
        # one moment
        b"date",
        b"age",
        b"server",
        b"server-timing",
        b"retry-after",
        b"idempotent-replayed",
        b"idempotency-key-expires",
    }
)
_NEVER_PREFIXES: Final = (b"ratelimit", b"rate-limit", b"x-ratelimit", b"x-rate-limit")


def replayable_headers(headers: Headers) -> Headers:
    """The headers that may be stored. A header that ``Connection`` names is hop-by-hop too."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return tuple(
        (name, value) for name, value in headers if not _forbidden(name.lower()) and name.lower() not in named
    )


def _forbidden(name: bytes) -> bool:
    return name in _NEVER or name.startswith(_NEVER_PREFIXES)


def replayable(answer: Answer) -> Answer:
    """The part of an answer that is stored."""
    return Answer(answer.status, replayable_headers(answer.headers), answer.body)
